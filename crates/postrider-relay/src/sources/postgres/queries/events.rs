//! Statements that look at single events.
//!
//! Whatever is asked often goes by the index of ids or that of transactions; `stored` looks
//! through the table.

use postrider::event::{AGGREGATE_ID_BYTES_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use postrider::schema::TableName;
use tokio_postgres::types::Type;

use super::super::table::Table;
use super::{HEADERS_BYTES_MAX, Selected};

/// The statements that look at single events.
#[derive(Debug)]
pub(in super::super) struct EventQueries {
    /// `$1` event id, `$2` whether with payload: the row, and when it was marked.
    pub(in super::super) row: String,
    /// `$1` event id, `$2` whether with payload: rows set aside, then pipeline, state, since, due,
    /// attempts, kind and error.
    pub(in super::super) set_aside: String,
    /// `$1` seq, `$2` transaction, `$3` aggregate type, `$4` id, `$5` count limit: pipeline,
    /// progress, whether a cursor is past it, how many are ahead, and of the first of them id,
    /// state, since, due, attempts, kind and error.
    pub(in super::super) standings: String,
    /// `$1` looked at, `$2` limit, `$3` to `$7` wanted, `$8` whether with payload: newest first.
    pub(in super::super) newest: String,
    /// `$1` after, `$2` limit, `$3` to `$7` wanted, `$8` whether with payload, `$9` base, `$10` tick:
    /// what one snapshot sees and the other does not.
    pub(in super::super) written: String,
    /// The largest number that the table has.
    pub(in super::super) last: String,
    /// `$1` after, `$2` limit, `$3` to `$7` wanted: seq, id and bytes of the payload.
    pub(in super::super) stored: String,
    /// `$1` event ids, `$2` numbers, `$3` pipeline, `$4` its aggregate types: number, state if it is
    /// set aside, whether it is of these types, whether the pipeline is past it, and whether it was
    /// this pipeline that published it.
    pub(in super::super) fates: String,
    /// `$1` event ids, `$2` numbers: events for [`row`](super::super::row).
    pub(in super::super) read: String,
}

impl EventQueries {
    pub(in super::super) fn new(table: &Table, outbox: &TableName) -> Self {
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let failures = outbox.failures().quoted();
        let checkpoints = outbox.checkpoints().quoted();
        let of_outbox = |payload: &str| {
            let xid = match table.has("xid") {
                true => format!("{}::text", table.select("o", "xid")),
                false => "NULL::text".to_owned(),
            };
            columns(|column| table.copy("o", column), &xid, payload)
        };
        let of_failures = columns(|column| format!("f.{column}"), "NULL::text", "$2");
        let why = |alias: &str| {
            let names = ["state", "set_aside_at", "due_at", "attempts", "kind", "error"];
            names.map(|column| format!("{alias}.{column}")).join(", ")
        };
        let wanted = wanted(table);
        let order = if table.has("xid") { table.select("o", "xid") } else { seq.clone() };
        let event = Selected::of_outbox(table);
        let number = format!("{seq}::bigint");
        let xid = match table.has("xid") {
            true => table.select("o", "xid"),
            false => "NULL::xid8".to_owned(),
        };
        Self {
            row: format!(
                "SELECT {}, {} FROM {name} AS o WHERE {}",
                of_outbox("$2"),
                table.time("o", "published_at"),
                is_id(table, "= $1", "")
            ),
            set_aside: format!(
                "SELECT {of_failures}, f.pipeline, {} FROM {failures} AS f WHERE f.id = $1
                 ORDER BY f.pipeline, f.seq",
                why("f")
            ),
            standings: format!(
                "SELECT c.pipeline, c.progress, {},
                   (SELECT count(*) FROM (SELECT FROM {failures} AS b WHERE {before} LIMIT $5) AS b),
                   e.id, {}
                 FROM {checkpoints} AS c LEFT JOIN LATERAL (SELECT b.* FROM {failures} AS b
                   WHERE {before} ORDER BY b.seq LIMIT 1) AS e ON true
                 WHERE {} ORDER BY c.pipeline",
                is_passed("$1", "$2::text::xid8"),
                why("e"),
                of_checkpoint("$3", "$4"),
                before = "b.pipeline = c.pipeline AND b.aggregate_type = $3
                   AND b.aggregate_id = $4 AND b.blocks AND b.seq < $1",
            ),
            newest: format!(
                "SELECT {COLUMNS} FROM (SELECT {}, {wanted} AS is_wanted FROM {name} AS o
                 ORDER BY {order} DESC, {seq} DESC LIMIT $1) AS e
                 WHERE e.is_wanted ORDER BY e.position DESC LIMIT $2",
                of_outbox("$8")
            ),
            written: match table.has("xid") {
                true => written(table, &of_outbox("$8"), &wanted),
                false => format!(
                    "SELECT {} FROM {name} AS o WHERE {seq} > $1 AND {wanted}
                     AND $9::text IS NULL AND $10::text IS NULL ORDER BY {seq} LIMIT $2",
                    of_outbox("$8")
                ),
            },
            last: format!("SELECT max({seq})::bigint FROM {name} AS o"),
            stored: format!(
                "SELECT {seq}::bigint, {}, coalesce(octet_length({}), 0)::bigint, {}
                 FROM {name} AS o WHERE {seq} > $1 AND {wanted} ORDER BY {seq} LIMIT $2",
                table.copy("o", "id"),
                table.copy("o", "payload"),
                table.copy("o", "created_at")
            ),
            fates: format!(
                "SELECT {seq}::bigint, (SELECT f.state FROM {failures} AS f
                     WHERE f.pipeline = $3 AND f.seq = {seq}),
                   cardinality($4::text[]) = 0 OR coalesce({} = ANY($4), false),
                   coalesce(c.is_settled, false), coalesce(c.is_published, false)
                 FROM {name} AS o LEFT JOIN LATERAL (
                   SELECT CASE WHEN c.progress = 'cursor' THEN {passed} ELSE {marked} IS NOT NULL END
                       AS is_settled,
                     CASE WHEN {marked} IS NOT NULL THEN {marked} >= (
                         SELECT min(coalesce(b.began_at, '-infinity')) FROM {checkpoints} AS b
                         WHERE b.pipeline = $3)
                       WHEN c.progress <> 'cursor' THEN false
                       -- No relay has said yet what it matches.
                       WHEN c.aggregate_types IS NULL THEN {passed}
                       ELSE {} END AS is_published
                   FROM {checkpoints} AS c WHERE c.pipeline = $3 AND {} LIMIT 1
                 ) AS c ON true
                 WHERE {} AND {seq} = ANY($2)",
                table.text("o", "aggregate_type"),
                has_published(&number, &xid, &table.text("o", "aggregate_type")),
                of_checkpoint(&table.text("o", "aggregate_type"), &table.text("o", "aggregate_id")),
                is_id(table, "= ANY($1)", "[]"),
                passed = is_passed(&number, &xid),
                marked = table.time("o", "published_at"),
            ),
            read: format!(
                "SELECT {} FROM {name} AS o WHERE {} AND {seq} = ANY($2) ORDER BY {seq}",
                event.columns,
                is_id(table, "= ANY($1)", "[]")
            ),
        }
    }
}

