//! Single events in PostgreSQL.
//!
//! A [`Place`] is the snapshot up to which everything was seen; while more of one stretch is to
//! come than was asked for, also where that stretch ends, and the number of the last row. So an
//! event is seen when its transaction is, whatever its number: see
//! [`snapshot`](super::super::snapshot).

use std::time::SystemTime;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::super::connection::Param;
use super::super::error::Trouble;
use super::super::queries::{CLOCK, FEW_ROWS, ONE_SNAPSHOT, SNAPSHOT};
use super::super::row::Decoder;
use super::PostgresAdmin;
use crate::admin::COUNT_MAX;
use crate::events::{
    Blocker, EventLife, EventRow, Events, Fate, InPipeline, LOOKED_AT_MAX, Place, ReadEvent,
    SetAside, Standing, Stored, Wanted, Written,
};
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::Progress;

/// Columns of an event; what a statement adds comes behind them.
const MORE: usize = 15;

#[async_trait]
impl Events for PostgresAdmin {
    async fn event(&self, event_id: &str, payload: bool) -> Result<Option<EventLife>, SourceError> {
        match self.life(event_id, payload).await {
            // What cannot be an id of this table is none.
            Err(trouble)
                if trouble.is(&SqlState::INVALID_TEXT_REPRESENTATION)
                    || trouble.is(&SqlState::NUMERIC_VALUE_OUT_OF_RANGE) =>
            {
                Ok(None)
            }
            life => life.map_err(|trouble| trouble.while_doing("look for an event")),
        }
    }

    async fn newest(&self, wanted: &Wanted, limit: usize) -> Result<Written, SourceError> {
        let newest = self.newest_rows(wanted, limit).await;
        newest.map_err(|trouble| trouble.while_doing("read the newest events"))
    }

    async fn written(
        &self,
        since: &Place,
        wanted: &Wanted,
        limit: usize,
    ) -> Result<Written, SourceError> {
        let doing = "read new events";
        let place = Since::parse(since)?;
        let was_within = matches!(place, Since::Within { .. });
        let written = self.written_rows(place, wanted, limit).await;
        let written = written.map_err(|trouble| trouble.while_doing(doing))?;
        if !was_within || !written.events.is_empty() {
            return Ok(written);
        }
        // The stretch ended with the page before. More may have come since.
        let next = self.written_rows(Since::parse(&written.next)?, wanted, limit).await;
        next.map_err(|trouble| trouble.while_doing(doing))
    }

    async fn stored(
        &self,
        wanted: &Wanted,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Stored>, SourceError> {
        let parts = Parts::of(wanted);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut params: Vec<Param<'_>> = vec![(&after, Type::INT8), (&limit, Type::INT8)];
        params.extend(parts.params());
        let rows = self.connection.query(&self.events.stored, &params).await;
        let stored = |row: &Row| {
            Ok(Stored {
                position: row.try_get(0)?,
                event_id: row.try_get::<_, Option<String>>(1)?.unwrap_or_default(),
                payload_bytes: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0),
                created_at: row.try_get(3)?,
            })
        };
        let stored = rows.and_then(|rows| rows.iter().map(stored).collect());
        stored.map_err(|trouble: Trouble| trouble.while_doing("look through the outbox"))
    }

    async fn fates(
        &self,
        pipeline: &str,
        aggregate_types: &[String],
        stored: &[Stored],
    ) -> Result<Vec<(i64, Fate)>, SourceError> {
        let ids: Vec<&str> = stored.iter().map(|stored| stored.event_id.as_str()).collect();
        let numbers: Vec<i64> = stored.iter().map(|stored| stored.position).collect();
        let params: [Param<'_>; 4] = [
            (&ids, Type::TEXT_ARRAY),
            (&numbers, Type::INT8_ARRAY),
            (&pipeline, Type::TEXT),
            (&aggregate_types, Type::TEXT_ARRAY),
        ];
        let rows = self.connection.query(&self.events.fates, &params).await;
        let fate = |row: &Row| {
            let (is_its_own, is_settled) = (row.try_get(2)?, row.try_get(3)?);
            let fate = Fate::of(row.try_get(1)?, is_its_own, is_settled, row.try_get(4)?);
            Ok((row.try_get(0)?, fate))
        };
        let fates = rows.and_then(|rows| rows.iter().map(fate).collect());
        fates.map_err(|trouble: Trouble| trouble.while_doing("look for events"))
    }

    async fn now(&self) -> Result<SystemTime, SourceError> {
        let rows = self.connection.query(CLOCK, &[]).await;
        let now = rows.and_then(|rows| Ok(rows.first().expect("a function answers").try_get(0)?));
        now.map_err(|trouble: Trouble| trouble.while_doing("read the clock"))
    }

