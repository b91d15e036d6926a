//! Statements that look for events that were missed.

use postrider::schema::TableName;

use super::super::table::Table;
use super::{lock_failures, mend, nothing_before, paused};
use crate::admin::COUNT_MAX;

/// How many rows behind one are looked at to tell whether it was overtaken.
const BEHIND: u32 = 100;
/// How many rows are looked at, the oldest first: a backlog is not read through.
const ROWS: u32 = 10_000;

/// The statements that look for events that were missed.
#[derive(Debug)]
pub(in super::super) struct ReconcileQueries {
    /// `$1` age in microseconds, `$2` limit: pipeline, seq, id, aggregate type and id, since.
    pub(in super::super) forgotten: String,
    /// The same parameters, and the same columns.
    pub(in super::super) overdue: String,
    /// `$1` and `$2` the same, `$3` aggregate types or NULL: the same columns, and whether it was
    /// overtaken.
    pub(in super::super) unmarked: String,
    /// `$1` pipeline: nobody else changes what is set aside of it.
    pub(in super::super) lock_failures: String,
    /// `$1` pipeline, `$2` aggregate types, `$3` ids.
    pub(in super::super) mend: String,
}

impl ReconcileQueries {
    pub(in super::super) fn new(table: &Table, outbox: &TableName) -> Self {
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let (failures, checkpoints) = (outbox.failures().quoted(), outbox.checkpoints().quoted());
        let is_first = nothing_before(&failures);
        let ago = "clock_timestamp() - $1 * interval '1 microsecond'";
        let aside = |since: &str, condition: &str| {
            format!(
                "SELECT f.pipeline, f.seq, coalesce(f.id, ''), coalesce(f.aggregate_type, ''),
                   coalesce(f.aggregate_id, ''), {since}
                 FROM (SELECT * FROM {failures} AS f WHERE {condition} AND {since} < {ago}
                   LIMIT {COUNT_MAX}) AS f
                 WHERE {is_first} ORDER BY f.pipeline, f.seq LIMIT $2"
            )
        };
        let unpublished = match table.has("published_at") {
            true => format!("{} IS NULL", table.select("o", "published_at")),
            false => "true".to_owned(),
        };
        let pipeline = format!(
            "coalesce((SELECT min(c.pipeline) FROM {checkpoints} AS c
             WHERE c.progress <> 'cursor'), 'default')"
        );
        let created_at = table.time("o", "created_at");
        let deliver_after = table.time("o", "deliver_after");
        let text = |column| table.text("o", column);
        let overtaken = match table.has("xid") && table.has("published_at") {
            true => format!(
                "EXISTS (SELECT FROM (SELECT {} AS published_at, {} AS aggregate_type,
                     {} AS aggregate_id
                   FROM {name} AS p WHERE {} > {} ORDER BY {} LIMIT {BEHIND}) AS q
                 WHERE q.published_at > {created_at} + $1 * interval '1 microsecond'
                 AND q.aggregate_type = {} AND q.aggregate_id = {})",
                table.time("p", "published_at"),
                table.text("p", "aggregate_type"),
                table.text("p", "aggregate_id"),
                table.select("p", "xid"),
                table.select("o", "xid"),
                table.select("p", "xid"),
                text("aggregate_type"),
                text("aggregate_id"),
            ),
            false => "false".to_owned(),
        };
        Self {
            forgotten: aside(
                "f.set_aside_at",
                "f.blocks AND f.state <> 'parked' AND f.due_at IS NULL",
            ),
            overdue: aside(
                "f.due_at",
                &format!(
                    "f.due_at IS NOT NULL AND NOT {}",
                    paused(outbox, "f.pipeline", "f.aggregate_type", "f.aggregate_id")
                ),
            ),
            unmarked: format!(
                "SELECT {pipeline}, {seq}::bigint, coalesce({}, ''), coalesce({}, ''),
                   coalesce({}, ''), {created_at}, {overtaken}
                 FROM (SELECT o.* FROM {name} AS o
                   WHERE {unpublished} AND ($3::text[] IS NULL OR {} = ANY($3))
                   AND NOT EXISTS (SELECT FROM {checkpoints} WHERE progress = 'cursor')
                   ORDER BY {seq} LIMIT {ROWS}) AS o
                 WHERE {created_at} < {ago} AND coalesce({deliver_after} < {ago}, true)
                 AND NOT {}
                 ORDER BY {seq} LIMIT $2",
                table.copy("o", "id"),
                text("aggregate_type"),
                text("aggregate_id"),
                text("aggregate_type"),
                paused(outbox, &pipeline, &text("aggregate_type"), &text("aggregate_id")),
            ),
            lock_failures: lock_failures(outbox),
            mend: mend(outbox),
        }
    }
}
