//! How an outbox in SQLite stands. Every count has a limit, so that looking never takes long.

use std::time::{Duration, SystemTime};

use postrider::timestamp;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::super::published::Published;
use super::super::queries::{self, AdminQueries};
use super::{Shared, pauses, shown, time};
use crate::admin::{COUNT_MAX, OutboxStatus, PipelineStatus, SinkTrouble, Unmatched};
use crate::pauses::{Pause, PausedKeys};
use crate::sources::Progress;

/// How the outbox and its pipelines stand, in one snapshot.
pub(super) fn status(conn: &Connection, shared: &Shared) -> rusqlite::Result<OutboxStatus> {
    let snapshot = Transaction::new_unchecked(conn, TransactionBehavior::Deferred)?;
    let now: String = snapshot.query_row(queries::NOW, [], |row| row.get(0))?;
    let now = timestamp::from_text(&now).unwrap_or_else(|_| SystemTime::now());
    let mut checkpoints: Vec<Checkpoint> = snapshot
        .prepare(&shared.sql.pipelines)?
        .query_map([], |row| {
            Ok(Checkpoint {
                name: row.get(0)?,
                progress: Some(row.get(1)?),
                position: row.get(2)?,
                settled_at: time(row, 3)?,
                trouble: trouble(row)?,
                published: Some(Published::read(row, 6)?),
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    if checkpoints.is_empty() {
        checkpoints.push(Checkpoint {
            name: "default".to_owned(),
            progress: None,
            position: 0,
            settled_at: None,
            trouble: None,
            published: None,
        });
    }
    let last: Option<i64> = snapshot
        .query_row(queries::LAST_SEQ, [shared.table.as_str()], |row| row.get(0))
        .optional()?;
    let unmatched = unmatched(&snapshot, shared, &checkpoints)?;
    let pauses = pauses::read(&snapshot, shared)?;
    let pipelines = checkpoints.into_iter().map(|checkpoint| {
        let mut status = pipeline_status(&snapshot, &shared.sql, checkpoint, now)?;
        status.paused = Pause::of_pipeline(&pauses, &status.name).cloned();
        status.paused_keys = PausedKeys::of(&pauses, &status.name);
        if status.paused_keys.count > 0 {
            let sql = &shared.stops.paused_waiting;
            let waiting: i64 = snapshot.query_row(sql, [&status.name], |row| row.get(0))?;
            status.paused_keys.waiting = waiting.unsigned_abs();
        }
        Ok(status)
    });
    Ok(OutboxStatus {
        database: "sqlite",
        table: shared.table.as_str().to_owned(),
        written: Some(last.and_then(|last| u64::try_from(last).ok()).unwrap_or(0)),
        pipelines: pipelines.collect::<rusqlite::Result<_>>()?,
        unmatched,
    })
}

struct Checkpoint {
    name: String,
    progress: Option<String>,
    position: i64,
    settled_at: Option<SystemTime>,
    trouble: Option<SinkTrouble>,
    /// What it matches; `None` if it never ran.
    published: Option<Published>,
}

/// What is wrong with the sink of a pipeline, if a relay has noted it.
fn trouble(row: &Row<'_>) -> rusqlite::Result<Option<SinkTrouble>> {
    let (why, since): (Option<String>, _) = (row.get(4)?, time(row, 5)?);
    Ok(why.zip(since).map(|(why, since)| SinkTrouble { why, since }))
}

/// Events that no pipeline matches. As long as it is not known of one what it matches, or one
/// matches everything, there are none.
fn unmatched(
    conn: &Connection,
    shared: &Shared,
    checkpoints: &[Checkpoint],
) -> rusqlite::Result<Unmatched> {
    let mut types = Vec::new();
    for checkpoint in checkpoints {
        let before = types.len();
        let published = checkpoint.published.as_ref();
        types.extend(published.and_then(Published::types).into_iter().flatten().cloned());
        if types.len() == before {
            return Ok(Unmatched::default());
        }
    }
    let types = serde_json::Value::from(types).to_string();
    let half = COUNT_MAX as i64 / 2;
    let mut statement = conn.prepare(&shared.sql.unmatched)?;
    let found = statement.query_map(params![half, types], |row| {
        Ok((shown(row, 0)?, row.get::<_, i64>(1)?.unsigned_abs()))
    })?;
    Ok(Unmatched::of(found.collect::<rusqlite::Result<_>>()?))
}

fn pipeline_status(
    conn: &Connection,
    sql: &AdminQueries,
    checkpoint: Checkpoint,
    now: SystemTime,
) -> rusqlite::Result<PipelineStatus> {
    let Checkpoint { name, progress, position, settled_at, trouble, .. } = checkpoint;
    let max = COUNT_MAX as i64;
    let count = |sql: &str, params: &[&dyn rusqlite::ToSql]| {
        conn.query_row(sql, params, |row| row.get::<_, i64>(0)).map(|count| count as u64)
    };
    let is_cursor = progress.as_deref() == Some(Progress::Cursor.as_str());
    let (unpublished, oldest) = if is_cursor {
        let oldest = conn.query_row(&sql.oldest_row, params![position, name], |row| time(row, 0));
        (count(&sql.rows, params![max, position, name])?, oldest)
    } else {
        let oldest = conn.query_row(&sql.oldest_unpublished, [], |row| time(row, 0));
        (count(&sql.unpublished, params![max])?, oldest)
    };
    let age = |written: SystemTime| now.duration_since(written).unwrap_or(Duration::ZERO);
    Ok(PipelineStatus {
        unpublished,
        oldest_unpublished_age: oldest.optional()?.flatten().map(age),
        parked: count(&sql.set_aside, params![max, name, "parked"])?,
        queued: count(&sql.set_aside, params![max, name, "queued"])?,
        deferred: count(&sql.set_aside, params![max, name, "deferred"])?,
        blocked_keys: count(&sql.blocked_keys, params![max, name])?,
        last_settled_at: settled_at,
        trouble,
        leases: Vec::new(),
        slot: None,
        paused: None,
        paused_keys: Default::default(),
        name,
        progress,
    })
}
