//! Statements that prune.
//!
//! A *stretch* is a part of a partitioned table, by the time of writing in seconds from 1970;
//! without one it is the whole table. Going by a stretch leaves all other partitions alone: its
//! ends are known when the statement is planned.

use postrider::schema::TableName;
use tokio_postgres::types::Type;

use super::super::table::Table;
use super::events::{has_published, of_checkpoint};
use super::literal;

/// The statements that prune.
#[derive(Debug)]
pub(in super::super) struct PruneQueries {
    /// Whether the table is partitioned, by what, and whether postrider made it so.
    pub(in super::super) layout: String,
    /// Nobody else prunes until the transaction ends; false if somebody does.
    pub(in super::super) lock: String,
    /// `$1` the cluster: whether there is a checkpoint, whether one is not a cursor, the first
    /// transaction that a cursor may not have behind it, a pipeline whose cursor was made in
    /// another cluster, and whether a pipeline matches everything.
    pub(in super::super) checkpoints: String,
    /// `$1` place, `$2` limit, `$3` cutoff, `$4` and `$5` a stretch: the next rows in order.
    pub(in super::super) window: String,
    /// `$1` where rows stand, `$2` their numbers, `$3` and `$4` a stretch: removes rows.
    pub(in super::super) remove: String,
    /// The same parameters: removes rows and answers them as they stood.
    pub(in super::super) take_out: String,
    /// `$1` cutoff, `$2` limit: forgets what was discarded before, and is not in the outbox any
    /// more.
    pub(in super::super) forget_discarded: String,
    /// Name and bounds of each partition in order, and whether it ends before `$1`, a cutoff.
    pub(in super::super) partitions: String,
    /// `$1` and `$2` a stretch, `$3` the first transaction that a cursor may not have behind it:
    /// the snapshot, whether there is a row, and a pipeline that needs one.
    pub(in super::super) needed: String,
    /// `$1` and `$2` a stretch, `$3` and `$4` blocks: whether there is a row that no pipeline has
    /// published.
    pub(in super::super) unmatched: String,
    /// `$1` a partition: how many blocks it has.
    pub(in super::super) blocks: String,
    /// `$1` and `$2` a stretch, `$3` and `$4` blocks, `$5` cutoff: whether a row was published
    /// after it.
    pub(in super::super) published_after: String,
    /// `$1` and `$2` a stretch, `$3` after a place, `$4` up to a block, `$5` bytes: rows as they
    /// stand, in order of their place, which comes last.
    pub(in super::super) page: String,
    /// `$1` a partition, `$2` a snapshot, `$3` whether rows are marked: removes it, if nothing
    /// came since; NULL if something did.
    pub(in super::super) drop_partition: String,
    /// Creates partitions ahead; answers how many.
    pub(in super::super) add_partitions: String,
}

/// `$1` microseconds: the time so long ago.
pub(in super::super) const CUTOFF: &str =
    "SELECT (clock_timestamp() - $1 * interval '1 microsecond')::text";

/// Columns of `window`, and of `page`.
pub(in super::super) mod column {
    /// Where the row stands.
    pub(in super::super::super) const AT: usize = 0;
    /// The row's place in the order.
    pub(in super::super::super) const PLACE: usize = 1;
    pub(in super::super::super) const SEQ: usize = 2;
    /// It is past its retention.
    pub(in super::super::super) const IS_OLD: usize = 3;
    /// Bytes of its payload.
    pub(in super::super::super) const BYTES: usize = 4;
    /// A pipeline that needs it, if it is old.
    pub(in super::super::super) const NEEDED_BY: usize = 5;
    /// No pipeline has published it, if it is old.
    pub(in super::super::super) const UNMATCHED: usize = 6;
    /// Where a row stands, in `page`.
    pub(in super::super::super) const PAGE_AT: usize = 13;
}

/// The column by which rows are looked through, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Order {
    pub(in super::super) column: &'static str,
    ty: &'static str,
    /// Before the first.
    pub(in super::super) start: &'static str,
}

impl Order {
    /// Transactions are numbered in the order of time. A table without their numbers has only
    /// its own.
    pub(in super::super) fn of(table: &Table) -> Self {
        match table.has("xid") {
            true => Self { column: "xid", ty: "xid8", start: "0" },
            false => Self { column: "seq", ty: "bigint", start: "-9223372036854775808" },
        }
    }
}

