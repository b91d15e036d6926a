//! Statements about keys that wait, and about what an operator has stopped.

use postrider::schema::TableName;

use super::nothing_before;
use crate::pauses::EVERY_PIPELINE;

/// The statements about what does not move.
#[derive(Debug)]
pub(in super::super) struct StopQueries {
    /// `?1` pipeline: how many of the keys that are stopped in it have events that wait.
    pub(in super::super) paused_waiting: String,
    /// Pipeline, aggregate type and id, since and reason of everything that is stopped.
    pub(in super::super) pauses: String,
    /// `?1` pipeline, `?2` aggregate type, `?3` id: whether it is stopped.
    pub(in super::super) is_paused: String,
    /// `?1` pipeline, `?2` aggregate type, `?3` id, `?4` reason, `?5` now.
    pub(in super::super) pause: String,
    /// `?1` pipeline or NULL, `?2` aggregate type, `?3` id, both empty for no key: what it answers
    /// is that of `pauses`.
    pub(in super::super) resume: String,
    /// `?1` pipeline or NULL, `?2` aggregate type, `?3` id, `?4` now: the first of a key comes back
    /// now.
    pub(in super::super) hurry: String,
    /// `?1` pipeline or NULL, `?2` limit: pipeline, aggregate type and id, since, events, and of
    /// the first id, state, since, due, attempts, kind and error.
    pub(in super::super) blocked: String,
    /// `?1` pipeline or NULL, `?2` aggregate type, `?3` id: pipeline, seq, id and state of the first
    /// of a key.
    pub(in super::super) first: String,
    /// `?1` pipeline, `?2` seq, `?3` now: gives it another attempt.
    pub(in super::super) release: String,
}

impl StopQueries {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let (failures, pauses) = (table.failures().quoted(), table.pauses().quoted());
        let columns = "pipeline, aggregate_type, aggregate_id, paused_at, reason";
        let of_key = "(?1 IS NULL OR f.pipeline = ?1) AND f.aggregate_type = ?2
             AND f.aggregate_id = ?3 AND f.blocks = 1";
        let is_first = nothing_before(&failures);
        Self {
            paused_waiting: format!(
                "SELECT count(*) FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM {pauses}
                   WHERE aggregate_type <> '' AND pipeline IN ('{EVERY_PIPELINE}', ?1)) AS k
                 WHERE EXISTS (SELECT 1 FROM {failures} AS f WHERE f.pipeline = ?1
                   AND f.aggregate_type = k.aggregate_type AND f.aggregate_id = k.aggregate_id
                   AND f.blocks = 1)"
            ),
            pauses: format!("SELECT {columns} FROM {pauses} ORDER BY 1, 2, 3"),
            is_paused: format!(
                "SELECT EXISTS (SELECT 1 FROM {pauses} WHERE pipeline = ?1
                 AND aggregate_type = ?2 AND aggregate_id = ?3)"
            ),
            pause: format!(
                "INSERT INTO {pauses} ({columns}) VALUES (?1, ?2, ?3, ?5, ?4)
                 ON CONFLICT (pipeline, aggregate_type, aggregate_id)
                 DO UPDATE SET reason = coalesce(excluded.reason, reason)"
            ),
            resume: format!(
                "DELETE FROM {pauses} WHERE (?1 IS NULL OR pipeline = ?1)
                 AND aggregate_type = ?2 AND aggregate_id = ?3 RETURNING {columns}"
            ),
            hurry: format!(
                "UPDATE {failures} AS f SET due_at = ?4 WHERE {of_key} AND f.due_at > ?4
                 AND f.state = 'deferred' AND {is_first}"
            ),
            blocked: format!(
                "SELECT k.pipeline, k.aggregate_type, k.aggregate_id, k.since, k.events,
                   f.id, f.state, f.set_aside_at, f.due_at, f.attempts, f.kind, f.error
                 FROM (SELECT pipeline, aggregate_type, aggregate_id, min(seq) AS seq,
                     min(set_aside_at) AS since, count(*) AS events
                   FROM {failures} WHERE blocks = 1 AND (?1 IS NULL OR pipeline = ?1)
                   GROUP BY pipeline, aggregate_type, aggregate_id
                   ORDER BY since, seq LIMIT ?2) AS k
                 JOIN {failures} AS f ON f.pipeline = k.pipeline AND f.seq = k.seq
                 ORDER BY k.since, k.seq"
            ),
            first: format!(
                "SELECT f.pipeline, f.seq, f.id, f.state FROM {failures} AS f
                 WHERE {of_key} AND {is_first} ORDER BY f.pipeline"
            ),
            release: format!(
                "UPDATE {failures} SET due_at = ?3, attempts = iif(state = 'parked', 0, attempts),
                 state = iif(state = 'parked', 'deferred', state)
                 WHERE pipeline = ?1 AND seq = ?2"
            ),
        }
    }
}
