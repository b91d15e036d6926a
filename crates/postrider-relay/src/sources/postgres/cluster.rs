//! Which server this is: of which database cluster, on which timeline of it, and since when.
//!
//! Transactions of another cluster are numbered differently. And a replica that is promoted begins
//! a new timeline: if it had lagged behind, the last commits are gone, and their numbers are given
//! again, those of transactions and those of rows. So what a source has in memory holds on one
//! timeline only: which transactions it has seen, which rows are under way, and its lease. Whoever
//! goes on after a failover has to start from what the new primary has. A server that was started
//! anew is no different: it may have lost what was committed with `synchronous_commit = off`.
//! What is written down is safe: to commit it made everything before it durable. Nor has a server
//! that crashed to be started anew: if one process is killed, the others end and come back.
//!
//! Sessions are compared when they are made ([`Connection::group`](super::connection::Connection)).
//! A pooler may put another server behind a session, so statements look themselves, too
//! ([`Origin::holds`]).

use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSqlOwned;
use tokio_postgres::{Client, Error};

const CLUSTER: &str = "(SELECT system_identifier FROM pg_control_system())";
/// It begins the name of each file of the log. Unlike what `pg_control_checkpoint()` says, it is
/// right as soon as a replica is promoted.
const TIMELINE: &str = "(SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))";
/// Asked on its own: a statement that names a function is refused, whatever its condition.
const MAY: &str = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE'),
     has_function_privilege('pg_walfile_name(pg_lsn)', 'EXECUTE')
     AND has_function_privilege('pg_current_wal_lsn()', 'EXECUTE')";

/// In seconds since 1970.
const STARTED: &str = "(SELECT extract(epoch FROM pg_postmaster_start_time())::text)";
/// Statistics are lost in a crash after which the server goes on without a new start: when one of
/// its processes was killed. They have been since the first version that is supported, and up to
/// 18. The function is what `pg_stat_bgwriter` calls; without the view it costs a statement about
/// 10 µs, and 50 µs before version 15, where statistics are in a file.
const STATISTICS: &str =
    "(SELECT extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())::text)";

const CANNOT_TELL: [SqlState; 2] =
    [SqlState::FEATURE_NOT_SUPPORTED, SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE];

/// Where a session leads, as far as this role may know it and the server can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    /// The identifier of the cluster.
    pub(super) cluster: Option<i64>,
    timeline: Option<String>,
    /// When the server was started.
    started: Option<String>,
    /// When it lost its statistics.
    statistics: Option<String>,
}

impl Origin {
    pub(super) async fn of(client: &Client) -> Result<Self, Error> {
        let may = client.query_typed_one(MAY, &[]).await?;
        let (may_cluster, may_timeline) = (may.try_get(0)?, may.try_get(1)?);
        Ok(Self {
            cluster: ask(client, may_cluster, CLUSTER).await?,
            timeline: ask(client, may_timeline, TIMELINE).await?,
            started: ask(client, true, STARTED).await?,
            statistics: ask(client, true, STATISTICS).await?,
        })
    }

    /// Whether the two are known to differ.
    pub(super) fn differs(&self, other: &Self) -> bool {
        fn differ<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| one != other)
        }
        differ(&self.cluster, &other.cluster)
            || differ(&self.timeline, &other.timeline)
            || differ(&self.started, &other.started)
            || differ(&self.statistics, &other.statistics)
    }

    /// Whether it is known not to be of a cluster, or not on a timeline of it.
    pub(super) fn is_not(&self, cluster: u64, timeline: u32) -> bool {
        let timeline = format!("{timeline:08X}");
        self.cluster.is_some_and(|own| own.cast_unsigned() != cluster)
            || self.timeline.as_ref().is_some_and(|own| *own != timeline)
    }

    /// A condition of SQL: the statement runs on this timeline, and on a server that was not
    /// started anew and has not crashed. It is evaluated once.
    pub(super) fn holds(&self) -> String {
        let is = |(what, expected): (&str, &Option<String>)| {
            expected.as_ref().map(|expected| format!("{what} = '{expected}'"))
        };
        let known =
            [(TIMELINE, &self.timeline), (STARTED, &self.started), (STATISTICS, &self.statistics)];
        let conditions: Vec<String> = known.into_iter().filter_map(is).collect();
        if conditions.is_empty() { "true".to_owned() } else { conditions.join(" AND ") }
    }
}

/// What an expression is worth. Not every server that is like PostgreSQL has a log that can be
/// asked about.
async fn ask<T: FromSqlOwned>(client: &Client, may: bool, sql: &str) -> Result<Option<T>, Error> {
    if !may {
        return Ok(None);
    }
    match client.query_typed_one(&format!("SELECT {sql}"), &[]).await {
        Ok(row) => row.try_get(0),
        Err(error) if error.code().is_some_and(|code| CANNOT_TELL.contains(code)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_does_not_differ() {
        let origin = |cluster: Option<i64>, timeline: Option<&str>| Origin {
            cluster,
            timeline: timeline.map(str::to_owned),
            ..Origin::default()
        };
        let known = origin(Some(7), Some("00000001"));
        let same = [known.clone(), origin(None, None), origin(Some(7), None)];
        assert!(!same.iter().any(|other| known.differs(other) || other.differs(&known)));
        let others = [origin(Some(8), Some("00000001")), origin(None, Some("00000002"))];
        assert!(others.iter().all(|other| known.differs(other) && other.differs(&known)));
        assert!(!known.is_not(7, 1) && known.is_not(8, 1) && known.is_not(7, 2));
        assert_eq!(origin(Some(7), None).holds(), "true");
        assert!(known.holds().ends_with(" = '00000001'"), "{}", known.holds());
    }
}