    async fn read(&self, stored: &[Stored]) -> Result<Vec<ReadEvent>, SourceError> {
        let ids: Vec<&str> = stored.iter().map(|stored| stored.event_id.as_str()).collect();
        let numbers: Vec<i64> = stored.iter().map(|stored| stored.position).collect();
        let decoder = Decoder { derives_ids: self.table.derives_ids() };
        let params: [Param<'_>; 2] = [(&ids, Type::TEXT_ARRAY), (&numbers, Type::INT8_ARRAY)];
        let rows = self.connection.query(&self.events.read, &params).await;
        let read = |row: &Row| {
            let decoded = decoder.decode(row)?;
            Ok(ReadEvent { position: decoded.seq, event: decoded.event })
        };
        let events = rows.and_then(|rows| rows.iter().map(read).collect());
        events.map_err(|trouble: Trouble| trouble.while_doing("read events"))
    }
}

impl PostgresAdmin {
    async fn life(&self, event_id: &str, payload: bool) -> Result<Option<EventLife>, Trouble> {
        let mut tx = self.connection.begin().await?;
        tx.batch(ONE_SNAPSHOT).await?;
        let params: [Param<'_>; 2] = [(&event_id, Type::TEXT), (&payload, Type::BOOL)];
        let rows = tx.query(&self.events.row, &params).await?;
        let mut aside = Vec::new();
        for row in tx.query(&self.events.set_aside, &params).await? {
            let pipeline: String = row.try_get(MORE)?;
            let set_aside = set_aside(&row, MORE + 1)?;
            aside.extend(set_aside.map(|set_aside| (pipeline, set_aside, row)));
        }
        let (event, marked_at, in_outbox) = match (rows.first(), aside.first()) {
            (Some(row), _) => (event(row)?, row.try_get(MORE)?, true),
            (None, Some((.., row))) => (event(row)?, None, false),
            (None, None) => return Ok(None),
        };
        let count_max = COUNT_MAX as i64;
        let params: [Param<'_>; 5] = [
            (&event.position, Type::INT8),
            (&event.transaction, Type::TEXT),
            (&event.aggregate_type, Type::TEXT),
            (&event.aggregate_id, Type::TEXT),
            (&count_max, Type::INT8),
        ];
        let mut pipelines = Vec::new();
        for row in tx.query(&self.events.standings, &params).await? {
            let pipeline: String = row.try_get(0)?;
            let (progress, is_passed): (String, bool) = (row.try_get(1)?, row.try_get(2)?);
            let at_its_own = aside.iter().find(|(other, ..)| *other == pipeline);
            let standing = match at_its_own {
                Some((_, set_aside, _)) => Standing::SetAside(set_aside.clone()),
                None if !in_outbox => continue,
                None if progress == Progress::Cursor.as_str() => match is_passed {
                    true => Standing::Settled { at: None },
                    false => Standing::Waiting,
                },
                None => match marked_at {
                    Some(at) => Standing::Settled { at: Some(at) },
                    None => Standing::Waiting,
                },
            };
            let ahead = u64::try_from(row.try_get::<_, i64>(3)?).unwrap_or(0);
            let first: Option<String> = row.try_get(4)?;
            let behind = set_aside(&row, 5)?
                .map(|set_aside| Blocker { event_id: first.unwrap_or_default(), set_aside });
            pipelines.push(InPipeline { pipeline, standing, ahead, behind });
        }
        tx.commit().await?;
        Ok(Some(EventLife { event, in_outbox, pipelines }))
    }

    async fn newest_rows(&self, wanted: &Wanted, limit: usize) -> Result<Written, Trouble> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let is_narrow = Wanted { payload: false, ..wanted.clone() } != Wanted::default();
        let looked_at = if is_narrow { LOOKED_AT_MAX as i64 } else { limit };
        let parts = Parts::of(wanted);
        let mut params: Vec<Param<'_>> = vec![(&looked_at, Type::INT8), (&limit, Type::INT8)];
        params.extend(parts.params());
        params.push((&wanted.payload, Type::BOOL));
        let mut tx = self.connection.begin().await?;
        tx.batch(ONE_SNAPSHOT).await?;
        let snapshot = snapshot(&tx.query(SNAPSHOT, &[]).await?)?;
        let rows = tx.query(&self.events.newest, &params).await?;
        let last = match self.table.has("xid") {
            true => None,
            false => tx.query(&self.events.last, &[]).await?.first().map(|row| row.try_get(0)),
        };
        tx.commit().await?;
        let last: i64 = last.transpose()?.flatten().unwrap_or(i64::MIN);
        let mut events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        events.reverse();
        let next = match self.table.has("xid") {
            true => Since::Snapshot(snapshot),
            // What does not match need not be looked at again.
            false => Since::Number(last),
        };
        Ok(Written { events, next: next.place() })
    }