impl PruneQueries {
    pub(in super::super) fn new(table: &Table, outbox: &TableName) -> Self {
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let (checkpoints, failures) = (outbox.checkpoints().quoted(), outbox.failures().quoted());
        let function = |suffix: &str| {
            let quoted = outbox.quoted();
            format!("{}{suffix}\"", quoted.trim_end_matches('"'))
        };
        let this = format!("{}::regclass", literal(name));
        let order = Order::of(table);
        let place = table.select("o", order.column);
        let (published_at, created_at) =
            (table.time("o", "published_at"), table.time("o", "created_at"));
        let stretch = |from: &str, to: &str| {
            format!(
                "({from}::float8 IS NULL OR {created_at} >= to_timestamp({from}))
                 AND ({to}::float8 IS NULL OR {created_at} < to_timestamp({to}))"
            )
        };
        let removed = format!(
            "DELETE FROM {name} AS o WHERE o.ctid = ANY($1::text[]::tid[]) AND {seq} = ANY($2)
             AND {}",
            stretch("$3", "$4")
        );
        let archived = archived(table);
        let (aggregate_type, aggregate_id) =
            (table.text("o", "aggregate_type"), table.text("o", "aggregate_id"));
        let unmatched = |xid: &str, seq: &str, aggregate_type: &str, aggregate_id: &str| {
            if !table.has("xid") {
                // There can be no cursor, and what is not marked is needed.
                return "false".to_owned();
            }
            format!(
                "NOT EXISTS (SELECT FROM {checkpoints} AS c WHERE c.progress = 'cursor' AND {} AND {})",
                of_checkpoint(aggregate_type, aggregate_id),
                has_published(seq, xid, aggregate_type)
            )
        };
        Self {
            layout: format!(
                "SELECT c.relkind = 'p', pg_get_partkeydef(c.oid), to_regprocedure({}) IS NOT NULL
                 FROM pg_class AS c WHERE c.oid = {this}",
                literal(&format!("{}(text, pg_snapshot, boolean)", function("_drop_partition")))
            ),
            lock: format!(
                "SELECT pg_try_advisory_xact_lock(hashtextextended('postrider prune',
                 {this}::oid::bigint))"
            ),
            checkpoints: format!(
                "SELECT count(*) > 0, coalesce(bool_or(c.progress <> 'cursor'), false),
                   coalesce(min(coalesce(pg_snapshot_xmin(c.base)::text::numeric, 0))::text, '0'),
                   min(c.pipeline) FILTER (WHERE c.progress = 'cursor' AND (
                     c.system_id <> $1
                     OR pg_snapshot_xmax(c.tick) > pg_snapshot_xmax(pg_current_snapshot()))),
                   EXISTS (SELECT FROM {checkpoints} AS a GROUP BY a.pipeline HAVING bool_and(
                     coalesce(a.progress = 'cursor' AND a.aggregate_types = '{{}}'
                       AND a.since IS NULL, false)))
                 FROM {checkpoints} AS c"
            ),
            window: format!(
                "SELECT w.at, w.place::text, w.seq, w.old, w.bytes,
                   CASE WHEN w.old AND NOT w.marked THEN (
                     SELECT c.pipeline FROM {checkpoints} AS c
                     WHERE c.progress <> 'cursor' OR {}
                     ORDER BY c.pipeline LIMIT 1) END,
                   w.old AND NOT w.marked AND {}
                 FROM (
                   SELECT o.ctid::text AS at, {place} AS place, {seq}::bigint AS seq,
                     {} AS xid, coalesce(coalesce({published_at}, {created_at})
                       <= $3::text::timestamptz, false) AS old,
                     {published_at} IS NOT NULL AS marked, {}::bigint AS bytes,
                     {aggregate_type} AS aggregate_type, {aggregate_id} AS aggregate_id
                   FROM {name} AS o WHERE {place} >= $1::text::{} AND {}
                   ORDER BY {place} LIMIT $2
                 ) AS w ORDER BY w.place",
                unsettled(table, "w.xid", "w.seq"),
                unmatched("w.xid", "w.seq", "w.aggregate_type", "w.aggregate_id"),
                table.select("o", "xid"),
                table.length("o", "payload"),
                order.ty,
                stretch("$4", "$5")
            ),
            forget_discarded: format!(
                "DELETE FROM {failures} WHERE ctid = ANY(ARRAY(SELECT f.ctid FROM {failures} AS f
                 WHERE f.state = 'discarded' AND f.set_aside_at <= $1::text::timestamptz
                 AND NOT EXISTS (SELECT FROM {name} AS o WHERE {} AND {seq}::bigint = f.seq)
                 LIMIT $2)) AND state = 'discarded'",
                is_id_of_failure(table)
            ),
            take_out: format!("{removed} RETURNING {archived}"),
            remove: removed,
            partitions: format!(
                "SELECT p.name, extract(epoch FROM p.since)::float8,
                   extract(epoch FROM p.until)::float8, p.until <= $1::text::timestamptz
                 FROM (
                   SELECT c.relname::text AS name,
                     (regexp_match(b.bounds, {}))[1]::timestamptz AS since,
                     (regexp_match(b.bounds, {}))[1]::timestamptz AS until
                   FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid,
                     pg_get_expr(c.relpartbound, c.oid) AS b (bounds)
                   WHERE i.inhparent = {this}
                 ) AS p WHERE p.since IS NOT NULL AND p.until IS NOT NULL
                 ORDER BY p.since",
                literal(r"FROM \('([^']*)'\)"),
                literal(r"TO \('([^']*)'\)")
            ),
            needed: format!(
                "SELECT pg_current_snapshot()::text,
                   EXISTS (SELECT FROM {name} AS o WHERE {}),
                   (SELECT c.pipeline FROM {checkpoints} AS c WHERE EXISTS (
                      SELECT FROM {name} AS o WHERE {published_at} IS NULL AND {}
                      AND c.progress <> 'cursor')
                    OR EXISTS (
                      SELECT FROM {name} AS o WHERE {published_at} IS NULL AND {}
                      AND {} >= $3::text::xid8 AND c.progress = 'cursor' AND {})
                    ORDER BY c.pipeline LIMIT 1)",
                stretch("$1", "$2"),
                stretch("$1", "$2"),
                stretch("$1", "$2"),
                table.select("o", "xid"),
                unsettled(table, &table.select("o", "xid"), &seq)
            ),
            unmatched: format!(
                "SELECT EXISTS (SELECT FROM {name} AS o WHERE {}
                 AND o.ctid >= $3::text::tid AND o.ctid < $4::text::tid
                 AND {published_at} IS NULL AND {})",
                stretch("$1", "$2"),
                unmatched(
                    &table.select("o", "xid"),
                    &format!("{seq}::bigint"),
                    &aggregate_type,
                    &aggregate_id
                )
            ),
            blocks: "SELECT pg_relation_size(to_regclass(quote_ident($1)))
                 / current_setting('block_size')::bigint"
                .to_owned(),
            published_after: format!(
                "SELECT EXISTS (SELECT FROM {name} AS o WHERE {}
                 AND o.ctid >= $3::text::tid AND o.ctid < $4::text::tid
                 AND {published_at} > $5::text::timestamptz)",
                stretch("$1", "$2")
            ),
            page: format!(
                "SELECT {}, p.at FROM (
                   SELECT {archived}, o.ctid::text AS at, o.ctid AS place,
                     sum({length}::bigint) OVER (ORDER BY o.ctid) - {length} AS before
                   FROM {name} AS o
                   WHERE {} AND o.ctid > $3::text::tid AND o.ctid < $4::text::tid
                 ) AS p WHERE p.before < $5 ORDER BY p.place",
                archived_names("p"),
                stretch("$1", "$2"),
                length = table.length("o", "payload"),
            ),
            drop_partition: format!(
                "SELECT {}($1, $2::text::pg_snapshot, $3)",
                function("_drop_partition")
            ),
            add_partitions: format!("SELECT {}()", function("_add_partitions")),
        }
    }
}

