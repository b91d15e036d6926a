//! Prunes an outbox in PostgreSQL.
//!
//! Rows go in batches (`rows`). A partitioned outbox loses whole partitions
//! ([`partitions`](super::partitions)), and rows only where they belong to none.

mod archive;
mod rows;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use postrider::schema::TableName;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::Location;
use super::admin::check_tables;
use super::connection::{Connection, Param, Transaction};
use super::error::Trouble;
use super::partitions::{self, Stretch};
use super::queries::{CUTOFF, Order, PruneQueries};
use super::table::{self, Table};
use crate::prune::{BATCH_ROWS_MAX, Left, Prune, PruneOptions, Pruned};
use crate::shutdown::Shutdown;
use crate::source::{SourceError, SourceErrorKind};

pub(super) use self::archive::Archive;

/// Whoever keeps events for longer keeps them for ever.
const KEEP_MAX: Duration = Duration::from_secs(1_000 * 365 * 24 * 60 * 60);
const DOING: &str = "prune the outbox";

/// Prunes one outbox in PostgreSQL.
#[derive(Debug)]
pub struct PostgresPruner {
    pub(super) connection: Connection,
    pub(super) outbox: TableName,
    pub(super) sql: PruneQueries,
    table: Table,
    layout: Layout,
}

/// How the table is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Plain,
    /// As postrider makes it.
    Partitioned,
    /// Somebody else's.
    Foreign,
}

impl PostgresPruner {
    /// Connects, and checks that the tables of the outbox are there. `columns` are those of a
    /// table that is not of our making: our name to its name.
    ///
    /// # Errors
    ///
    /// `Misconfigured` if the database or its tables are not as they should be, `Unavailable` if
    /// the server cannot be reached.
    pub async fn connect(
        location: Location,
        outbox: TableName,
        columns: BTreeMap<String, String>,
    ) -> Result<Self, SourceError> {
        let connection = Connection::new(location.clone(), "prune");
        check_tables(&connection, &location, &outbox).await?;
        let opened = Self::open(connection, outbox, &columns).await;
        opened.map_err(|trouble| trouble.while_doing("open the outbox"))
    }

    async fn open(
        connection: Connection,
        outbox: TableName,
        columns: &BTreeMap<String, String>,
    ) -> Result<Self, Trouble> {
        let table = table::read(&connection, &outbox, columns).await?;
        let sql = PruneQueries::new(&table, &outbox);
        let layout = connection.query(&sql.layout, &[]).await?;
        let layout = layout.first().map(Layout::read).transpose()?.unwrap_or(Layout::Plain);
        Ok(Self { connection, outbox, sql, table, layout })
    }

    async fn prune_all(
        &self,
        options: &PruneOptions,
        shutdown: &Shutdown,
    ) -> Result<Pruned, Trouble> {
        let mut pruned = Pruned::default();
        let Some(needs) = self.check_pipelines().await? else {
            pruned.leave(Left::NoPipeline);
            return Ok(pruned);
        };
        let micros = i64::try_from(options.keep.min(KEEP_MAX).as_micros()).unwrap_or(i64::MAX);
        let rows = self.connection.query(CUTOFF, &[(&micros, Type::INT8)]).await?;
        let cutoff: String = one(&rows)?;
        let run = Run { pruner: self, options, shutdown, cutoff, needs };
        match self.layout {
            Layout::Plain => {
                self.check_index()?;
                run.rows(&Stretch::default(), &mut pruned).await?;
            }
            Layout::Partitioned => {
                for stretch in partitions::prune(&run, &mut pruned).await? {
                    run.rows(&stretch, &mut pruned).await?;
                }
            }
            Layout::Foreign => return Err(self.foreign().into()),
        }
        if !options.dry_run {
            self.forget_discarded(&run.cutoff, shutdown).await?;
        }
        Ok(pruned)
    }

