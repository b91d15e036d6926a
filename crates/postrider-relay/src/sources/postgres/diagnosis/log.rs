//! Checks of what reading the log needs: settings, slots, the publication, and rights.

use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::super::connection::streaming;
use super::super::error::Trouble;
use super::super::log::{LogQueries, Names, application_name, columns};
use super::super::table::Table;
use super::{CHECK_TIMEOUT, Exam, queries, text, too_slow};
use crate::amounts::size;
use crate::diagnosis::{Finding, Fix, Wanted};
use crate::sources::Mode;

const SETTINGS: [&str; 4] =
    ["max_replication_slots", "max_slot_wal_keep_size", "max_wal_senders", "wal_level"];
const MIB: u64 = 1 << 20;

impl Exam<'_> {
    pub(super) async fn log(&mut self, table: &Table) {
        let wanted: Vec<Wanted> =
            self.wanted.iter().filter(|wanted| wanted.mode == Mode::Cdc).cloned().collect();
        if wanted.is_empty() {
            let found = "no pipeline reads the log";
            self.findings.push(Finding::ok("log", found));
        } else {
            let settings = self.log_settings(&wanted).await;
            self.note("wal-level", settings);
            self.findings.push(self.replication_right());
            let publication = self.publication(table, &wanted[0]).await;
            self.note("publication", publication);
            let readable = self.log_readable(table, &wanted[0]).await;
            self.note("log", readable);
        }
        let orphans = self.other_slots(table).await;
        self.note("other-slots", orphans);
    }

    async fn log_settings(&self, wanted: &[Wanted]) -> Result<Vec<Finding>, Trouble> {
        let settings = self.settings(&SETTINGS).await?;
        let number = |name: &str| settings.get(name).and_then(|it| it.parse::<i64>().ok());
        let level = settings.get("wal_level").map_or("", String::as_str);
        let mut findings = vec![match level {
            "logical" => Finding::ok("wal-level", "the log can be decoded (wal_level = logical)"),
            level => Finding::fail("wal-level", format!("wal_level is {level}")).with(Fix::advice(
                "run ALTER SYSTEM SET wal_level = logical and restart the server; or write mode = \
                 \"poll\"",
            )),
        }];
        let row = self.row(queries::SENDERS, &[]).await?;
        let used = [row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?];
        let limits =
            [("replication-slots", "max_replication_slots"), ("wal-senders", "max_wal_senders")];
        for ((check, setting), used) in limits.into_iter().zip(used) {
            let max = number(setting).unwrap_or(0);
            let free = (max - used).max(0);
            let found = format!("{free} of {max} are free ({setting})");
            findings.push(match free {
                // A pipeline that runs has its own already.
                0 => Finding::warn(check, found).with(Fix::advice(format!(
                    "drop a slot that nobody reads, or raise {setting}, which needs a restart"
                ))),
                _ => Finding::ok(check, found),
            });
        }
        let guard = wanted.iter().map(|it| it.max_retained_wal).max().unwrap_or_default();
        findings.push(wal_kept(number("max_slot_wal_keep_size").unwrap_or(-1), guard));
        Ok(findings)
    }

    fn replication_right(&self) -> Finding {
        const CHECK: &str = "replication-right";
        let role = &self.facts.role;
        match self.facts.may_replicate {
            true => Finding::ok(CHECK, format!("{role} may read the log")),
            false => Finding::fail(CHECK, format!("{role} may not read the log"))
                .with(Fix::sql(format!("ALTER ROLE {role} REPLICATION"))),
        }
    }

    async fn publication(&self, table: &Table, wanted: &Wanted) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "publication";
        let sql = self.log_queries(table, &wanted.name);
        let name = sql.names().publication.clone();
        if sql.publication(&self.connection).await?.is_some() {
            return Ok(vec![Finding::ok(CHECK, format!("{name} has the table"))]);
        }
        let rows = self.query(queries::PUBLICATION, &[text(&name), text(&table.quoted())]).await?;
        let row = self.row(queries::MAY_PUBLISH, &[text(&table.quoted())]).await?;
        let (may, owner): (bool, String) = (row.try_get(0)?, row.try_get(1)?);
        let Some(row) = rows.first() else {
            return Ok(vec![match may {
                true => Finding::ok(CHECK, format!("{name} is made by the first relay")),
                false => {
                    let found = format!("there is no {name}, and only {owner} can make it");
                    Finding::fail(CHECK, found).with(Fix::sql(sql.create_publication()))
                }
            }]);
        };
        let has_table: bool = row.try_get(0)?;
        Ok(vec![match has_table {
            false => {
                let found = format!("{name} does not have the table: the log says nothing of it");
                let sql = format!("ALTER PUBLICATION {name} ADD TABLE {}", table.quoted());
                Finding::fail(CHECK, found).with(Fix::safe_sql(sql))
            }
            true => {
                let found = format!("{name} was changed: it has other tables, a filter or columns");
                let fix = format!("run DROP PUBLICATION {name}; the next relay makes it anew");
                Finding::warn(CHECK, found).with(Fix::advice(fix))
            }
        }])
    }

    /// Whether the log of this table could be read, as a relay finds out at its start.
    async fn log_readable(&self, table: &Table, wanted: &Wanted) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "log";
        let sql = self.log_queries(table, &wanted.name);
        let mut findings = Vec::new();
        if let Err(trouble) = sql.refuse_standbys(&self.connection).await {
            findings.push(Finding::error(CHECK, &trouble.while_doing("read the standbys")));
        }
        if let Err(trouble) = sql.refuse_generated(&self.connection, &columns(table)).await {
            findings.push(Finding::error(CHECK, &trouble.while_doing("read the columns")));
        }
        let reader = application_name(&wanted.name);
        let connecting = streaming(self.location, &reader);
        match timeout(CHECK_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(too_slow())) {
            Ok(_) => {}
            Err(error) => findings.push(Finding::error(CHECK, &error)),
        }
        if findings.is_empty() {
            findings.push(Finding::ok(CHECK, "a connection for the log can be made"));
        }
        Ok(findings)
    }

    /// Slots that keep the log for nobody.
    async fn other_slots(&self, table: &Table) -> Result<Vec<Finding>, Trouble> {
        const CHECK: &str = "other-slots";
        let names = self.wanted.iter().map(|wanted| self.log_queries(table, &wanted.name));
        let names: Vec<String> = names.map(|sql| sql.names().slot.clone()).collect();
        let mut findings = Vec::new();
        for row in self.query(queries::OTHER_SLOTS, &[(&names, Type::TEXT_ARRAY)]).await? {
            let (slot, kept): (String, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
            let kept = size(u64::try_from(kept.unwrap_or(0)).unwrap_or(0));
            let found = format!(
                "nobody reads the slot {slot}, which keeps {kept} of the log, and no pipeline of \
                 this outbox has it: another outbox of this database may, or it was left behind"
            );
            // No statement to copy: dropping the slot of another outbox can lose events.
            let advice = format!(
                "if no other outbox of this database has it, run SELECT \
                 pg_drop_replication_slot('{slot}')"
            );
            findings.push(Finding::warn(CHECK, found).about(slot).with(Fix::advice(advice)));
        }
        if findings.is_empty() {
            findings.push(Finding::ok(CHECK, "no slot of ours was left behind"));
        }
        Ok(findings)
    }

    fn log_queries(&self, table: &Table, pipeline: &str) -> LogQueries {
        let names = Names::new(self.location.database(), table, pipeline);
        LogQueries::new(table, self.outbox, names)
    }
}

