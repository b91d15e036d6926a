//! Statements that prune.

use postrider::schema::TableName;

use super::{is_left, light};

/// The statements that prune.
#[derive(Debug)]
pub(in super::super) struct PruneQueries {
    /// Name, progress, position, aggregate types, former types and since of each pipeline.
    pub(in super::super) pipelines: String,
    /// `?1` after, `?2` limit, `?3` a time: the next rows in order, each with its number, whether
    /// it is older than that time, whether it is marked, the bytes of its payload, and its
    /// aggregate type. A time that cannot be read is not older. What was left in the outbox when it
    /// was set aside stays until it is discarded, and then counts as marked.
    pub(in super::super) window: String,
    /// `?1` a time, `?2` limit: forgets what was discarded before, and is not in the outbox any more.
    pub(in super::super) forget_discarded: String,
    /// `?1` a JSON array of numbers: rows as they stand.
    pub(in super::super) rows: String,
    /// `?1` a JSON array of numbers.
    pub(in super::super) remove: String,
}

impl PruneQueries {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let (outbox, checkpoints) = (table.quoted(), table.checkpoints().quoted());
        let failures = table.failures().quoted();
        let numbers = "seq IN (SELECT value FROM json_each(?1))";
        Self {
            pipelines: format!(
                "SELECT pipeline, progress, position, aggregate_types, formerly, since
                 FROM {checkpoints} ORDER BY pipeline"
            ),
            window: format!(
                "SELECT seq,
                 coalesce(julianday(coalesce(published_at, created_at)) <= julianday(?3), 0)
                   AND NOT {},
                 published_at IS NOT NULL OR {}, octet_length(payload), aggregate_type
                 FROM {outbox} AS o WHERE seq > ?1 ORDER BY seq LIMIT ?2",
                is_left(&failures, "s.state <> 'discarded'"),
                is_left(&failures, "s.state = 'discarded'")
            ),
            forget_discarded: format!(
                "DELETE FROM {failures} WHERE rowid IN (SELECT f.rowid FROM {failures} AS f
                 WHERE f.state = 'discarded' AND julianday(f.set_aside_at) <= julianday(?1)
                 AND NOT EXISTS (SELECT 1 FROM {outbox} AS o WHERE o.seq = f.seq AND {} IS f.id)
                 LIMIT ?2)",
                light("id")
            ),
            rows: format!(
                "SELECT seq, id, aggregate_type, aggregate_id, event_type, event_version, topic,
                 headers, occurred_at, content_type, payload, created_at, published_at
                 FROM {outbox} WHERE {numbers} ORDER BY seq"
            ),
            remove: format!("DELETE FROM {outbox} WHERE {numbers}"),
        }
    }
}