/// Whether a row is one of those of the checkpoint `c`, if there are several shards.
pub(in super::super) fn of_checkpoint(aggregate_type: &str, aggregate_id: &str) -> String {
    format!(
        "(c.shards <= 1 OR (hashtextextended(coalesce({aggregate_id}, ''),
           hashtextextended(coalesce({aggregate_type}, ''), 0)) & 9223372036854775807)
           % c.shards = c.shard)"
    )
}

/// Whether the pipeline of a cursor's checkpoint `c` has published a row, or set it aside: it is
/// past it, and matched its type then.
pub(in super::super) fn has_published(seq: &str, xid: &str, aggregate_type: &str) -> String {
    format!(
        "({} AND NOT {} AND (coalesce(c.aggregate_types = '{{}}'
           OR {aggregate_type} = ANY(c.aggregate_types), false) OR {} OR {}))",
        is_passed(seq, xid),
        sees("c.since", xid),
        sees(&format!("(c.formerly ->> {aggregate_type})::pg_snapshot"), xid),
        sees("(c.formerly ->> '')::pg_snapshot", xid)
    )
}

/// Whether a snapshot, if there is one, sees a transaction.
pub(in super::super) fn sees(snapshot: &str, xid: &str) -> String {
    format!("coalesce(pg_visible_in_snapshot({xid}, {snapshot}), false)")
}

