//! Single events in SQLite. A [`Place`] is a number: they are given in the order of commits.

use std::time::SystemTime;

use async_trait::async_trait;
use postrider::timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior};
use rusqlite::{params, params_from_iter};

use super::super::error::Trouble;
use super::super::frontier::parse_beyond;
use super::super::published::Published;
use super::super::queries;
use super::super::row::decode;
use super::{Shared, SqliteAdmin, shown, time};
use crate::admin::COUNT_MAX;
use crate::events::{
    Blocker, EventLife, EventRow, Events, Fate, InPipeline, LOOKED_AT_MAX, Place, ReadEvent,
    SetAside, Standing, Stored, Wanted, Written,
};
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::Progress;

/// Columns of an event; what a statement adds comes behind them.
const MORE: usize = 14;

#[async_trait]
impl Events for SqliteAdmin {
    async fn event(&self, event_id: &str, payload: bool) -> Result<Option<EventLife>, SourceError> {
        let event_id = event_id.to_owned();
        self.run("look for an event", move |conn, shared| life(conn, shared, &event_id, payload))
            .await
    }

    async fn newest(&self, wanted: &Wanted, limit: usize) -> Result<Written, SourceError> {
        let wanted = wanted.clone();
        self.run("read the newest events", move |conn, shared| {
            let snapshot = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
            let is_narrow = Wanted { payload: false, ..wanted.clone() } != Wanted::default();
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let looked_at = if is_narrow { LOOKED_AT_MAX as i64 } else { limit };
            let mut values = vec![Value::from(looked_at), Value::from(limit)];
            values.extend(parts(&wanted));
            values.push(Value::from(wanted.payload));
            let mut events = rows(&snapshot, &shared.events.newest, values, event)?;
            events.reverse();
            let last: i64 = snapshot.query_row(&shared.events.last, [], |row| row.get(0))?;
            Ok(Written { events, next: Place(last.to_string()) })
        })
        .await
    }

    async fn written(
        &self,
        since: &Place,
        wanted: &Wanted,
        limit: usize,
    ) -> Result<Written, SourceError> {
        let after: i64 = since.0.parse().map_err(|_| {
            SourceError::new(SourceErrorKind::Misconfigured, "this is no place in this outbox")
        })?;
        let wanted = wanted.clone();
        self.run("read new events", move |conn, shared| {
            let snapshot = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
            let limit_value = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut values = vec![Value::from(after), Value::from(limit_value)];
            values.extend(parts(&wanted));
            values.push(Value::from(wanted.payload));
            let events = rows(&snapshot, &shared.events.written, values, event)?;
            // What does not match need not be looked at again.
            let next = match events.last().filter(|_| events.len() >= limit) {
                Some(last) => last.position,
                None => snapshot.query_row(&shared.events.last, [], |row| row.get(0))?,
            };
            Ok(Written { events, next: Place(next.max(after).to_string()) })
        })
        .await
    }

    async fn stored(
        &self,
        wanted: &Wanted,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Stored>, SourceError> {
        let wanted = wanted.clone();
        self.run("look through the outbox", move |conn, shared| {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let mut values = vec![Value::from(after), Value::from(limit)];
            values.extend(parts(&wanted));
            let stored = |row: &Row<'_>| {
                Ok(Stored {
                    position: row.get(0)?,
                    event_id: shown(row, 1)?,
                    payload_bytes: row.get::<_, i64>(2)? as u64,
                    created_at: time(row, 3)?,
                })
            };
            Ok(rows(conn, &shared.events.stored, values, stored)?)
        })
        .await
    }

