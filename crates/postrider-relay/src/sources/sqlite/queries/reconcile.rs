//! Statements that look for events that were missed.

use postrider::schema::TableName;

use super::{HAS_COME, is_left, not_set_aside, nothing_before};
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
                   EXISTS (SELECT 1 FROM (SELECT * FROM {outbox} AS p
                       WHERE p.seq > o.seq ORDER BY p.seq LIMIT {BEHIND}) AS q
                     WHERE julianday(q.published_at) > julianday(o.created_at) + ?4
                     AND q.aggregate_type = o.aggregate_type AND q.aggregate_id = o.aggregate_id)
                 FROM (SELECT * FROM {outbox} AS o WHERE published_at IS NULL AND NOT {}
                   AND (?3 IS NULL OR o.aggregate_type IN (SELECT value FROM json_each(?3)))
                   AND NOT EXISTS (SELECT 1 FROM {checkpoints} WHERE progress = 'cursor')
                   ORDER BY o.seq LIMIT {ROWS}) AS o
                 WHERE julianday(o.created_at) < julianday(?1) AND {HAS_COME} AND NOT {}
                 ORDER BY o.seq LIMIT ?2",
                is_left(&failures, "1"),
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
        }
    }
}