/// Whether the cursor of a checkpoint `c` is past a row.
pub(in super::super) fn is_passed(seq: &str, xid: &str) -> String {
    format!(
        "(coalesce(pg_visible_in_snapshot({xid}, c.base), false)
         OR coalesce({seq} <= c.position AND pg_visible_in_snapshot({xid}, c.tick), false)
         OR coalesce({seq} <@ c.beyond AND pg_visible_in_snapshot({xid}, c.seen), false))"
    )
}

/// What has become visible between two snapshots, `$9` and `$10`: of transactions that began since
/// then, and of those that were under way.
fn written(table: &Table, columns: &str, wanted: &str) -> String {
    let (name, seq) = (table.quoted(), table.select("o", "seq"));
    let xid = table.select("o", "xid");
    let rows = |condition: &str| {
        format!(
            "(SELECT {columns} FROM {name} AS o WHERE {condition} AND {seq} > $1 AND {wanted}
             AND pg_visible_in_snapshot({xid}, (SELECT $10::text::pg_snapshot)))"
        )
    };
    format!(
        "SELECT {COLUMNS} FROM ({} UNION ALL {}) AS e ORDER BY e.position LIMIT $2",
        rows(&format!("{xid} >= (SELECT pg_snapshot_xmax($9::text::pg_snapshot))")),
        rows(&format!("{xid} = ANY(ARRAY(SELECT pg_snapshot_xip($9::text::pg_snapshot)))")),
    )
}

/// The columns that [`columns`] names.
const COLUMNS: &str = "e.position, e.xid, e.id, e.aggregate_type, e.aggregate_id, e.event_type,
     e.event_version, e.content_type, e.headers, e.topic, e.occurred_at, e.created_at,
     e.deliver_after, e.payload_bytes, e.payload";

/// The columns of an event as an operator sees it, none longer than an event may have it.
fn columns(copy: impl Fn(&str) -> String, xid: &str, payload: &str) -> String {
    let text = |column: &str, max: usize| {
        format!("coalesce(left({}, {max}), '') AS {column}", copy(column))
    };
    let (bytes, contents) = (format!("octet_length({})", copy("payload")), copy("payload"));
    [
        format!("{}::bigint AS position", copy("seq")),
        format!("{xid} AS xid"),
        text("id", NAME_BYTES_MAX),
        text("aggregate_type", NAME_BYTES_MAX),
        text("aggregate_id", AGGREGATE_ID_BYTES_MAX),
        text("event_type", NAME_BYTES_MAX),
        format!("{} AS event_version", copy("event_version")),
        text("content_type", NAME_BYTES_MAX),
        text("headers", HEADERS_BYTES_MAX),
        format!("left({}, {NAME_BYTES_MAX}) AS topic", copy("topic")),
        format!("{} AS occurred_at", copy("occurred_at")),
        format!("{} AS created_at", copy("created_at")),
        format!("{} AS deliver_after", copy("deliver_after")),
        format!("coalesce({bytes}, 0)::bigint AS payload_bytes"),
        format!(
            "CASE WHEN {payload}::boolean AND {bytes} <= {PAYLOAD_BYTES_MAX}
             THEN {contents} END AS payload"
        ),
    ]
    .join(", ")
}

/// `$3` event type, `$4` aggregate type, `$5` aggregate id, `$6` since, `$7` until; what is NULL
/// matches everything.
fn wanted(table: &Table) -> String {
    let text = |column| table.text("o", column);
    let created_at = table.time("o", "created_at");
    format!(
        "($3::text IS NULL OR {} = $3) AND ($4::text IS NULL OR {} = $4)
         AND ($5::text IS NULL OR {} = $5)
         AND ($6::timestamptz IS NULL OR {created_at} >= $6)
         AND ($7::timestamptz IS NULL OR {created_at} < $7)",
        text("event_type"),
        text("aggregate_type"),
        text("aggregate_id")
    )
}

/// A comparison of ids with `$1`, a text, by the index that the column has.
pub(super) fn is_id(table: &Table, compares: &str, array: &str) -> String {
    let column = table.select("o", "id");
    let ty = match table.ty("id") {
        Some(&Type::UUID) => "uuid",
        Some(&Type::INT2 | &Type::INT4 | &Type::INT8) => "bigint",
        Some(&Type::TEXT) => "text",
        _ => {
            let cast = format!("$1::text{array}");
            return format!("{column}::text {}", compares.replace("$1", &cast));
        }
    };
    let cast = format!("$1::text{array}::{ty}{array}");
    format!("{column} {}", compares.replace("$1", &cast))
}