    async fn fates(
        &self,
        pipeline: &str,
        aggregate_types: &[String],
        stored: &[Stored],
    ) -> Result<Vec<(i64, Fate)>, SourceError> {
        let (numbers, pipeline) = (numbers(stored), pipeline.to_owned());
        let types = serde_json::Value::from(aggregate_types).to_string();
        self.run("look for events", move |conn, shared| {
            let snapshot = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
            let checkpoints = checkpoints(&snapshot, shared)?;
            let checkpoint = checkpoints.iter().find(|it| it.pipeline == pipeline);
            let values = vec![numbers.into(), pipeline.clone().into(), types.into()];
            let fate = |row: &Row<'_>| {
                let (seq, is_its_own) = (row.get(0)?, row.get(2)?);
                let state: Option<String> = row.get(1)?;
                let (aggregate_type, marked_at) = (shown(row, 3)?, shown(row, 4)?);
                let marked_at = Some(marked_at.as_str()).filter(|marked_at| !marked_at.is_empty());
                let is_settled =
                    checkpoint.is_some_and(|it| it.has_settled(seq, marked_at.is_some()));
                let is_published =
                    checkpoint.is_some_and(|it| it.has_published(seq, &aggregate_type, marked_at));
                Ok((seq, Fate::of(state.as_deref(), is_its_own, is_settled, is_published)))
            };
            Ok(rows(&snapshot, &shared.events.fates, values, fate)?)
        })
        .await
    }

    async fn now(&self) -> Result<SystemTime, SourceError> {
        self.run("read the clock", |conn, _| {
            let now = conn.query_row(queries::NOW, [], |row| time(row, 0))?;
            Ok(now.unwrap_or_else(SystemTime::now))
        })
        .await
    }

    async fn read(&self, stored: &[Stored]) -> Result<Vec<ReadEvent>, SourceError> {
        let numbers = numbers(stored);
        self.run("read events", move |conn, shared| {
            let read = |row: &Row<'_>| {
                let decoded = decode(row)?;
                Ok(ReadEvent { position: decoded.seq, event: decoded.event })
            };
            Ok(rows(conn, &shared.events.read, vec![Value::from(numbers)], read)?)
        })
        .await
    }
}