    /// That a dead letter was discarded is known for as long as a published event stays.
    async fn forget_discarded(&self, cutoff: &String, shutdown: &Shutdown) -> Result<(), Trouble> {
        let limit = BATCH_ROWS_MAX as i64;
        let params: [Param<'_>; 2] = [(cutoff, Type::TEXT), (&limit, Type::INT8)];
        while !shutdown.is_requested() {
            let forgotten = self.connection.execute(&self.sql.forget_discarded, &params).await?;
            if forgotten < BATCH_ROWS_MAX as u64 {
                break;
            }
        }
        Ok(())
    }

    /// What the pipelines need; `None` if there is no pipeline.
    async fn check_pipelines(&self) -> Result<Option<Needs>, Trouble> {
        let cluster = self.connection.origin().await?.cluster;
        let rows = self.connection.query(&self.sql.checkpoints, &[(&cluster, Type::INT8)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        if let Some(pipeline) = row.try_get::<_, Option<&str>>(3)? {
            let message = format!(
                "the cursor of pipeline {pipeline:?} was made in another database cluster: it says \
                 nothing about the rows here"
            );
            return Err(SourceError::new(SourceErrorKind::Unsafe, message)
                .with_hint("start its relay, which says what to do")
                .into());
        }
        let any: bool = row.try_get(0)?;
        let (marks, first_xid) = (row.try_get(1)?, row.try_get(2)?);
        let needs = Needs { marks, first_xid, matches_all: row.try_get(4)? };
        Ok(any.then_some(needs))
    }

    /// Without an index each look would go through the whole table.
    fn check_index(&self) -> Result<(), SourceError> {
        let (table, order) = (&self.table, Order::of(&self.table));
        if table.is_indexed(order.column) {
            return Ok(());
        }
        let (outbox, column, quoted) = (&self.outbox, table.name(order.column), table.quoted());
        let message = format!("{outbox} has no index on {column}: pruning would read all of it");
        Err(SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint(format!("run CREATE INDEX CONCURRENTLY ON {quoted} ({column})")))
    }

    fn foreign(&self) -> SourceError {
        let message = format!("{} is partitioned, and not by postrider", self.outbox);
        SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint("prune it with what partitioned it; remove [prune] from the configuration")
    }
}

#[async_trait]
impl Prune for PostgresPruner {
    async fn upkeep(&self) -> Result<u64, SourceError> {
        if self.layout != Layout::Partitioned {
            return Ok(0);
        }
        let added = partitions::add(self).await;
        added.map_err(|trouble| trouble.while_doing("create partitions ahead"))
    }

    async fn prune(
        &self,
        options: &PruneOptions,
        shutdown: &Shutdown,
    ) -> Result<Pruned, SourceError> {
        let pruned = self.prune_all(options, shutdown).await;
        pruned.map_err(|trouble| trouble.while_doing(DOING))
    }
}

impl Layout {
    fn read(row: &Row) -> Result<Self, tokio_postgres::Error> {
        let (is_partitioned, by, is_ours): (bool, Option<&str>, bool) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        Ok(match is_partitioned {
            false => Self::Plain,
            true if is_ours && by == Some("RANGE (created_at)") => Self::Partitioned,
            true => Self::Foreign,
        })
    }
}

/// One run.
pub(super) struct Run<'r> {
    pub(super) pruner: &'r PostgresPruner,
    pub(super) options: &'r PruneOptions,
    pub(super) shutdown: &'r Shutdown,
    /// What is older than this is past its retention.
    pub(super) cutoff: String,
    pub(super) needs: Needs,
}

/// What the pipelines need, as far as that is the same for all rows.
pub(super) struct Needs {
    /// A pipeline marks or removes rows.
    pub(super) marks: bool,
    /// Every cursor has all transactions before this one behind it.
    pub(super) first_xid: String,
    /// A pipeline publishes everything.
    pub(super) matches_all: bool,
}

impl Run<'_> {
    /// Makes this the only pruner until the transaction ends; false if there is another.
    pub(super) async fn lock(&self, tx: &mut Transaction<'_>) -> Result<bool, Trouble> {
        let rows = tx.query(&self.pruner.sql.lock, &[]).await?;
        one(&rows)
    }
}

/// The only value of the only row.
pub(super) fn one<'r, T>(rows: &'r [Row]) -> Result<T, Trouble>
where
    T: tokio_postgres::types::FromSql<'r>,
{
    match rows.first() {
        Some(row) => Ok(row.try_get(0)?),
        None => {
            let message = "the server gave no answer where there is always one";
            Err(SourceError::new(SourceErrorKind::Unsafe, message).into())
        }
    }
}
