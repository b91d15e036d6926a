//! Checks of the server and of the way to it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use super::super::connection::Connection;
use super::super::error::Trouble;
use super::{Exam, queries};
use crate::amounts::age;
use crate::diagnosis::{Finding, Fix};
use crate::sources::Mode;

/// So many connections are kept by a relay for each pipeline or shard.
const CONNECTIONS_PER_PIPELINE: i64 = 3;
/// How often two sessions are compared.
const POOLER_PROBES: usize = 8;
/// Clocks that differ by more make ages wrong.
const SKEW_MAX: Duration = Duration::from_secs(2);
/// A statement of a relay may take so long on a busy server.
const STATEMENT_MS: u64 = 10_000;
/// It may wait for a lock for so long.
const LOCK_MS: u64 = 1_000;
/// The last day of support of each version: https://www.postgresql.org/support/versioning/.
const SUPPORTED_UNTIL: [(i32, &str); 5] = [
    (14, "2026-11-12"),
    (15, "2027-11-11"),
    (16, "2028-11-09"),
    (17, "2029-11-08"),
    (18, "2030-11-14"),
];
const SETTINGS: [&str; 7] = [
    "fsync",
    "full_page_writes",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
    "statement_timeout",
    "synchronous_commit",
    "transaction_timeout",
];

