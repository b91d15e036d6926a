//! The operator's view of an outbox in SQLite.
//!
//! Every call opens the database for itself and closes it again. Changes are made a page at a
//! time, so that writers and relays get in between; each page leaves every key so that it cannot
//! be forgotten ([`Keys::mend`]).

mod events;
mod keys;
mod pauses;
mod reconcile;
mod status;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use postrider::schema::TableName;
use postrider::{Key, timestamp};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params, params_from_iter};

use super::error::Trouble;
use super::keys::Keys;
use super::queries::{self, AdminQueries, EventQueries, Queries, ReconcileQueries, StopQueries};
use super::{Location, open};
use crate::admin::{Admin, COUNT_MAX, DeadLetter, DeadLetterDetail, OutboxStatus, Selection};
use crate::source::SourceError;

/// How many dead letters are changed in one transaction.
const PAGE_EVENTS: u32 = 500;

/// Looks at one outbox in SQLite, and deals with its dead letters.
#[derive(Clone, Debug)]
pub struct SqliteAdmin {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    location: Location,
    table: TableName,
    sql: AdminQueries,
    events: EventQueries,
    stops: StopQueries,
    reconcile: ReconcileQueries,
    keys: Queries,
}

impl SqliteAdmin {
    /// Checks that the database is there and has the tables of an outbox.
    ///
    /// # Errors
    ///
    /// The same as those of [`SqliteOptions::connect`](super::SqliteOptions::connect).
    pub async fn connect(location: Location, table: TableName) -> Result<Self, SourceError> {
        let sql = AdminQueries::new(&table);
        let (events, stops) = (EventQueries::new(&table), StopQueries::new(&table));
        let keys = Queries::new(&table, false);
        let reconcile = ReconcileQueries::new(&table);
        let shared = Shared { location, table, sql, events, stops, reconcile, keys };
        let admin = Self { shared: Arc::new(shared) };
        admin.run("open the outbox", |_, _| Ok(())).await?;
        Ok(admin)
    }

    async fn run<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection, &Shared) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, SourceError> {
        let shared = Arc::clone(&self.shared);
        let (location, table) = (shared.location.clone(), shared.table.clone());
        open::visit(location, table, doing, move |conn| work(conn, &shared)).await
    }

    /// Does something to every dead letter that matches, and mends their keys.
    async fn change(
        &self,
        doing: &'static str,
        selection: &Selection,
        change: impl Fn(&Keys<'_>, &Shared, i64, &str) -> rusqlite::Result<()> + Send + 'static,
    ) -> Result<u64, SourceError> {
        let selection = selection.clone();
        self.run(doing, move |conn, shared| {
            let (mut after, mut changed) = (0, 0);
            loop {
                let page = change_page(conn, shared, &selection, after, &change)?;
                changed += page.changed as u64;
                match page.last {
                    Some(last) => after = last,
                    None => return Ok(changed),
                }
            }
        })
        .await
    }
}

#[async_trait]
impl Admin for SqliteAdmin {
    async fn status(&self) -> Result<OutboxStatus, SourceError> {
        self.run("read the status", |conn, shared| Ok(status::status(conn, shared)?)).await
    }