    async fn written_rows(
        &self,
        since: Since,
        wanted: &Wanted,
        limit: usize,
    ) -> Result<Written, Trouble> {
        let sql_limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut tx = self.connection.begin().await?;
        tx.batch(ONE_SNAPSHOT).await?;
        tx.batch(FEW_ROWS).await?;
        let (base, tick, after) = match since {
            Since::Number(after) => (None, None, after),
            Since::Snapshot(base) => {
                let tick = snapshot(&tx.query(SNAPSHOT, &[]).await?)?;
                (Some(base), Some(tick), i64::MIN)
            }
            Since::Within { base, tick, after } => (Some(base), Some(tick), after),
        };
        let parts = Parts::of(wanted);
        let mut params: Vec<Param<'_>> = vec![(&after, Type::INT8), (&sql_limit, Type::INT8)];
        params.extend(parts.params());
        params.extend([
            (&wanted.payload as _, Type::BOOL),
            (&base as _, Type::TEXT),
            (&tick as _, Type::TEXT),
        ]);
        let rows = tx.query(&self.events.written, &params).await?;
        tx.commit().await?;
        let events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        let last = events.last().map_or(after, |event| event.position);
        let next = match (base, tick) {
            (Some(base), Some(tick)) if events.len() >= limit => {
                Since::Within { base, tick, after: last }
            }
            (_, Some(tick)) => Since::Snapshot(tick),
            _ => Since::Number(last),
        };
        Ok(Written { events, next: next.place() })
    }
}

/// What a [`Place`] says.
#[derive(Debug, PartialEq, Eq)]
enum Since {
    /// Everything that the snapshot sees was seen.
    Snapshot(String),
    /// So was, of what `tick` sees, everything up to a number.
    Within { base: String, tick: String, after: i64 },
    /// In a table that does not say which transaction wrote a row: everything up to a number.
    Number(i64),
}

impl Since {
    fn place(&self) -> Place {
        Place(match self {
            Self::Snapshot(snapshot) => snapshot.clone(),
            Self::Within { base, tick, after } => format!("{base}/{tick}/{after}"),
            Self::Number(number) => number.to_string(),
        })
    }

    fn parse(place: &Place) -> Result<Self, SourceError> {
        let parts: Vec<&str> = place.0.split('/').collect();
        let not_a_place =
            || SourceError::new(SourceErrorKind::Misconfigured, "this is no place in this outbox");
        match parts[..] {
            [base, tick, after] => Ok(Self::Within {
                base: base.to_owned(),
                tick: tick.to_owned(),
                after: after.parse().map_err(|_| not_a_place())?,
            }),
            [snapshot] if snapshot.contains(':') => Ok(Self::Snapshot(snapshot.to_owned())),
            [number] => number.parse().map(Self::Number).map_err(|_| not_a_place()),
            _ => Err(not_a_place()),
        }
    }
}

/// What is wanted, as the statements take it.
struct Parts<'w> {
    wanted: &'w Wanted,
    aggregate_type: Option<&'w str>,
    aggregate_id: Option<&'w str>,
}

impl<'w> Parts<'w> {
    fn of(wanted: &'w Wanted) -> Self {
        let key = wanted.key.as_ref();
        let aggregate_type = key.map(|key| key.aggregate_type.as_str());
        Self {
            wanted,
            aggregate_type: aggregate_type.or(wanted.aggregate_type.as_deref()),
            aggregate_id: key.map(|key| key.aggregate_id.as_str()),
        }
    }

    fn params(&self) -> [Param<'_>; 5] {
        [
            (&self.wanted.event_type, Type::TEXT),
            (&self.aggregate_type, Type::TEXT),
            (&self.aggregate_id, Type::TEXT),
            (&self.wanted.since, Type::TIMESTAMPTZ),
            (&self.wanted.until, Type::TIMESTAMPTZ),
        ]
    }
}

fn snapshot(rows: &[Row]) -> Result<String, tokio_postgres::Error> {
    rows.first().expect("a function answers one row").try_get(0)
}

fn event(row: &Row) -> Result<EventRow, tokio_postgres::Error> {
    Ok(EventRow {
        position: row.try_get(0)?,
        transaction: row.try_get(1)?,
        event_id: row.try_get(2)?,
        aggregate_type: row.try_get(3)?,
        aggregate_id: row.try_get(4)?,
        event_type: row.try_get(5)?,
        event_version: row.try_get(6)?,
        content_type: row.try_get(7)?,
        headers: row.try_get(8)?,
        topic: row.try_get(9)?,
        occurred_at: row.try_get(10)?,
        created_at: row.try_get(11)?,
        deliver_after: row.try_get(12)?,
        payload_bytes: u64::try_from(row.try_get::<_, i64>(13)?).unwrap_or(0),
        payload: row.try_get(14)?,
    })
}

/// Why an event is set aside, from this column on, if it is.
pub(super) fn set_aside(row: &Row, from: usize) -> Result<Option<SetAside>, tokio_postgres::Error> {
    let Some(state) = row.try_get::<_, Option<String>>(from)? else { return Ok(None) };
    Ok(Some(SetAside {
        state,
        since: row.try_get(from + 1)?,
        due_at: row.try_get(from + 2)?,
        attempts: u32::try_from(row.try_get::<_, i32>(from + 3)?).unwrap_or(0),
        kind: row.try_get(from + 4)?,
        error: row.try_get(from + 5)?,
    }))
}
