//! What the clients of SQLite share: the statements.
//!
//! The first statement of a call always writes, also where there is nothing to do. A transaction
//! that reads first and writes then fails if somebody has written in between; one that begins with
//! a write waits.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::timestamp;

/// Writes a claim, of consumer, event id and time, unless there is one.
pub(super) const INSERT_CLAIM: &str = "INSERT INTO inbox (consumer, event_id, processed_at) \
     VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

/// Writes claims, of consumer, event ids in JSON and time, and answers the ids that had none.
pub(super) const INSERT_CLAIMS: &str = "INSERT INTO inbox (consumer, event_id, processed_at) \
     SELECT ?1, value, ?3 FROM json_each(?2) WHERE true ORDER BY value \
     ON CONFLICT DO NOTHING RETURNING event_id";

/// Of consumer, aggregate type, aggregate id and version, unless there is one.
pub(super) const INSERT_VERSION: &str = "INSERT INTO inbox_versions \
     (consumer, aggregate_type, aggregate_id, version) VALUES (?1, ?2, ?3, ?4) \
     ON CONFLICT DO NOTHING";

/// Of consumer, aggregate type and aggregate id.
pub(super) const SELECT_VERSION: &str = "SELECT version FROM inbox_versions \
     WHERE consumer = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3";

/// Of consumer, aggregate type, aggregate id and version.
pub(super) const UPDATE_VERSION: &str = "UPDATE inbox_versions SET version = ?4 \
     WHERE consumer = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3 AND version < ?4";

/// Of the consumer and the fields of a [`Row`](crate::outboxes::sqlite::Row), but for the last.
pub(super) const STORE: &str = "INSERT INTO inbox_messages (consumer, event_id, aggregate_type, \
     aggregate_id, event_type, event_version, payload, content_type, headers, topic, occurred_at, \
     stored_at, due_at) \
     SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12 \
     WHERE NOT EXISTS (SELECT 1 FROM inbox WHERE consumer = ?1 AND event_id = ?2) \
     ON CONFLICT DO NOTHING";

/// As [`STORE`], with the error and the number of attempts.
pub(super) const BURY: &str = "INSERT INTO inbox_messages (consumer, event_id, aggregate_type, \
     aggregate_id, event_type, event_version, payload, content_type, headers, topic, occurred_at, \
     stored_at, due_at, error, attempts, dead) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?12, ?13, ?14, true) \
     ON CONFLICT (consumer, event_id) DO UPDATE SET dead = true, error = ?13, attempts = ?14";

/// Removes the claims of what [`REVIVE`] is about to revive: of consumer and event id, or NULL.
pub(super) const DELETE_DEAD_CLAIMS: &str = "DELETE FROM inbox WHERE consumer = ?1 \
     AND event_id IN (SELECT event_id FROM inbox_messages WHERE consumer = ?1 AND dead \
     AND (?2 IS NULL OR event_id = ?2))";

/// Of consumer, event id, or NULL for all, and time.
pub(super) const REVIVE: &str = "UPDATE inbox_messages SET dead = false, attempts = 0, \
     due_at = ?3 WHERE consumer = ?1 AND dead AND (?2 IS NULL OR event_id = ?2)";

/// Of consumer, a time and a number. What is dead stays claimed.
pub(super) const PRUNE: &str = "DELETE FROM inbox WHERE (consumer, event_id) IN \
     (SELECT i.consumer, i.event_id FROM inbox AS i WHERE i.consumer = ?1 AND i.processed_at < ?2 \
     AND NOT EXISTS (SELECT 1 FROM inbox_messages AS m \
     WHERE m.consumer = ?1 AND m.event_id = i.event_id AND m.dead) LIMIT ?3)";

/// Ids as [`INSERT_CLAIMS`] has them.
pub(super) fn as_json(event_ids: &[Uuid]) -> String {
    let event_ids: Vec<String> = event_ids.iter().map(Uuid::to_string).collect();
    serde_json::to_string(&event_ids).expect("a list of texts is JSON")
}

/// The time of that long ago, by the clock of [`now`].
pub(super) fn ago(age: Duration) -> String {
    timestamp::to_text(SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH))
}

pub(super) fn now() -> String {
    timestamp::to_text(SystemTime::now())
}