    async fn dead_letters(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, SourceError> {
        let selection = selection.clone();
        self.run("list dead letters", move |conn, shared| {
            let sql = shared.sql.letters(&selection, false);
            Ok(listed(conn, &sql, &selection, after, limit, letter)?)
        })
        .await
    }

    async fn dead_letter(&self, event_id: &str) -> Result<Option<DeadLetterDetail>, SourceError> {
        let selection = Selection { event_ids: vec![event_id.to_owned()], ..Selection::default() };
        Ok(self.dead_letter_details(&selection, None, 1).await?.pop())
    }

    async fn dead_letter_details(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetterDetail>, SourceError> {
        let selection = selection.clone();
        self.run("read dead letters", move |conn, shared| {
            let sql = shared.sql.letters(&selection, true);
            let detail = |row: &Row<'_>| {
                Ok(DeadLetterDetail {
                    letter: letter(row)?,
                    content_type: shown(row, 11)?,
                    headers: shown(row, 12)?,
                    occurred_at: shown(row, 13)?,
                    payload: row.get::<_, Option<Vec<u8>>>(14)?.unwrap_or_default(),
                })
            };
            Ok(listed(conn, &sql, &selection, after, limit, detail)?)
        })
        .await
    }

    async fn retry(&self, selection: &Selection) -> Result<u64, SourceError> {
        self.change("retry dead letters", selection, |keys, shared, seq, now| {
            keys.conn
                .prepare_cached(&shared.sql.retry)?
                .execute(params![keys.pipeline, seq, now])
                .map(drop)
        })
        .await
    }

    async fn discard(&self, selection: &Selection) -> Result<u64, SourceError> {
        self.change("discard dead letters", selection, |keys, shared, seq, now| {
            keys.conn
                .prepare_cached(&shared.sql.discard)?
                .execute(params![keys.pipeline, seq, now])
                .map(drop)
        })
        .await
    }
}

struct Page {
    changed: usize,
    /// Where to go on, unless this was the last page.
    last: Option<i64>,
}

fn change_page(
    conn: &Connection,
    shared: &Shared,
    selection: &Selection,
    after: i64,
    change: impl Fn(&Keys<'_>, &Shared, i64, &str) -> rusqlite::Result<()>,
) -> Result<Page, Trouble> {
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
    let now: String = tx.query_row(queries::NOW, [], |row| row.get(0))?;
    let page = selected(&tx, shared, selection, after)?;
    let mut touched: BTreeSet<(String, Key)> = BTreeSet::new();
    for (_, pipeline, seq) in &page {
        let keys = Keys { conn: &tx, sql: &shared.keys, pipeline };
        touched.extend(keys.blocking_key(*seq)?.map(|key| (pipeline.clone(), key)));
        change(&keys, shared, *seq, &now)?;
    }
    for (pipeline, key) in touched {
        // The relay learns that a key is free when it next settles something of that key.
        let keys = Keys { conn: &tx, sql: &shared.keys, pipeline: &pipeline };
        keys.mend(BTreeSet::from([key]), &now)?;
    }
    tx.commit()?;
    let last = page.last().filter(|_| page.len() == PAGE_EVENTS as usize).map(|(rowid, ..)| *rowid);
    Ok(Page { changed: page.len(), last })
}

/// Row id, pipeline and number of the next dead letters that match.
fn selected(
    conn: &Connection,
    shared: &Shared,
    selection: &Selection,
    after: i64,
) -> rusqlite::Result<Vec<(i64, String, i64)>> {
    let mut values = parts(selection);
    values.extend([Value::from(after), Value::from(PAGE_EVENTS)]);
    let mut statement = conn.prepare_cached(&shared.sql.selected(selection))?;
    let page = statement
        .query_map(params_from_iter(values), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    page.collect()
}

/// A selection as the statements take it.
fn parts(selection: &Selection) -> Vec<Value> {
    let Selection { pipeline, event_ids, key, event_type, kind, error, since, until } = selection;
    let ids =
        (!event_ids.is_empty()).then(|| serde_json::Value::from(event_ids.clone()).to_string());
    let parts = [
        pipeline.clone(),
        ids,
        key.as_ref().map(|key| key.aggregate_type.clone()),
        key.as_ref().map(|key| key.aggregate_id.clone()),
        event_type.clone(),
        kind.clone(),
        error.clone(),
        since.map(timestamp::to_text),
        until.map(timestamp::to_text),
    ];
    parts.into_iter().map(Value::from).collect()
}

/// What a statement that lists dead letters answers.
fn listed<T>(
    conn: &Connection,
    sql: &str,
    selection: &Selection,
    after: Option<u64>,
    limit: usize,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    let after = i64::try_from(after.unwrap_or(0)).unwrap_or(i64::MAX);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut values = parts(selection);
    values.extend([after, limit, COUNT_MAX as i64].map(Value::from));
    let mut statement = conn.prepare_cached(sql)?;
    statement.query_map(params_from_iter(values), read)?.collect()
}

fn letter(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    Ok(DeadLetter {
        cursor: row.get::<_, i64>(0)? as u64,
        pipeline: row.get(1)?,
        event_id: shown(row, 2)?,
        key: Key { aggregate_type: shown(row, 3)?, aggregate_id: shown(row, 4)? },
        event_type: shown(row, 5)?,
        kind: shown(row, 6)?,
        error: shown(row, 7)?,
        attempts: u32::try_from(row.get::<_, i64>(8)?).unwrap_or(0),
        parked_at: time(row, 9)?.unwrap_or(SystemTime::UNIX_EPOCH),
        queued_behind: row.get::<_, i64>(10)? as u64,
    })
}

/// A value as an operator can read it, whatever it is.
pub(super) fn shown(row: &Row<'_>, index: usize) -> rusqlite::Result<String> {
    Ok(match row.get_ref(index)? {
        ValueRef::Null => String::new(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    })
}

fn time(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<SystemTime>> {
    let text: Option<String> = row.get(index).unwrap_or_default();
    Ok(text.and_then(|text| timestamp::from_text(&text).ok()))
}