/// How much of the log the server keeps for a slot, in MiB, against what the relay allows.
fn wal_kept(limit: i64, guard: u64) -> Finding {
    const CHECK: &str = "slot-wal-limit";
    let Ok(limit) = u64::try_from(limit) else {
        let found = format!(
            "the server keeps the log for a slot without a limit: should the relay be gone, the \
             disk fills (a relay that runs gives its slot up at {})",
            size(guard)
        );
        let fix = format!(
            "run ALTER SYSTEM SET max_slot_wal_keep_size = '{}MB', then SELECT pg_reload_conf(); a \
             slot that is lost is healed from the table, but for events that only the log has",
            2 * guard / MIB
        );
        return Finding::warn(CHECK, found).with(Fix::advice(fix));
    };
    let limit = limit.saturating_mul(MIB);
    let found = format!("the server keeps {} of the log for a slot", size(limit));
    if limit < guard {
        let fix = format!("raise it, or write max_retained_wal = \"{}MiB\"", limit / MIB / 2);
        let found = format!("{found}, less than the {} at which a relay gives it up", size(guard));
        return Finding::warn(CHECK, found).with(Fix::advice(fix));
    }
    Finding::ok(CHECK, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::Level;

    #[test]
    fn the_log_is_kept_for_long_enough_and_not_for_ever() {
        assert_eq!(wal_kept(-1, 10 << 30).level, Level::Warn);
        assert_eq!(wal_kept(1_024, 10 << 30).level, Level::Warn);
        assert_eq!(wal_kept(20_480, 10 << 30).level, Level::Ok);
    }
}