impl Exam<'_> {
    pub(super) async fn server(&mut self) {
        let version = vec![self.version(), self.primary(), self.superuser()];
        self.findings.extend(version);
        let settings = self.settings(&SETTINGS).await;
        let settings = settings.map(|settings| self.by_settings(&settings));
        self.note("timeouts", settings);
        let connections = self.connections().await;
        self.note("connections", connections);
        let encryption = self.encryption().await;
        self.note("encryption", encryption);
        let clock = self.clock().await;
        self.note("clock", clock);
        let pooler = self.pooler().await;
        self.note("pooler", pooler);
    }

    fn version(&self) -> Finding {
        const CHECK: &str = "server-version";
        let found = format!("PostgreSQL {}", self.facts.version);
        let until = SUPPORTED_UNTIL.iter().find(|(major, _)| *major == self.facts.major);
        match until.filter(|(_, until)| is_past(until, SystemTime::now())) {
            Some((_, until)) => {
                Finding::warn(CHECK, format!("{found}, which has had no fixes since {until}"))
                    .with(Fix::advice("upgrade the server to a version that is supported"))
            }
            None => Finding::ok(CHECK, found),
        }
    }

    /// A connection is refused otherwise; but behind a pooler the next one may be to another server.
    fn primary(&self) -> Finding {
        const CHECK: &str = "primary";
        match self.facts.is_replica {
            false => Finding::ok(CHECK, "the server takes writes"),
            true => Finding::fail(CHECK, "the server is a replica")
                .with(Fix::advice("name the primary, or all servers: postgres://one,two/…")),
        }
    }

    fn superuser(&self) -> Finding {
        const CHECK: &str = "superuser";
        let role = &self.facts.role;
        match self.facts.is_superuser {
            false => Finding::ok(CHECK, format!("{role} is no superuser")),
            true => Finding::warn(CHECK, format!("{role} is a superuser, and needs far less"))
                .with(Fix::command(format!("postrider migrate roles {}", self.asked.flags))),
        }
    }

    fn by_settings(&self, settings: &BTreeMap<String, String>) -> Vec<Finding> {
        let get = |name: &str| settings.get(name).map_or("", String::as_str);
        vec![
            durability(get("fsync"), get("full_page_writes")),
            self.synchronous_commit(get("synchronous_commit")),
            self.timeouts(settings),
            idle_timeout(get("idle_in_transaction_session_timeout")),
        ]
    }

    fn synchronous_commit(&self, is: &str) -> Finding {
        const CHECK: &str = "synchronous-commit";
        if is != "off" {
            return Finding::ok(CHECK, format!("a commit that is answered lasts ({is})"));
        }
        let found = "synchronous_commit is off: a crash of the server can lose commits that were \
                     answered, of writers and of the relay";
        let sql = format!("ALTER ROLE {} SET synchronous_commit = on", self.facts.role);
        Finding::warn(CHECK, found).with(Fix::sql(sql))
    }

    fn timeouts(&self, settings: &BTreeMap<String, String>) -> Finding {
        const CHECK: &str = "timeouts";
        let limits = [
            ("statement_timeout", STATEMENT_MS),
            ("transaction_timeout", STATEMENT_MS),
            ("lock_timeout", LOCK_MS),
        ];
        for (name, least) in limits {
            let ms: u64 = settings.get(name).and_then(|ms| ms.parse().ok()).unwrap_or(0);
            if ms > 0 && ms < least {
                let found = format!("{name} of this role is {ms} ms: a busy server ends its work");
                let sql = format!("ALTER ROLE {} SET {name} = '{least}ms'", self.facts.role);
                return Finding::warn(CHECK, found).with(Fix::sql(sql));
            }
        }
        Finding::ok(CHECK, "statement_timeout and lock_timeout leave a relay enough time")
    }

    async fn connections(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "connections";
        let row = self.row(queries::CONNECTIONS, &[]).await?;
        let number =
            |index: usize| row.try_get::<_, Option<i64>>(index).map(Option::unwrap_or_default);
        let limits = [
            ("the server", number(0)?, number(1)?),
            ("the role", number(2)?, number(3)?),
            ("the database", number(4)?, number(5)?),
        ];
        let needed = CONNECTIONS_PER_PIPELINE * i64::try_from(self.wanted.len()).unwrap_or(1);
        let (whose, limit, used) = limits
            .into_iter()
            .filter(|(_, limit, _)| *limit >= 0)
            .min_by_key(|(_, limit, used)| limit - used)
            .unwrap_or(limits[0]);
        let free = (limit - used).max(0);
        let found = format!("{free} of the {limit} connections of {whose} are free");
        if free >= needed {
            return Ok(vec![Finding::ok(CHECK, found)]);
        }
        let fix = match whose {
            "the role" => Fix::sql(format!("ALTER ROLE {} CONNECTION LIMIT -1", self.facts.role)),
            "the database" => {
                Fix::sql(format!("ALTER DATABASE {} CONNECTION LIMIT -1", self.facts.database))
            }
            _ => Fix::advice("raise max_connections, use a pooler, or look who has so many open"),
        };
        let found = format!("{found}, and a relay needs {needed}");
        Ok(vec![Finding::warn(CHECK, found).with(fix)])
    }

    async fn encryption(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "encryption";
        let row = self.row(queries::ENCRYPTION, &[]).await?;
        let (is_on, version): (bool, String) = (row.try_get(0)?, row.try_get(1)?);
        let is_local: bool = row.try_get(2)?;
        let certificate = if is_on { self.certificate().await? } else { Vec::new() };
        let encryption = match (is_on, is_local) {
            (true, _) => Finding::ok(CHECK, format!("the connection is encrypted by {version}")),
            (false, true) => Finding::ok(CHECK, "the connection does not leave the host"),
            (false, false) => {
                let found = "events and the password's proof go over the network as they are";
                Finding::warn(CHECK, found)
                    .with(Fix::advice("add sslmode=verify-full to the database's URL"))
            }
        };
        Ok(std::iter::once(encryption).chain(certificate).collect())
    }

    async fn clock(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "clock";
        // The first one may have to connect.
        self.row(queries::CLOCK, &[]).await?;
        let before = SystemTime::now();
        let micros: i64 = self.row(queries::CLOCK, &[]).await?.try_get(0)?;
        let after = SystemTime::now();
        let theirs = SystemTime::UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs());
        let skew = skew(before, theirs, after);
        Ok(vec![if skew <= SKEW_MAX {
            Finding::ok(CHECK, "the clock of this host and that of the server agree")
        } else {
            let found = format!(
                "the clocks of this host and of the server differ by {} at least: ages and times \
                 of delivery are wrong by that (leases go by the server's clock alone)",
                age(skew)
            );
            Finding::warn(CHECK, found).with(Fix::advice("run NTP on both hosts"))
        }])
    }

    /// Two sessions that are one process of the server at different times have a pooler before
    /// them that gives each transaction another connection.
    async fn pooler(&self) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "pooler";
        let pid = async |connection: &Connection| -> Result<i32, Trouble> {
            let rows = connection.query_with(queries::BOUNDED, queries::BACKEND, &[]).await?;
            Ok(rows.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(0))
        };
        let other = Connection::new(self.location.clone(), "doctor");
        let (mut is_shared, mut last) = (false, pid(&self.connection).await?);
        for _ in 0..POOLER_PROBES {
            let theirs = pid(&other).await?;
            let ours = pid(&self.connection).await?;
            is_shared |= theirs == last || theirs == ours || ours != last;
            last = ours;
        }
        other.close().await;
        let reads_log = self.wanted.iter().any(|wanted| wanted.mode == Mode::Cdc);
        Ok(vec![match (is_shared, reads_log) {
            (false, _) => Finding::ok(CHECK, "a session is one process of the server"),
            (true, false) => Finding::ok(
                CHECK,
                "a pooler gives each transaction another connection, which is fine for polling",
            ),
            (true, true) => {
                let found = "a pooler gives each transaction another connection, and cannot carry \
                             the log";
                let fix = "name the server itself in the URL, or write mode = \"poll\"";
                Finding::fail(CHECK, found).with(Fix::advice(fix))
            }
        }])
    }
}

