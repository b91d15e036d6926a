//! Statements of an operator.

use postrider::event::{AGGREGATE_ID_BYTES_MAX, NAME_BYTES_MAX};
use postrider::schema::TableName;

use super::{is_left, not_set_aside};
use crate::admin::Selection;

/// The statements of an operator.
#[derive(Debug)]
pub(in super::super) struct AdminQueries {
    failures: String,
    /// Name, progress, position, last settlement, aggregate types, former types and since of each
    /// pipeline.
    pub(in super::super) pipelines: String,
    /// `?1` limit, `?2` a JSON array of aggregate types: the types of unpublished rows that are not
    /// among them, of the oldest and the newest, and how many there are.
    pub(in super::super) unmatched: String,
    /// `?1` limit: how many rows are unpublished.
    pub(in super::super) unpublished: String,
    /// When the first unpublished row was written.
    pub(in super::super) oldest_unpublished: String,
    /// `?1` limit, `?2` position, `?3` pipeline: how many rows a cursor has before it.
    pub(in super::super) rows: String,
    /// `?1` position, `?2` pipeline: when the first of them was written.
    pub(in super::super) oldest_row: String,
    /// `?1` limit, `?2` pipeline, `?3` state.
    pub(in super::super) set_aside: String,
    /// `?1` limit, `?2` pipeline.
    pub(in super::super) blocked_keys: String,
    /// `?1` pipeline, `?2` seq, `?3` now: discards a dead letter, with its contents.
    pub(in super::super) discard: String,
    /// `?1` pipeline, `?2` seq, `?3` now.
    pub(in super::super) retry: String,
}

