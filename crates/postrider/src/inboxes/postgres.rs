//! What the clients of PostgreSQL share: the statements.
//!
//! Claims are plain inserts, which is faster. Everything else is a function of the schema, the
//! same for all languages.

use std::time::Duration;

/// Writes a claim, of consumer and event id, unless there is one.
pub(super) const INSERT_CLAIM: &str =
    "INSERT INTO inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";

/// Writes claims, of consumer and event ids, and answers the ids that had none.
pub(super) const INSERT_CLAIMS: &str = "INSERT INTO inbox (consumer, event_id) \
     SELECT $1::text, id FROM (SELECT DISTINCT unnest($2::uuid[]) AS id) AS given ORDER BY id \
     ON CONFLICT DO NOTHING RETURNING event_id";

/// Of consumer, aggregate type, aggregate id and version. Answers the version before.
pub(super) const ADVANCE: &str = "SELECT inbox_advance($1, $2, $3, $4) AS answer";

/// Of the consumer and the fields of a [`Row`](crate::outboxes::postgres::Row), but for the last.
/// Answers whether the event was new.
pub(super) const STORE: &str = "SELECT inbox_store(consumer => $1, event_id => $2, \
     aggregate_type => $3, aggregate_id => $4, event_type => $5, event_version => $6, \
     payload => $7, content_type => $8, headers => $9::jsonb, topic => $10, \
     occurred_at => $11::timestamptz) AS answer";

/// As [`STORE`], with the error and the number of attempts.
pub(super) const BURY: &str = "SELECT inbox_bury(consumer => $1, event_id => $2, \
     aggregate_type => $3, aggregate_id => $4, event_type => $5, event_version => $6, \
     payload => $7, content_type => $8, headers => $9::jsonb, topic => $10, \
     occurred_at => $11::timestamptz, error => $12, attempts => $13)";

/// Of consumer and event id, or NULL for all. Answers how many there were.
pub(super) const REVIVE: &str = "SELECT inbox_revive($1, $2) AS answer";

/// Of consumer, an [age](micros) and a number. What is dead stays claimed. A claim has the time of
/// the server, so its age goes by that clock, too; the time of the statement is one that an index
/// can be asked for.
pub(super) const PRUNE: &str = "DELETE FROM inbox WHERE ctid = ANY(ARRAY(\
     SELECT i.ctid FROM inbox AS i WHERE i.consumer = $1 \
     AND i.processed_at < statement_timestamp() - $2::bigint * interval '1 microsecond' \
     AND NOT EXISTS (SELECT FROM inbox_messages AS m \
     WHERE m.consumer = $1 AND m.event_id = i.event_id AND m.dead) LIMIT $3))";

/// The longest age, because times of the server have an end: about a thousand years.
const AGE_MAX: Duration = Duration::from_secs(1000 * 365 * 24 * 60 * 60);

/// An age in microseconds.
pub(super) fn micros(age: Duration) -> i64 {
    i64::try_from(age.min(AGE_MAX).as_micros()).unwrap_or(i64::MAX)
}

/// A number of attempts as the server has it.
pub(super) fn attempts_of(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}

/// An error as the server can keep it: it has no text with zeros.
pub(super) fn error_text(error: &str) -> String {
    error.replace('\0', "")
}