fn durability(fsync: &str, full_page_writes: &str) -> Finding {
    const CHECK: &str = "fsync";
    for (name, is) in [("fsync", fsync), ("full_page_writes", full_page_writes)] {
        if is == "off" {
            let found = format!("{name} is off: a crash can damage the whole database");
            return Finding::fail(CHECK, found).with(Fix::advice(format!(
                "run ALTER SYSTEM SET {name} = on, then SELECT pg_reload_conf()"
            )));
        }
    }
    Finding::ok(CHECK, "what is committed is on disk")
}

fn idle_timeout(ms: &str) -> Finding {
    const CHECK: &str = "idle-timeout";
    let ms: u64 = ms.parse().unwrap_or(0);
    Finding::ok(
        CHECK,
        match ms {
            0 => "a transaction that was forgotten stays open: \
                  idle_in_transaction_session_timeout is 0"
                .to_owned(),
            ms => format!("a transaction that was forgotten ends after {ms} ms"),
        },
    )
}

/// How far a clock is off that was read between two readings of another, at least.
fn skew(before: SystemTime, theirs: SystemTime, after: SystemTime) -> Duration {
    let behind = before.duration_since(theirs).unwrap_or_default();
    let ahead = theirs.duration_since(after).unwrap_or_default();
    behind.max(ahead)
}

/// Whether a day such as 2026-11-12 is over.
fn is_past(day: &str, now: SystemTime) -> bool {
    let now = jiff::Timestamp::try_from(now).unwrap_or_default();
    day.parse::<jiff::civil::Date>()
        .is_ok_and(|day| now.to_zoned(jiff::tz::TimeZone::UTC).date() > day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Level;

    #[test]
    fn clocks_are_compared_without_the_way_between_them() {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        assert_eq!(skew(at(100), at(150), at(200)), Duration::ZERO);
        assert_eq!(skew(at(100), at(90), at(200)), Duration::from_millis(10));
        assert_eq!(skew(at(100), at(250), at(200)), Duration::from_millis(50));
    }

    #[test]
    fn a_version_is_out_of_support_the_day_after() {
        let day = |day: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(day * 86_400);
        assert!(!is_past("1970-01-11", day(10)) && is_past("1970-01-11", day(11)));
        assert!(!is_past("never", day(10)));
    }

    #[test]
    fn what_can_damage_a_database_fails() {
        assert_eq!(durability("on", "on").level, Level::Ok);
        assert_eq!(durability("off", "on").level, Level::Fail);
        assert_eq!(durability("on", "off").level, Level::Fail);
    }
}