/// Whether a row has the id of `f`, which was set aside: by the index of ids. What can be no id of
/// the table is none.
fn is_id_of_failure(table: &Table) -> String {
    let id = table.select("o", "id");
    let (form, ty) = match table.ty("id") {
        Some(&Type::UUID) => ("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "uuid"),
        Some(&Type::INT2 | &Type::INT4 | &Type::INT8) => ("-?[0-9]{1,18}", "bigint"),
        Some(&Type::TEXT) => return format!("{id} = f.id"),
        _ => return format!("{id}::text = f.id"),
    };
    format!("{id} = CASE WHEN f.id ~ '^{form}$' THEN f.id::{ty} END")
}

/// Whether the checkpoint `c` has a row still before it, by the row's transaction and number.
fn unsettled(table: &Table, xid: &str, seq: &str) -> String {
    if !table.has("xid") {
        return "true".to_owned();
    }
    format!(
        "NOT (coalesce(pg_visible_in_snapshot({xid}, c.base), false)
         OR coalesce(pg_visible_in_snapshot({xid}, c.tick) AND {seq} <= c.position, false)
         OR coalesce(pg_visible_in_snapshot({xid}, c.seen) AND {seq}::bigint <@ c.beyond, false))"
    )
}

/// The columns of a row for the archive, in the order of [`archived_names`].
fn archived(table: &Table) -> String {
    let text = |column: &str| table.text("o", column);
    let moment = |column: &str| rfc3339(&table.time("o", column));
    [
        format!("{}::bigint AS a0", table.select("o", "seq")),
        format!("{} AS a1", text("id")),
        format!("{} AS a2", text("aggregate_type")),
        format!("{} AS a3", text("aggregate_id")),
        format!("{} AS a4", text("event_type")),
        format!("{}::text AS a5", table.select("o", "event_version")),
        format!("{} AS a6", text("topic")),
        format!("{} AS a7", text("headers")),
        format!("{} AS a8", moment("occurred_at")),
        format!("{} AS a9", text("content_type")),
        format!("{} AS a10", table.copy("o", "payload")),
        format!("{} AS a11", moment("created_at")),
        format!("{} AS a12", moment("published_at")),
    ]
    .join(", ")
}

fn archived_names(alias: &str) -> String {
    (0..13).map(|index| format!("{alias}.a{index}")).collect::<Vec<_>>().join(", ")
}

/// A time as text that everybody can read.
pub(super) fn rfc3339(time: &str) -> String {
    format!(
        "CASE WHEN isfinite({time}) THEN
         to_char({time} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')
         ELSE {time}::text END"
    )
}
