//! The operator's view of an outbox in PostgreSQL.
//!
//! Changes are made a page at a time, each in a transaction of its own that holds the same lock
//! as a relay that settles: neither sees half of what the other does, and each page leaves every
//! key so that it cannot be forgotten ([`mend`](super::queries::mend)).

mod events;
mod keys;
mod pauses;
mod reconcile;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use async_trait::async_trait;
use postrider::Key;
use postrider::schema::TableName;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::Location;
use super::connection::{Connection, Param, Transaction};
use super::error::{Trouble, not_migrated};
use super::queries::{AdminQueries, EventQueries, MISSING_TABLES, ReconcileQueries, StopQueries};
use super::slots;
use super::table::{self, Table};
use crate::admin::{Admin, COUNT_MAX, DeadLetter, DeadLetterDetail, OutboxStatus, Selection};
use crate::pauses::{Pause, PausedKeys};
use crate::slots::SlotState;
use crate::source::SourceError;

/// How many dead letters are changed in one transaction.
const PAGE_EVENTS: i64 = 500;
/// How often a page is tried that got into another transaction's way.
const TRIES_MAX: u32 = 5;

/// Looks at one outbox in PostgreSQL, and deals with its dead letters.
#[derive(Debug)]
pub struct PostgresAdmin {
    connection: Connection,
    outbox: TableName,
    table: Table,
    sql: AdminQueries,
    events: EventQueries,
    stops: StopQueries,
    reconcile: ReconcileQueries,
}

