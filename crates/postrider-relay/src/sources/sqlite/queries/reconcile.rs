//! Statements that look for events that were missed.

use postrider::schema::TableName;

use super::{EVENT_COLUMNS, HAS_COME, not_set_aside, nothing_before};
use crate::admin::COUNT_MAX;

/// How many rows behind one are looked at to tell whether it was overtaken.
const BEHIND: u32 = 100;
/// How many rows are looked at, the oldest first: a backlog is not read through.
const ROWS: u32 = 10_000;

/// The statements that look for events that were missed.
#[derive(Debug)]
pub(in super::super) struct ReconcileQueries {
    /// `?1` a time, `?2` limit: pipeline, seq, id, aggregate type and id, since.
    pub(in super::super) forgotten: String,
    /// The same parameters, and the same columns.
    pub(in super::super) overdue: String,
    /// `?1` and `?2` the same, `?3` a JSON array of aggregate types or NULL, `?4` an age in days: the
    /// same columns, and whether it was overtaken.
    pub(in super::super) unmarked: String,
    /// `?1` and `?2` the same, `?3` pipeline, `?4` position: rows that a cursor has before it, with
    /// the same columns.
    pub(in super::super) ahead: String,
    /// `?1` pipeline, `?2` seq, `?3` now: a row becomes due now; answers its number.
    pub(in super::super) set_aside: String,
    /// `?1` seq, `?2` now.
    pub(in super::super) mark: String,
    /// `?1` seq.
    pub(in super::super) delete: String,
    /// `?1` pipeline: how it keeps progress.
    pub(in super::super) progress: String,
}

impl ReconcileQueries {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let (outbox, failures) = (table.quoted(), table.failures().quoted());
        let (checkpoints, pauses) = (table.checkpoints().quoted(), table.pauses().quoted());
        let is_first = nothing_before(&failures);
        let aside = |since: &str, condition: &str| {
            format!(
                "SELECT f.pipeline, f.seq, f.id, f.aggregate_type, f.aggregate_id, f.{since}
                 FROM (SELECT * FROM {failures} AS f WHERE {condition} AND f.{since} < ?1
                   LIMIT {COUNT_MAX}) AS f
                 WHERE {is_first} ORDER BY f.pipeline, f.seq LIMIT ?2"
            )
        };
        let paused = |pipeline: &str, of: &str| {
            format!(
                "EXISTS (SELECT 1 FROM {pauses} AS p WHERE p.pipeline IN ({pipeline}, '*')
                 AND (p.aggregate_type = ''
                   OR p.aggregate_type = {of}.aggregate_type
                     AND p.aggregate_id = {of}.aggregate_id))"
            )
        };
        let pipeline = format!(
            "coalesce((SELECT min(c.pipeline) FROM {checkpoints} AS c
             WHERE c.progress <> 'cursor'), 'default')"
        );
        let columns = EVENT_COLUMNS.join(", ");
        Self {
            forgotten: aside(
                "set_aside_at",
                "f.blocks = 1 AND f.state <> 'parked' AND f.due_at IS NULL",
            ),
            overdue: aside(
                "due_at",
                &format!("f.due_at IS NOT NULL AND NOT {}", paused("f.pipeline", "f")),
            ),
            unmarked: format!(
                "SELECT {pipeline}, o.seq, o.id, o.aggregate_type, o.aggregate_id, o.created_at,
                   EXISTS (SELECT 1 FROM (SELECT p.published_at FROM {outbox} AS p
                       WHERE p.seq > o.seq ORDER BY p.seq LIMIT {BEHIND})
                     WHERE julianday(published_at) > julianday(o.created_at) + ?4)
                 FROM (SELECT * FROM {outbox} AS o WHERE published_at IS NULL
                   AND (?3 IS NULL OR o.aggregate_type IN (SELECT value FROM json_each(?3)))
                   AND NOT EXISTS (SELECT 1 FROM {checkpoints} WHERE progress = 'cursor')
                   ORDER BY o.seq LIMIT {ROWS}) AS o
                 WHERE julianday(o.created_at) < julianday(?1) AND {HAS_COME} AND NOT {}
                 ORDER BY o.seq LIMIT ?2",
                paused(&pipeline, "o")
            ),
            ahead: format!(
                "SELECT ?3, o.seq, o.id, o.aggregate_type, o.aggregate_id, o.created_at
                 FROM (SELECT * FROM {outbox} AS o WHERE seq > ?4 AND {}
                   ORDER BY o.seq LIMIT {ROWS}) AS o
                 WHERE julianday(o.created_at) < julianday(?1) AND {HAS_COME} AND NOT {}
                 ORDER BY o.seq LIMIT ?2",
                not_set_aside(&failures, "?3"),
                paused("?3", "o")
            ),
            set_aside: format!(
                "INSERT INTO {failures} (pipeline, {columns}, state, blocks, due_at, attempts,
                   set_aside_at)
                 SELECT ?1, {columns}, 'deferred', deliver_after IS NULL, ?3, 0, ?3
                 FROM {outbox} WHERE seq = ?2 AND published_at IS NULL
                 ON CONFLICT (pipeline, seq) DO NOTHING RETURNING seq"
            ),
            mark: format!("UPDATE {outbox} SET published_at = ?2 WHERE seq = ?1"),
            delete: format!("DELETE FROM {outbox} WHERE seq = ?1"),
            progress: format!("SELECT progress FROM {checkpoints} WHERE pipeline = ?1"),
        }
    }
}