fn life(
    conn: &Connection,
    shared: &Shared,
    event_id: &str,
    payload: bool,
) -> Result<Option<EventLife>, Trouble> {
    let snapshot = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
    let sql = &shared.events;
    let found = snapshot
        .query_row(&sql.row, params![event_id, payload], |row| Ok((event(row)?, time(row, MORE)?)))
        .optional()?;
    let aside = snapshot
        .prepare(&sql.set_aside)?
        .query_map(params![event_id, payload], |row| {
            Ok((row.get::<_, String>(MORE)?, set_aside(row, MORE + 1)?, event(row)?))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let (event, marked_at, in_outbox) = match (found, aside.first()) {
        (Some((event, marked_at)), _) => (event, marked_at, true),
        (None, Some((.., event))) => (event.clone(), None, false),
        (None, None) => return Ok(None),
    };
    let mut pipelines = Vec::new();
    for checkpoint in checkpoints(&snapshot, shared)? {
        let at_its_own = aside.iter().find(|(other, ..)| *other == checkpoint.pipeline);
        let standing = match at_its_own {
            Some((_, set_aside, _)) => Standing::SetAside(set_aside.clone()),
            None if !in_outbox => continue,
            None if checkpoint.has_settled(event.position, marked_at.is_some()) => {
                Standing::Settled { at: marked_at.filter(|_| !checkpoint.is_cursor) }
            }
            None => Standing::Waiting,
        };
        let pipeline = checkpoint.pipeline;
        let EventRow { aggregate_type, aggregate_id, position, .. } = &event;
        let ahead: i64 = snapshot.query_row(
            &sql.ahead,
            params![pipeline, aggregate_type, aggregate_id, position, COUNT_MAX as i64],
            |row| row.get(0),
        )?;
        let behind = snapshot
            .query_row(
                &sql.first_ahead,
                params![pipeline, aggregate_type, aggregate_id, position],
                |row| Ok(Blocker { event_id: shown(row, 0)?, set_aside: set_aside(row, 1)? }),
            )
            .optional()?;
        pipelines.push(InPipeline { pipeline, standing, ahead: ahead as u64, behind });
    }
    Ok(Some(EventLife { event, in_outbox, pipelines }))
}

/// How far a pipeline is.
pub(super) struct Checkpoint {
    pub(super) pipeline: String,
    pub(super) is_cursor: bool,
    pub(super) position: i64,
    beyond: String,
    published: Published,
    /// It began with what was not marked.
    starts_unpublished: bool,
    began_at: Option<String>,
}

impl Checkpoint {
    pub(super) fn has_settled(&self, seq: i64, is_marked: bool) -> bool {
        if !self.is_cursor {
            return is_marked;
        }
        let mut beyond = parse_beyond(&self.beyond).into_iter();
        seq <= self.position || beyond.any(|settled| (settled.first..=settled.last).contains(&seq))
    }
}

impl Checkpoint {
    /// Whether it was this pipeline that published a row, which is not set aside.
    fn has_published(&self, seq: i64, aggregate_type: &str, marked_at: Option<&str>) -> bool {
        let is_before =
            |marked_at: &str| self.began_at.as_deref().is_some_and(|began_at| marked_at < began_at);
        if !self.is_cursor {
            return marked_at.is_some_and(|marked_at| !is_before(marked_at));
        }
        let is_another = self.starts_unpublished && marked_at.is_some_and(is_before);
        self.has_settled(seq, false)
            && !is_another
            && self.published.is_known_to_match(seq, aggregate_type).unwrap_or(true)
    }
}

pub(super) fn checkpoints(conn: &Connection, shared: &Shared) -> rusqlite::Result<Vec<Checkpoint>> {
    rows(conn, &shared.events.checkpoints, Vec::new(), |row| {
        Ok(Checkpoint {
            pipeline: row.get(0)?,
            is_cursor: row.get::<_, String>(1)? == Progress::Cursor.as_str(),
            position: row.get(2)?,
            beyond: row.get(3)?,
            published: Published::read(row, 4)?,
            starts_unpublished: row.get::<_, Option<String>>(7)?.is_some(),
            began_at: row.get(8)?,
        })
    })
}

/// The numbers of events as JSON.
fn numbers(stored: &[Stored]) -> String {
    let numbers: Vec<i64> = stored.iter().map(|stored| stored.position).collect();
    serde_json::Value::from(numbers).to_string()
}

/// What is wanted, as the statements take it.
fn parts(wanted: &Wanted) -> [Value; 5] {
    let Wanted { event_type, aggregate_type, key, since, until, .. } = wanted;
    let of_key = key.as_ref().map(|key| key.aggregate_type.clone());
    let parts = [
        event_type.clone(),
        of_key.or_else(|| aggregate_type.clone()),
        key.as_ref().map(|key| key.aggregate_id.clone()),
        since.map(timestamp::to_text),
        until.map(timestamp::to_text),
    ];
    parts.map(Value::from)
}

fn rows<T>(
    conn: &Connection,
    sql: &str,
    values: Vec<Value>,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    conn.prepare_cached(sql)?.query_map(params_from_iter(values), read)?.collect()
}

fn event(row: &Row<'_>) -> rusqlite::Result<EventRow> {
    Ok(EventRow {
        position: row.get(0)?,
        transaction: None,
        event_id: shown(row, 1)?,
        aggregate_type: shown(row, 2)?,
        aggregate_id: shown(row, 3)?,
        event_type: shown(row, 4)?,
        event_version: row.get(5)?,
        content_type: shown(row, 6)?,
        headers: shown(row, 7)?,
        topic: Some(shown(row, 8)?).filter(|topic| !topic.is_empty()),
        occurred_at: time(row, 9)?,
        created_at: time(row, 10)?,
        deliver_after: time(row, 11)?,
        payload_bytes: row.get::<_, i64>(12)? as u64,
        payload: row.get(13)?,
    })
}

/// Why an event is set aside, from this column on.
pub(super) fn set_aside(row: &Row<'_>, from: usize) -> rusqlite::Result<SetAside> {
    let text = |index| -> rusqlite::Result<Option<String>> {
        Ok(Some(shown(row, index)?).filter(|text| !text.is_empty()))
    };
    Ok(SetAside {
        state: shown(row, from)?,
        since: time(row, from + 1)?.unwrap_or(std::time::SystemTime::UNIX_EPOCH),
        due_at: time(row, from + 2)?,
        attempts: u32::try_from(row.get::<_, i64>(from + 3)?).unwrap_or(0),
        kind: text(from + 4)?,
        error: text(from + 5)?,
    })
}