impl AdminQueries {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let (outbox, failures) = (table.quoted(), table.failures().quoted());
        let checkpoints = table.checkpoints().quoted();
        let ahead = |position: &str, pipeline: &str| {
            format!("seq > {position} AND {}", not_set_aside(&failures, pipeline))
        };
        Self {
            pipelines: format!(
                "SELECT pipeline, progress, position, settled_at, trouble, trouble_since,
                 aggregate_types, formerly, since
                 FROM {checkpoints} ORDER BY pipeline"
            ),
            unmatched: {
                let rows = |order: &str| {
                    format!(
                        "SELECT * FROM (SELECT seq, aggregate_type FROM {outbox}
                         WHERE published_at IS NULL ORDER BY seq {order} LIMIT ?1)"
                    )
                };
                format!(
                    "SELECT substr(aggregate_type, 1, {NAME_BYTES_MAX}), count(*)
                     FROM ({} UNION {})
                     WHERE aggregate_type NOT IN (SELECT value FROM json_each(?2))
                     GROUP BY 1 ORDER BY 2 DESC, 1",
                    rows("ASC"),
                    rows("DESC")
                )
            },
            unpublished: format!(
                "SELECT max(0, (SELECT count(*) FROM
                   (SELECT 1 FROM {outbox} WHERE published_at IS NULL LIMIT ?1))
                 - (SELECT count(DISTINCT o.seq) FROM {failures} AS f JOIN {outbox} AS o
                    ON o.seq = f.seq AND {} WHERE octet_length(f.payload) IS NULL))",
                is_left(&failures, "s.pipeline = f.pipeline")
            ),
            oldest_unpublished: format!(
                "SELECT created_at FROM {outbox} AS o
                 WHERE published_at IS NULL AND NOT {} ORDER BY seq LIMIT 1",
                is_left(&failures, "1")
            ),
            rows: format!(
                "SELECT count(*) FROM (SELECT 1 FROM {outbox} AS o WHERE {} LIMIT ?1)",
                ahead("?2", "?3")
            ),
            oldest_row: format!(
                "SELECT created_at FROM {outbox} AS o WHERE {} ORDER BY seq LIMIT 1",
                ahead("?1", "?2")
            ),
            set_aside: format!(
                "SELECT count(*) FROM
                 (SELECT 1 FROM {failures} WHERE pipeline = ?2 AND state = ?3 LIMIT ?1)"
            ),
            blocked_keys: format!(
                "SELECT count(*) FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM {failures}
                 WHERE pipeline = ?2 AND blocks = 1 LIMIT ?1)"
            ),
            discard: format!(
                "UPDATE {failures} SET state = 'discarded', blocks = 0, due_at = NULL,
                 payload = NULL, headers = NULL, set_aside_at = ?3
                 WHERE pipeline = ?1 AND seq = ?2"
            ),
            retry: format!(
                "UPDATE {failures} SET state = 'deferred', attempts = 0, due_at = ?3
                 WHERE pipeline = ?1 AND seq = ?2"
            ),
            failures,
        }
    }

    /// `?1` to `?9` a selection, `?10` after, `?11` limit, `?12` count limit: dead letters, with
    /// their contents if `whole`.
    pub(in super::super) fn letters(&self, selection: &Selection, whole: bool) -> String {
        let (failures, selected) = (&self.failures, selected(selection));
        let contents = match whole {
            true => ", f.content_type, f.headers, f.occurred_at, CAST(f.payload AS BLOB)",
            false => "",
        };
        format!(
            "SELECT f.rowid, f.pipeline, f.id, substr(f.aggregate_type, 1, {NAME_BYTES_MAX}),
             substr(f.aggregate_id, 1, {AGGREGATE_ID_BYTES_MAX}),
             substr(f.event_type, 1, {NAME_BYTES_MAX}), f.kind, f.error, f.attempts,
             f.set_aside_at,
             (SELECT count(*) FROM (SELECT 1 FROM {failures} AS b WHERE f.blocks = 1
              AND b.pipeline = f.pipeline AND b.aggregate_type = f.aggregate_type
              AND b.aggregate_id = f.aggregate_id AND b.seq > f.seq AND b.blocks = 1 LIMIT ?12)){contents}
             FROM {failures} AS f WHERE {selected} AND f.rowid > ?10 ORDER BY f.rowid LIMIT ?11"
        )
    }

    /// `?1` to `?9` a selection, `?10` after, `?11` limit: where dead letters stand.
    pub(in super::super) fn selected(&self, selection: &Selection) -> String {
        let (failures, selected) = (&self.failures, selected(selection));
        format!(
            "SELECT rowid, pipeline, seq FROM {failures} AS f WHERE {selected} AND rowid > ?10
             ORDER BY rowid LIMIT ?11"
        )
    }
}

/// `?1` pipeline, `?2` a JSON array of event ids, `?3` aggregate type, `?4` aggregate id, `?5` event
/// type, `?6` kind, `?7` a part of the error, `?8` parked since, `?9` until. A part that is not
/// given takes its parameter and matches everything. An id that was stored as a blob
/// is named by its hexadecimal digits.
fn selected(selection: &Selection) -> String {
    let part = |given: bool, given_sql: &'static str, absent_sql: &'static str| {
        if given { given_sql } else { absent_sql }
    };
    let pipeline = part(selection.pipeline.is_some(), "f.pipeline = ?1", "?1 IS NULL");
    let ids = part(
        !selection.event_ids.is_empty(),
        "f.id IN (SELECT value FROM json_each(?2)
         UNION ALL SELECT unhex(value, '-') FROM json_each(?2))",
        "?2 IS NULL",
    );
    let key = part(
        selection.key.is_some(),
        "f.aggregate_type = ?3 AND f.aggregate_id = ?4",
        "?3 IS NULL AND ?4 IS NULL",
    );
    let rest = "(?5 IS NULL OR f.event_type = ?5) AND (?6 IS NULL OR f.kind = ?6)
         AND (?7 IS NULL OR instr(lower(f.error), lower(?7)) > 0)
         AND (?8 IS NULL OR f.set_aside_at >= ?8) AND (?9 IS NULL OR f.set_aside_at < ?9)";
    format!("f.state = 'parked' AND {pipeline} AND {ids} AND {key} AND {rest}")
}
