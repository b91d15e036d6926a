//! Statements that look at single events.

use postrider::event::{AGGREGATE_ID_BYTES_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use postrider::schema::TableName;

use super::{HEADERS_JSON_BYTES_MAX, SHORT_BYTES_MAX, event_columns};

/// The statements that look at single events.
#[derive(Debug)]
pub(in super::super) struct EventQueries {
    /// `?1` event id, `?2` whether with payload: the row, and when it was marked.
    pub(in super::super) row: String,
    /// `?1` event id, `?2` whether with payload: rows set aside, then pipeline, state, since, due,
    /// attempts, kind and error.
    pub(in super::super) set_aside: String,
    /// Pipeline, progress, position, what is settled beyond it, aggregate types, former types, since,
    /// start and when it began.
    pub(in super::super) checkpoints: String,
    /// `?1` pipeline, `?2` aggregate type, `?3` id, `?4` seq, `?5` count limit: how many rows of a
    /// key were set aside before one.
    pub(in super::super) ahead: String,
    /// `?1` to `?4` the same: id, state, since, due, attempts, kind and error of the first.
    pub(in super::super) first_ahead: String,
    /// `?1` looked at, `?2` limit, `?3` to `?7` wanted, `?8` whether with payload: newest first.
    pub(in super::super) newest: String,
    /// `?1` after, `?2` limit, `?3` to `?7` wanted, `?8` whether with payload.
    pub(in super::super) written: String,
    /// The largest number that an outbox has.
    pub(in super::super) last: String,
    /// `?1` after, `?2` limit, `?3` to `?7` wanted: seq, id and bytes of the payload.
    pub(in super::super) stored: String,
    /// `?1` a JSON array of numbers, `?2` pipeline, `?3` a JSON array of its aggregate types: number,
    /// state if it is set aside, whether it is of these types, its type, and when it was marked.
    pub(in super::super) fates: String,
    /// `?1` a JSON array of numbers: events for [`decode`](super::super::row::decode).
    pub(in super::super) read: String,
}

impl EventQueries {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let (outbox, failures) = (table.quoted(), table.failures().quoted());
        let checkpoints = table.checkpoints().quoted();
        let why = "state, set_aside_at, due_at, attempts, kind, error";
        let before = "pipeline = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3
             AND blocks = 1 AND seq < ?4";
        Self {
            row: format!("SELECT {}, published_at FROM {outbox} WHERE id = ?1", columns("?2")),
            set_aside: format!(
                "SELECT {}, pipeline, {why} FROM {failures} WHERE id = ?1 ORDER BY pipeline, seq",
                columns("?2")
            ),
            checkpoints: format!(
                "SELECT pipeline, progress, position, beyond, aggregate_types, formerly, since, start,
                 began_at FROM {checkpoints} ORDER BY pipeline"
            ),
            ahead: format!(
                "SELECT count(*) FROM (SELECT 1 FROM {failures} WHERE {before} LIMIT ?5)"
            ),
            first_ahead: format!(
                "SELECT id, {why} FROM {failures} WHERE {before} ORDER BY seq LIMIT 1"
            ),
            newest: format!(
                "SELECT {} FROM (SELECT * FROM {outbox} ORDER BY seq DESC LIMIT ?1)
                 WHERE {WANTED} ORDER BY seq DESC LIMIT ?2",
                columns("?8")
            ),
            written: format!(
                "SELECT {} FROM {outbox} WHERE seq > ?1 AND {WANTED} ORDER BY seq LIMIT ?2",
                columns("?8")
            ),
            last: format!("SELECT coalesce(max(seq), 0) FROM {outbox}"),
            stored: format!(
                "SELECT seq, id, coalesce(octet_length(payload), 0), created_at FROM {outbox}
                 WHERE seq > ?1 AND {WANTED} ORDER BY seq LIMIT ?2"
            ),
            fates: format!(
                "SELECT o.seq, f.state, json_array_length(?3) = 0
                   OR o.aggregate_type IN (SELECT value FROM json_each(?3)),
                 o.aggregate_type, o.published_at FROM {outbox} AS o
                 LEFT JOIN {failures} AS f ON f.pipeline = ?2 AND f.seq = o.seq AND f.id IS o.id
                 WHERE o.seq IN (SELECT value FROM json_each(?1))"
            ),
            read: format!(
                "SELECT {}, 0 FROM {outbox} WHERE seq IN (SELECT value FROM json_each(?1))
                 ORDER BY seq",
                event_columns("")
            ),
        }
    }
}

/// `?3` event type, `?4` aggregate type, `?5` aggregate id, `?6` since, `?7` until; what is NULL
/// matches everything.
const WANTED: &str = "(?3 IS NULL OR event_type = ?3) AND (?4 IS NULL OR aggregate_type = ?4)
     AND (?5 IS NULL OR aggregate_id = ?5)
     AND (?6 IS NULL OR julianday(created_at) >= julianday(?6))
     AND (?7 IS NULL OR julianday(created_at) < julianday(?7))";

/// The columns of an event as an operator sees it, none longer than an event may have it.
fn columns(payload: &str) -> String {
    let text = |column: &str, max: usize| format!("substr({column}, 1, {max})");
    [
        "seq".to_owned(),
        text("id", SHORT_BYTES_MAX),
        text("aggregate_type", NAME_BYTES_MAX),
        text("aggregate_id", AGGREGATE_ID_BYTES_MAX),
        text("event_type", NAME_BYTES_MAX),
        "iif(typeof(event_version) = 'integer', event_version, NULL)".to_owned(),
        text("content_type", NAME_BYTES_MAX),
        text("headers", HEADERS_JSON_BYTES_MAX),
        text("topic", NAME_BYTES_MAX),
        text("occurred_at", SHORT_BYTES_MAX),
        text("created_at", SHORT_BYTES_MAX),
        text("deliver_after", SHORT_BYTES_MAX),
        "coalesce(octet_length(payload), 0)".to_owned(),
        format!(
            "iif({payload} AND octet_length(payload) <= {PAYLOAD_BYTES_MAX},
             CAST(payload AS BLOB), NULL)"
        ),
    ]
    .join(", ")
}
