//! The operator's view of the slots of an outbox in PostgreSQL.
//!
//! Whoever makes or drops a slot has the lease of the pipeline meanwhile, as a relay has it. So
//! there is no relay that reads the slot, none starts in between, and what is written to the
//! checkpoint is fenced in the same way.

use std::collections::BTreeMap;

use async_trait::async_trait;
use postrider::schema::TableName;

use super::admin::check_tables;
use super::checkpoint::{CheckpointQueries, First};
use super::connection::{Connection, streaming};
use super::error::Trouble;
use super::lease::{self, Claimant, Held, LeaseQueries, Taken};
use super::log::slot::{self, Recorded, Slot};
use super::log::{LogPosition, LogQueries, Names, application_name, log_only};
use super::queries::pipelines;
use super::table::{self, Table};
use super::{Location, PostgresOptions};
use crate::shutdown::Shutdown;
use crate::slots::{Created, Dropped, PipelineSlot, SlotStatus, Slots};
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::{LEASE_DEFAULT, Progress, Shard, StartAt};

/// Looks at the slots of one outbox in PostgreSQL, makes and drops them.
#[derive(Debug)]
pub struct PostgresSlots {
    connection: Connection,
    outbox: TableName,
    table: Table,
    /// The pipelines that have ever read the outbox.
    pipelines: String,
}