impl PostgresAdmin {
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
        let connection = Connection::new(location.clone(), "admin");
        let doing = "open the outbox";
        check_tables(&connection, &location, &outbox).await?;
        let table = table::read(&connection, &outbox, &columns).await;
        let table = table.map_err(|trouble| trouble.while_doing(doing))?;
        let sql = AdminQueries::new(table.clone(), &outbox);
        let events = EventQueries::new(&table, &outbox);
        let stops = StopQueries::new(&outbox);
        let reconcile = ReconcileQueries::new(&table, &outbox);
        Ok(Self { connection, outbox, table, sql, events, stops, reconcile })
    }

    async fn look(&self) -> Result<OutboxStatus, Trouble> {
        let Self { connection, outbox, table, sql, stops, .. } = self;
        let mut status = status::status(connection, sql, outbox).await?;
        let pauses = pauses::read(&connection.query(&stops.pauses, &[]).await?)?;
        for pipeline in &mut status.pipelines {
            pipeline.paused = Pause::of_pipeline(&pauses, &pipeline.name).cloned();
            pipeline.paused_keys = PausedKeys::of(&pauses, &pipeline.name);
            if pipeline.paused_keys.count > 0 {
                let of: [Param<'_>; 1] = [(&pipeline.name, Type::TEXT)];
                let rows = connection.query(&stops.paused_waiting, &of).await?;
                let waiting = rows.first().map(|row| row.try_get::<_, i64>(0)).transpose()?;
                pipeline.paused_keys.waiting = waiting.unwrap_or(0).unsigned_abs();
            }
        }
        // Slots are of no snapshot: the server shows them as they are at any moment.
        for pipeline in &mut status.pipelines {
            let slot = slots::look(connection, table, outbox, &pipeline.name).await?;
            pipeline.slot = Some(slot).filter(|slot| slot.state != SlotState::None);
        }
        Ok(status)
    }

    /// Does something to every dead letter that matches, and mends their keys.
    async fn change(&self, sql: &str, selection: &Selection) -> Result<u64, Trouble> {
        let (mut after, mut changed, mut tries) = (0, 0, 0);
        loop {
            match self.change_page(sql, selection, after).await {
                Ok(page) => {
                    changed += page.changed;
                    tries = 0;
                    match page.last {
                        Some(last) => after = last,
                        None => return Ok(changed),
                    }
                }
                Err(trouble)
                    if trouble.is(&SqlState::T_R_DEADLOCK_DETECTED) && tries < TRIES_MAX =>
                {
                    tries += 1;
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn change_page(
        &self,
        sql: &str,
        selection: &Selection,
        after: i64,
    ) -> Result<Page, Trouble> {
        let mut tx = self.connection.begin().await?;
        let parts = Parts::of(selection);
        let mut params = parts.params();
        params.extend([(&after as _, Type::INT8), (&PAGE_EVENTS as _, Type::INT8)]);
        let mut ordinals = Vec::new();
        let mut pipelines = BTreeSet::new();
        for row in tx.query(&self.sql.selected, &params).await? {
            ordinals.push(row.try_get::<_, i64>(0)?);
            pipelines.insert(row.try_get::<_, String>(1)?);
        }
        // In order, so that two operators do not wait for each other.
        for pipeline in &pipelines {
            tx.query(&self.sql.lock_failures, &[(pipeline, Type::TEXT)]).await?;
        }
        let rows = tx.query(sql, &[(&ordinals, Type::INT8_ARRAY)]).await?;
        let mut touched: BTreeMap<String, BTreeSet<Key>> = BTreeMap::new();
        for row in &rows {
            if let Some((pipeline, key)) = blocking_key(row)? {
                touched.entry(pipeline).or_default().insert(key);
            }
        }
        for (pipeline, keys) in touched {
            self.mend(&mut tx, &pipeline, keys).await?;
        }
        tx.commit().await?;
        let is_last = ordinals.len() < PAGE_EVENTS as usize;
        let last = ordinals.last().copied().filter(|_| !is_last);
        Ok(Page { changed: rows.len() as u64, last })
    }

    /// The relay learns that a key is free when it next settles something of that key.
    async fn mend(
        &self,
        tx: &mut Transaction<'_>,
        pipeline: &String,
        keys: BTreeSet<Key>,
    ) -> Result<(), Trouble> {
        let (types, ids): (Vec<String>, Vec<String>) =
            keys.into_iter().map(|key| (key.aggregate_type, key.aggregate_id)).unzip();
        let params: [Param<'_>; 3] =
            [(pipeline, Type::TEXT), (&types, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)];
        tx.query(&self.sql.mend, &params).await?;
        Ok(())
    }

    /// What one of the statements that list dead letters answers.
    async fn listed(
        &self,
        sql: &str,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<Row>, Trouble> {
        let parts = Parts::of(selection);
        let after = i64::try_from(after.unwrap_or(0)).unwrap_or(i64::MAX);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let count_max = COUNT_MAX as i64;
        let mut params = parts.params();
        params.extend([
            (&after as _, Type::INT8),
            (&limit as _, Type::INT8),
            (&count_max as _, Type::INT8),
        ]);
        self.connection.query(sql, &params).await
    }

    async fn letters(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, Trouble> {
        let rows = self.listed(&self.sql.letters, selection, after, limit).await?;
        rows.iter().map(|row| Ok(letter(row)?)).collect()
    }

    async fn details(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetterDetail>, Trouble> {
        let rows = self.listed(&self.sql.details, selection, after, limit).await?;
        rows.iter().map(|row| Ok(detail(row)?)).collect()
    }
}

#[async_trait]
impl Admin for PostgresAdmin {
    async fn status(&self) -> Result<OutboxStatus, SourceError> {
        let status = self.look().await;
        status.map_err(|trouble| trouble.while_doing("read the status"))
    }

    async fn dead_letters(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, SourceError> {
        let letters = self.letters(selection, after, limit).await;
        letters.map_err(|trouble| trouble.while_doing("list dead letters"))
    }

    async fn dead_letter(&self, event_id: &str) -> Result<Option<DeadLetterDetail>, SourceError> {
        let selection = Selection { event_ids: vec![event_id.to_owned()], ..Selection::default() };
        let details = self.details(&selection, None, 1).await;
        let details = details.map_err(|trouble| trouble.while_doing("read a dead letter"));
        Ok(details?.pop())
    }

    async fn dead_letter_details(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetterDetail>, SourceError> {
        let details = self.details(selection, after, limit).await;
        details.map_err(|trouble| trouble.while_doing("read dead letters"))
    }

    async fn retry(&self, selection: &Selection) -> Result<u64, SourceError> {
        let changed = self.change(&self.sql.retry, selection).await;
        changed.map_err(|trouble| trouble.while_doing("retry dead letters"))
    }

    async fn discard(&self, selection: &Selection) -> Result<u64, SourceError> {
        let changed = self.change(&self.sql.discard, selection).await;
        changed.map_err(|trouble| trouble.while_doing("discard dead letters"))
    }
}

/// Refuses a database without the tables beside the outbox.
pub(super) async fn check_tables(
    connection: &Connection,
    location: &Location,
    outbox: &TableName,
) -> Result<(), SourceError> {
    let doing = "read the schema";
    let tables = [
        outbox.failures(),
        outbox.checkpoints(),
        outbox.leases(),
        outbox.claims(),
        outbox.pauses(),
    ];
    let names = tables.map(|table| table.quoted()).to_vec();
    let missing = connection.query(MISSING_TABLES, &[(&names, Type::TEXT_ARRAY)]).await;
    let missing = missing.map_err(|trouble| trouble.while_doing(doing))?;
    let Some(row) = missing.first() else { return Ok(()) };
    let name: String = row.try_get(0).map_err(|err| Trouble::from(err).while_doing(doing))?;
    Err(not_migrated(location, outbox, format!("{location} has no table {name}")))
}

struct Page {
    changed: u64,
    /// Where to go on, unless this was the last page.
    last: Option<i64>,
}

/// A selection as the statements take it.
struct Parts<'s> {
    pipeline: Option<&'s str>,
    ids: Option<&'s [String]>,
    aggregate_type: Option<&'s str>,
    aggregate_id: Option<&'s str>,
    selection: &'s Selection,
}

impl<'s> Parts<'s> {
    fn of(selection: &'s Selection) -> Self {
        let ids = selection.event_ids.as_slice();
        let key = selection.key.as_ref();
        Self {
            pipeline: selection.pipeline.as_deref(),
            ids: Some(ids).filter(|ids| !ids.is_empty()),
            aggregate_type: key.map(|key| key.aggregate_type.as_str()),
            aggregate_id: key.map(|key| key.aggregate_id.as_str()),
            selection,
        }
    }

    fn params(&self) -> Vec<Param<'_>> {
        let Selection { event_type, kind, error, since, until, .. } = self.selection;
        vec![
            (&self.pipeline, Type::TEXT),
            (&self.ids, Type::TEXT_ARRAY),
            (&self.aggregate_type, Type::TEXT),
            (&self.aggregate_id, Type::TEXT),
            (event_type, Type::TEXT),
            (kind, Type::TEXT),
            (error, Type::TEXT),
            (since, Type::TIMESTAMPTZ),
            (until, Type::TIMESTAMPTZ),
        ]
    }
}

/// Pipeline and key of a dead letter that was changed, if it blocks that key.
fn blocking_key(row: &Row) -> Result<Option<(String, Key)>, tokio_postgres::Error> {
    let (aggregate_type, aggregate_id): (Option<String>, Option<String>) =
        (row.try_get(1)?, row.try_get(2)?);
    let (Some(aggregate_type), Some(aggregate_id)) = (aggregate_type, aggregate_id) else {
        return Ok(None);
    };
    let blocks: bool = row.try_get(3)?;
    let pipeline = row.try_get(0)?;
    Ok(blocks.then_some((pipeline, Key { aggregate_type, aggregate_id })))
}

fn detail(row: &Row) -> Result<DeadLetterDetail, tokio_postgres::Error> {
    Ok(DeadLetterDetail {
        letter: letter(row)?,
        content_type: row.try_get(11)?,
        headers: row.try_get(12)?,
        occurred_at: row.try_get::<_, Option<String>>(13)?.unwrap_or_default(),
        payload: row.try_get::<_, Option<Vec<u8>>>(14)?.unwrap_or_default(),
    })
}

fn letter(row: &Row) -> Result<DeadLetter, tokio_postgres::Error> {
    let count = |index: usize| row.try_get::<_, i64>(index).map(|count| count as u64);
    Ok(DeadLetter {
        cursor: count(0)?,
        pipeline: row.try_get(1)?,
        event_id: row.try_get(2)?,
        key: Key { aggregate_type: row.try_get(3)?, aggregate_id: row.try_get(4)? },
        event_type: row.try_get(5)?,
        kind: row.try_get(6)?,
        error: row.try_get(7)?,
        attempts: u32::try_from(row.try_get::<_, i32>(8)?).unwrap_or(0),
        parked_at: row.try_get::<_, SystemTime>(9)?,
        queued_behind: count(10)?,
    })
}
