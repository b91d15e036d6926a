//! Statements about keys that wait, and about what an operator has stopped.

use postrider::schema::TableName;

use super::{lock_failures, nothing_before};
use crate::pauses::EVERY_PIPELINE;

/// The statements about what does not move.
#[derive(Debug)]
pub(in super::super) struct StopQueries {
    /// `$1` pipeline: how many of the keys that are stopped in it have events that wait.
    pub(in super::super) paused_waiting: String,
    /// Pipeline, aggregate type and id, since and reason of everything that is stopped.
    pub(in super::super) pauses: String,
    /// `$1` pipeline, `$2` aggregate type, `$3` id, `$4` reason: whether it was not stopped before.
    pub(in super::super) pause: String,
    /// `$1` pipeline or NULL, `$2` aggregate type, `$3` id, both empty for no key: what it answers
    /// is that of `pauses`.
    pub(in super::super) resume: String,
    /// `$1` pipeline or NULL, `$2` aggregate type, `$3` id: the first of a key comes back now.
    pub(in super::super) hurry: String,
    /// `$1` pipeline or NULL, `$2` limit: pipeline, aggregate type and id, since, events, and of
    /// the first id, state, since, due, attempts, kind and error.
    pub(in super::super) blocked: String,
    /// `$1` pipeline: nobody else changes what is set aside of it.
    pub(in super::super) lock_failures: String,
    /// `$1` pipeline or NULL, `$2` aggregate type, `$3` id: pipelines in which a key waits.
    pub(in super::super) waits_in: String,
    /// `$1` pipeline, `$2` aggregate type, `$3` id: gives the first of a key another attempt;
    /// answers its id and how it was set aside.
    pub(in super::super) release: String,
}

impl StopQueries {
    pub(in super::super) fn new(outbox: &TableName) -> Self {
        let (failures, pauses) = (outbox.failures().quoted(), outbox.pauses().quoted());
        let columns = "pipeline, aggregate_type, aggregate_id, paused_at, reason";
        let of_key = "($1::text IS NULL OR f.pipeline = $1) AND f.aggregate_type = $2
             AND f.aggregate_id = $3 AND f.blocks";
        let is_first = nothing_before(&failures);
        Self {
            paused_waiting: format!(
                "SELECT count(*) FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM {pauses}
                   WHERE aggregate_type <> '' AND pipeline IN ('{EVERY_PIPELINE}', $1)) AS k
                 WHERE EXISTS (SELECT FROM {failures} AS f WHERE f.pipeline = $1
                   AND f.aggregate_type = k.aggregate_type AND f.aggregate_id = k.aggregate_id
                   AND f.blocks)"
            ),
            pauses: format!("SELECT {columns} FROM {pauses} ORDER BY 1, 2, 3"),
            pause: format!(
                "INSERT INTO {pauses} AS p (pipeline, aggregate_type, aggregate_id, reason)
                 VALUES ($1, $2, $3, $4) ON CONFLICT (pipeline, aggregate_type, aggregate_id)
                 DO UPDATE SET reason = coalesce(excluded.reason, p.reason)
                 RETURNING xmax = 0"
            ),
            resume: format!(
                "DELETE FROM {pauses} WHERE ($1::text IS NULL OR pipeline = $1)
                 AND aggregate_type = $2 AND aggregate_id = $3 RETURNING {columns}"
            ),
            hurry: format!(
                "UPDATE {failures} AS f SET due_at = clock_timestamp()
                 WHERE {of_key} AND f.due_at > clock_timestamp() AND f.state = 'deferred'
                 AND {is_first}"
            ),
            blocked: format!(
                "SELECT k.pipeline, k.aggregate_type, k.aggregate_id, k.since, k.events,
                   f.id, f.state, f.set_aside_at, f.due_at, f.attempts, f.kind, f.error
                 FROM (SELECT pipeline, aggregate_type, aggregate_id, min(seq) AS seq,
                     min(set_aside_at) AS since, count(*) AS events
                   FROM {failures} WHERE blocks AND ($1::text IS NULL OR pipeline = $1)
                   GROUP BY pipeline, aggregate_type, aggregate_id
                   ORDER BY since, seq LIMIT $2) AS k
                 JOIN {failures} AS f ON f.pipeline = k.pipeline AND f.seq = k.seq
                 ORDER BY k.since, k.seq"
            ),
            lock_failures: lock_failures(outbox),
            waits_in: format!("SELECT DISTINCT f.pipeline FROM {failures} AS f WHERE {of_key}"),
            release: format!(
                "WITH first AS MATERIALIZED (SELECT f.pipeline, f.seq, f.state FROM {failures} AS f
                   WHERE {of_key} AND {is_first} FOR UPDATE)
                 UPDATE {failures} AS f SET due_at = clock_timestamp(),
                   attempts = CASE WHEN f.state = 'parked' THEN 0 ELSE f.attempts END,
                   state = CASE WHEN f.state = 'parked' THEN 'deferred' ELSE f.state END
                 FROM first WHERE f.pipeline = first.pipeline AND f.seq = first.seq
                 RETURNING coalesce(f.id, ''), first.state"
            ),
        }
    }
}