impl PostgresSlots {
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
        let connection = Connection::new(location.clone(), "slot");
        check_tables(&connection, &location, &outbox).await?;
        let table = table::read(&connection, &outbox, &columns).await;
        let table = table.map_err(|trouble| trouble.while_doing("open the outbox"))?;
        Ok(Self { connection, pipelines: pipelines(&outbox), outbox, table })
    }

    async fn show_all(&self) -> Result<Vec<PipelineSlot>, Trouble> {
        let mut shown = Vec::new();
        for row in self.connection.query(&self.pipelines, &[]).await? {
            let pipeline: String = row.try_get(0)?;
            let slot = look(&self.connection, &self.table, &self.outbox, &pipeline).await?;
            shown.push(PipelineSlot { pipeline, slot });
        }
        Ok(shown)
    }

    async fn make(&self, pipeline: &str, shutdown: &Shutdown) -> Result<Created, Trouble> {
        let (connection, sql) = (&self.connection, self.queries(pipeline));
        self.table.refuse_unsuitable(&self.outbox, Progress::Cursor)?;
        sql.refuse_level(connection).await?;
        sql.refuse_standbys(connection).await?;
        streaming(connection.location(), &application_name(pipeline)).await?;
        let held = self.take(pipeline, Entering::Yes).await?;
        let made = async {
            let made = self.make_held(&sql, (pipeline, &held), shutdown).await?;
            // Whoever does not leave this to the relay wants to write events that only the log has.
            sql.put_log_only(connection, pipeline).await?;
            Ok(made)
        };
        let made = made.await;
        self.give_back(&held).await;
        made
    }

    /// Makes a slot under the lease, unless there is one that can be relied on.
    async fn make_held(
        &self,
        sql: &LogQueries,
        (pipeline, held): (&str, &Held),
        shutdown: &Shutdown,
    ) -> Result<Created, Trouble> {
        let (connection, slot) = (&self.connection, sql.names().slot.clone());
        let Found { slot: there, recorded, publication } = find(connection, sql, pipeline).await?;
        let state = recorded.state(there.as_ref(), publication.as_deref());
        if let (None, Some(log)) = (state.why_of_no_use(), &recorded.log) {
            return Ok(Created { slot, lsn: log.lsn.to_string(), is_new: false });
        }
        if let (Some(why), Some(_), true) =
            (state.why_of_no_use(), &recorded.log, recorded.log_only)
        {
            return Err(log_only(pipeline, &slot, why).into());
        }
        let reader = application_name(pipeline);
        sql.drop_slot(connection, &reader, held).await?;
        let publication = match publication {
            Some(publication) => publication,
            None => sql.make_publication(connection).await?,
        };
        let written = async {
            let made = self.wait_for_slot(held, (&reader, &slot), shutdown).await?;
            sql.put(connection, (pipeline, held), Some(&made), Some(&publication)).await?;
            Ok(made.lsn.to_string())
        };
        match written.await {
            Ok(lsn) => Ok(Created { slot, lsn, is_new: true }),
            Err(trouble) => {
                // One that nobody knows would keep the server's log until a relay finds it. But
                // without the lease it is another's.
                sql.drop_slot(connection, &reader, held).await?;
                Err(trouble)
            }
        }
    }

    /// Makes a slot, and keeps the lease as long as it takes.
    async fn wait_for_slot(
        &self,
        held: &Held,
        (reader, slot): (&str, &str),
        shutdown: &Shutdown,
    ) -> Result<LogPosition, Trouble> {
        let location = self.connection.location().clone();
        let making = slot::make(location, reader.to_owned(), slot.to_owned());
        let mut making = std::pin::pin!(making);
        let mut shutdown = shutdown.clone();
        let mut renewal = tokio::time::interval(held.renew_every());
        loop {
            tokio::select! {
                made = &mut making => return Ok(made?),
                () = shutdown.requested() => {
                    let message = "stopped before the slot was made, which waits for transactions \
                                   that are open";
                    let error = SourceError::new(SourceErrorKind::Unavailable, message);
                    return Err(error.with_hint("look for them in pg_stat_activity").into());
                }
                _ = renewal.tick() => {
                    if !held.renew(&self.connection).await? {
                        return Err(held.lost().into());
                    }
                }
            }
        }
    }

    async fn remove(&self, pipeline: &str) -> Result<Dropped, Trouble> {
        let (connection, sql) = (&self.connection, self.queries(pipeline));
        let slot = sql.names().slot.clone();
        let Found { slot: there, recorded, .. } = find(connection, &sql, pipeline).await?;
        if there.is_none() && recorded == Recorded::default() {
            return Ok(Dropped { slot, was_there: false, log_only: false });
        }
        let held = self.take(pipeline, Entering::No).await?;
        let dropped = async {
            // What the checkpoint says stays until the slot is gone: should it be read by somebody
            // else, nothing is changed.
            sql.drop_slot(connection, &application_name(pipeline), &held).await?;
            sql.forget(connection, (pipeline, &held)).await
        };
        let dropped = dropped.await;
        self.give_back(&held).await;
        let was_there = there.is_some() || recorded.log.is_some();
        dropped.map(|()| Dropped { slot, was_there, log_only: recorded.log_only })
    }

    /// Takes the lease of the pipeline, unless a relay has it.
    async fn take(&self, pipeline: &str, entering: Entering) -> Result<Held, Trouble> {
        let connection = &self.connection;
        let origin = connection.origin().await?;
        let sql = LeaseQueries::new(&self.outbox, &origin);
        let claimant = Claimant {
            pipeline: pipeline.to_owned(),
            relay: "postrider slot".to_owned(),
            duration: LEASE_DEFAULT,
        };
        let mut tx = connection.begin().await?;
        sql.lock(&mut tx).await?;
        let (shard, progress) = (Shard::default(), Progress::Cursor);
        let checkpoints = CheckpointQueries::new(&self.table, &self.outbox, shard, &origin);
        if entering == Entering::Yes {
            checkpoints.enter(&mut tx, pipeline, 1, progress, None).await?;
        }
        let held = match lease::take(&mut tx, sql, claimant, Some(0)).await? {
            Taken::Held(held) => *held,
            // The transaction is rolled back: nothing was asked of that relay.
            Taken::By(owner) => return Err(in_use(pipeline, owner).into()),
        };
        if entering == Entering::Yes {
            // What it matches, its relay says.
            let (types, start) = (None, StartAt::Oldest);
            let first = First { pipeline, shard: 0, shards: 1, progress, types, start };
            checkpoints.create(&mut tx, first).await?;
        }
        tx.commit().await?;
        Ok(held)
    }

    /// What is not given back runs out.
    async fn give_back(&self, held: &Held) {
        if let Err(trouble) = held.release(&self.connection).await {
            let error = trouble.while_doing("give the lease back").details();
            tracing::debug!(error, "the lease could not be given back and runs out");
        }
    }

    fn queries(&self, pipeline: &str) -> LogQueries {
        queries(&self.connection, &self.table, &self.outbox, pipeline)
    }
}

#[async_trait]
impl Slots for PostgresSlots {
    async fn show(&self) -> Result<Vec<PipelineSlot>, SourceError> {
        self.show_all().await.map_err(|trouble| trouble.while_doing("look at the slots"))
    }

    async fn create(&self, pipeline: &str, shutdown: &Shutdown) -> Result<Created, SourceError> {
        let mut options = PostgresOptions::new(self.connection.location().clone());
        options.pipeline = pipeline.to_owned();
        if let Some(problem) = options.problems().into_iter().next() {
            return Err(SourceError::new(SourceErrorKind::Misconfigured, problem));
        }
        let made = self.make(pipeline, shutdown).await;
        made.map_err(|trouble| trouble.while_doing("make a slot"))
    }

    async fn refuse_in_use(&self, pipeline: &str) -> Result<(), SourceError> {
        let taken = async {
            self.give_back(&self.take(pipeline, Entering::No).await?).await;
            Ok(())
        };
        taken.await.map_err(|trouble: Trouble| trouble.while_doing("look who runs the pipeline"))
    }

    async fn drop_slot(&self, pipeline: &str) -> Result<Dropped, SourceError> {
        let dropped = self.remove(pipeline).await;
        dropped.map_err(|trouble| trouble.while_doing("drop the slot"))
    }
}

/// Whether the lease is taken to read the outbox, which makes a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entering {
    Yes,
    No,
}

/// A slot, and what there is to judge it by.
struct Found {
    slot: Option<Slot>,
    recorded: Recorded,
    publication: Option<String>,
}

/// How the slot of a pipeline stands.
pub(super) async fn look(
    connection: &Connection,
    table: &Table,
    outbox: &TableName,
    pipeline: &str,
) -> Result<SlotStatus, Trouble> {
    let sql = queries(connection, table, outbox, pipeline);
    let Found { slot, recorded, publication } = find(connection, &sql, pipeline).await?;
    let state = recorded.state(slot.as_ref(), publication.as_deref());
    let bytes = |of: fn(&Slot) -> Option<i64>| {
        // The server counts beyond a limit, too, and what was decoded ahead of what is flushed.
        slot.as_ref().and_then(of).map(|bytes| u64::try_from(bytes).unwrap_or(0))
    };
    Ok(SlotStatus {
        name: sql.names().slot.clone(),
        state,
        retained_bytes: bytes(|slot| slot.retained_bytes),
        safe_bytes: bytes(|slot| slot.safe_bytes),
        lag_bytes: bytes(|slot| slot.lag_bytes),
        active_pid: slot.as_ref().and_then(|slot| slot.active_pid),
        confirmed_flush_lsn: slot.as_ref().and_then(|slot| slot.confirmed).map(|at| at.to_string()),
        wal_status: slot.and_then(|slot| slot.status),
        checkpoint_lsn: recorded.log.map(|log| log.lsn.to_string()),
        log_only: recorded.log_only,
    })
}

/// Finds the slot first: what the checkpoint says is always ahead of what was confirmed, so read
/// in this order it is so for whoever looks while a relay runs.
async fn find(connection: &Connection, sql: &LogQueries, pipeline: &str) -> Result<Found, Trouble> {
    let mut slot = sql.find(connection).await?;
    let publication = sql.publication(connection).await?;
    let recorded = sql.get(connection, pipeline).await?;
    if slot.is_none() && recorded.log.is_some() {
        // It may have been made in between.
        slot = sql.find(connection).await?;
    }
    Ok(Found { slot, recorded, publication })
}

fn queries(
    connection: &Connection,
    table: &Table,
    outbox: &TableName,
    pipeline: &str,
) -> LogQueries {
    let names = Names::new(connection.location().database(), table, pipeline);
    LogQueries::new(table, outbox, names)
}

fn in_use(pipeline: &str, owner: Option<String>) -> SourceError {
    let owner = owner.unwrap_or_else(|| "a relay".to_owned());
    let message = format!("{owner} runs pipeline {pipeline:?}, and its slot is in its hands");
    SourceError::new(SourceErrorKind::Unsafe, message).with_hint(
        "stop the relay first; if it was killed, wait until its lease has run out, which \
         `postrider status` shows",
    )
}
