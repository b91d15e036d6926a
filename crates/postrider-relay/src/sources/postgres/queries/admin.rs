//! Statements of an operator.
//!
//! Counting has a limit, and goes by an index wherever there is one.

use postrider::event::{AGGREGATE_ID_BYTES_MAX, NAME_BYTES_MAX};
use postrider::schema::TableName;

use super::super::table::Table;
use super::prune::rfc3339;
use super::{lock_failures, mend, of_shard, paused};
use crate::sources::Shard;

/// The statements of an operator.
#[derive(Debug)]
pub(in super::super) struct AdminQueries {
    table: Table,
    failures: String,
    /// `$2` pipeline: whether an operator has stopped it, or the key of the row `o` in it.
    paused: String,
    /// Pipeline, progress, shard, shards, last settlement; of a cursor's base the end and what was
    /// under way then; whether a tick is under way, and then the base, the tick's end, what was
    /// under way then, and the position in it; what is settled beyond; what is wrong with the sink,
    /// and since when; aggregate types.
    pub(in super::super) checkpoints: String,
    /// `$1` limit, `$2` aggregate types: the types of unpublished rows that are not among them, of
    /// the oldest and the newest, and how many there are.
    pub(in super::super) unmatched: String,
    /// `$1` pipeline: shard, owner, epoch, and microseconds until it expires.
    pub(in super::super) leases: String,
    /// `$1` limit: how many rows are unpublished, and the age of the oldest in microseconds.
    pub(in super::super) unpublished: String,
    /// `$1` limit, `$2` pipeline, `$3` state.
    pub(in super::super) set_aside: String,
    /// `$1` limit, `$2` pipeline.
    pub(in super::super) blocked_keys: String,
    /// `$1` to `$9` a selection, `$10` after, `$11` limit, `$12` count limit: dead letters.
    pub(in super::super) letters: String,
    /// The same with their contents.
    pub(in super::super) details: String,
    /// `$1` to `$9` a selection, `$10` after, `$11` limit: ordinal and pipeline of dead letters.
    pub(in super::super) selected: String,
    /// `$1` pipeline: nobody else changes what is set aside of it.
    pub(in super::super) lock_failures: String,
    /// `$1` ordinals: gives dead letters fresh attempts; answers pipeline, key and whether they
    /// block.
    pub(in super::super) retry: String,
    /// `$1` ordinals: discards dead letters, with their contents; answers the same.
    pub(in super::super) discard: String,
    /// `$1` pipeline, `$2` aggregate types, `$3` ids.
    pub(in super::super) mend: String,
}

/// What is shown of the rows that a cursor has before it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Shown {
    /// How many there are, and the age of the oldest in microseconds.
    Count,
    /// Those that are older than so many microseconds and not paused, as events that were missed:
    /// pipeline, seq, id, aggregate type and id, since.
    Events,
}

impl Shown {
    fn columns(self) -> &'static str {
        match self {
            Self::Count => "SELECT count(*), max(o.age)",
            Self::Events => {
                "SELECT $2, o.seq, o.id, coalesce(o.aggregate_type, ''),
                   coalesce(o.aggregate_id, ''), o.created_at"
            }
        }
    }

    fn end(self, age: &str, paused: &str) -> String {
        match self {
            Self::Count => String::new(),
            Self::Events => format!(" AND o.age > {age}::bigint AND NOT {paused} ORDER BY o.seq"),
        }
    }
}

/// `$1` names of tables, quoted: those that are missing.
pub(in super::super) const MISSING_TABLES: &str =
    "SELECT t.name FROM unnest($1::text[]) AS t (name) WHERE to_regclass(t.name) IS NULL";

/// `$1` a table, quoted: rows written to it and to its partitions, as the statistics have it.
pub(in super::super) const WRITTEN: &str =
    "SELECT sum(pg_stat_get_tuples_inserted(t.oid))::int8 FROM (SELECT to_regclass($1)::oid
     UNION SELECT p.relid::oid FROM pg_partition_tree(to_regclass($1)) AS p) AS t (oid)";

/// All statements of a transaction see the same.
pub(in super::super) const ONE_SNAPSHOT: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// The pipelines that have ever read the outbox.
pub(in super::super) fn pipelines(outbox: &TableName) -> String {
    let checkpoints = outbox.checkpoints().quoted();
    format!("SELECT DISTINCT pipeline FROM {checkpoints} ORDER BY pipeline")
}

impl AdminQueries {
    pub(in super::super) fn new(table: Table, outbox: &TableName) -> Self {
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let failures = outbox.failures().quoted();
        let (checkpoints, leases) = (outbox.checkpoints().quoted(), outbox.leases().quoted());
        let age = age(&table);
        let unpublished = unpublished(&table);
        let changed = "RETURNING pipeline, aggregate_type, aggregate_id, blocks";
        Self {
            checkpoints: format!(
                "SELECT pipeline, progress, shard, shards, settled_at,
                   coalesce(pg_snapshot_xmax(base)::text, '0'),
                   ARRAY(SELECT x::text FROM pg_snapshot_xip(base) AS x),
                   coalesce(base::text <> tick::text, false), base::text,
                   pg_snapshot_xmax(tick)::text,
                   ARRAY(SELECT x::text FROM pg_snapshot_xip(tick) AS x), position, beyond::text,
                   trouble, trouble_since,
                   aggregate_types
                 FROM {checkpoints} ORDER BY pipeline, shard"
            ),
            unmatched: {
                let rows = |order: &str| {
                    format!(
                        "(SELECT {seq}::bigint AS seq, {} AS aggregate_type FROM {name} AS o
                         WHERE {unpublished} ORDER BY {seq} {order} LIMIT $1)",
                        table.text("o", "aggregate_type")
                    )
                };
                format!(
                    "SELECT coalesce(left(u.aggregate_type, {NAME_BYTES_MAX}), ''), count(*)
                     FROM ({} UNION {}) AS u
                     WHERE NOT coalesce(u.aggregate_type = ANY($2), false)
                     GROUP BY 1 ORDER BY 2 DESC, 1",
                    rows("ASC"),
                    rows("DESC")
                )
            },
            leases: format!(
                "SELECT shard, owner, epoch, CASE WHEN expires_at > clock_timestamp() THEN
                   (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
                   ELSE 0 END
                 FROM {leases} WHERE pipeline = $1 ORDER BY shard"
            ),
            unpublished: format!(
                "SELECT count(*), max(u.age) FROM (SELECT {age} AS age FROM {name} AS o
                 WHERE {unpublished} ORDER BY {seq} LIMIT $1) AS u"
            ),
            set_aside: format!(
                "SELECT count(*) FROM (SELECT FROM {failures}
                 WHERE pipeline = $2 AND state = $3 LIMIT $1) AS s"
            ),
            blocked_keys: format!(
                "SELECT count(*) FROM (SELECT DISTINCT aggregate_type, aggregate_id FROM {failures}
                 WHERE pipeline = $2 AND blocks LIMIT $1) AS k"
            ),
            letters: letters(&failures, ""),
            details: letters(
                &failures,
                &format!(
                    ", coalesce(f.content_type, ''), coalesce(f.headers, ''), {}, f.payload",
                    rfc3339("f.occurred_at")
                ),
            ),
            selected: format!(
                "SELECT f.ordinal, f.pipeline FROM {failures} AS f
                 WHERE {SELECTED} AND f.ordinal > $10 ORDER BY f.ordinal LIMIT $11"
            ),
            lock_failures: lock_failures(outbox),
            retry: format!(
                "UPDATE {failures} SET state = 'deferred', attempts = 0, due_at = clock_timestamp()
                 WHERE ordinal = ANY($1) AND state = 'parked' {changed}"
            ),
            discard: format!(
                "WITH parked AS MATERIALIZED (SELECT pipeline, seq, aggregate_type, aggregate_id, blocks
                   FROM {failures} WHERE ordinal = ANY($1) AND state = 'parked' FOR UPDATE),
                 discarded AS (UPDATE {failures} AS f SET state = 'discarded', blocks = false,
                   due_at = NULL, payload = NULL, headers = NULL, set_aside_at = clock_timestamp()
                   FROM parked AS p WHERE f.pipeline = p.pipeline AND f.seq = p.seq)
                 SELECT pipeline, aggregate_type, aggregate_id, blocks FROM parked"
            ),
            mend: mend(outbox),
            paused: paused(outbox, "$2", "o.aggregate_type", "o.aggregate_id"),
            failures,
            table,
        }
    }

    /// `$1` limit, `$2` pipeline, `$3` beyond, `$4` a snapshot's end, `$5` what was under way then,
    /// `$6` a position or NULL, and `$7` with [`Shown::Events`]: the rows of a shard that the
    /// snapshot does not see, up to that position.
    pub(in super::super) fn unseen(&self, shard: Shard, shown: Shown) -> String {
        let (table, xid) = (&self.table, self.table.select("o", "xid"));
        let rows = |condition: &str| {
            format!(
                "(SELECT {} FROM {} AS o WHERE {condition} AND {} LIMIT $1)",
                self.columns(),
                table.quoted(),
                unpublished(table)
            )
        };
        format!(
            "{} FROM ({} UNION ALL {}) AS o WHERE ($6::bigint IS NULL OR o.seq <= $6){}{}{}",
            shown.columns(),
            rows(&format!("{xid} >= $4::text::xid8")),
            rows(&format!("{xid} = ANY($5::text[]::xid8[])")),
            of_shard(shard, "o.aggregate_type", "o.aggregate_id"),
            self.not_settled("o.seq"),
            shown.end("$7", &self.paused)
        )
    }

    /// `$1` limit, `$2` pipeline, `$3` beyond, `$4` base, `$5` position, and `$6` with
    /// [`Shown::Events`]: the rows of a shard that come after the position.
    pub(in super::super) fn after(&self, shard: Shard, shown: Shown) -> String {
        let (table, seq) = (&self.table, self.table.select("o", "seq"));
        format!(
            "{} FROM (SELECT {} FROM {} AS o
             WHERE {} AND {seq} > $5
             AND NOT pg_visible_in_snapshot({}, (SELECT $4::text::pg_snapshot)){}{}
             ORDER BY {seq} LIMIT $1) AS o WHERE true{}",
            shown.columns(),
            self.columns(),
            table.quoted(),
            unpublished(table),
            table.select("o", "xid"),
            of_shard(shard, &table.text("o", "aggregate_type"), &table.text("o", "aggregate_id")),
            self.not_settled(&format!("{seq}::bigint")),
            shown.end("$6", &self.paused)
        )
    }

    /// What is told of a row that a cursor has before it.
    fn columns(&self) -> String {
        let table = &self.table;
        format!(
            "{} AS age, {}::bigint AS seq, coalesce({}, '') AS id, {} AS aggregate_type,
             {} AS aggregate_id, {} AS created_at",
            age(table),
            table.select("o", "seq"),
            table.copy("o", "id"),
            table.text("o", "aggregate_type"),
            table.text("o", "aggregate_id"),
            table.time("o", "created_at")
        )
    }

    /// Neither settled beyond a position, `$3`, nor set aside by a pipeline, `$2`.
    fn not_settled(&self, seq: &str) -> String {
        let failures = &self.failures;
        format!(
            " AND NOT {seq} <@ (SELECT $3::text::int8multirange)
             AND NOT EXISTS (SELECT FROM {failures} AS s WHERE s.pipeline = $2 AND s.seq = {seq})"
        )
    }
}

/// `$1` pipeline, `$2` event ids, `$3` aggregate type, `$4` aggregate id, `$5` event type, `$6`
/// kind, `$7` a part of the error, `$8` parked since, `$9` until; what is NULL matches everything.
/// In the collation C only the letters of ASCII have another case.
const SELECTED: &str = "f.state = 'parked' AND ($1::text IS NULL OR f.pipeline = $1)
     AND ($2::text[] IS NULL OR f.id = ANY($2))
     AND ($3::text IS NULL OR f.aggregate_type = $3 AND f.aggregate_id = $4)
     AND ($5::text IS NULL OR f.event_type = $5) AND ($6::text IS NULL OR f.kind = $6)
     AND ($7::text IS NULL
       OR strpos(lower(f.error COLLATE \"C\"), lower($7 COLLATE \"C\")) > 0)
     AND ($8::timestamptz IS NULL OR f.set_aside_at >= $8)
     AND ($9::timestamptz IS NULL OR f.set_aside_at < $9)";

/// `$1` to `$9` a selection, `$10` after, `$11` limit, `$12` count limit: dead letters, with more
/// columns of each.
fn letters(failures: &str, more: &str) -> String {
    format!(
        "SELECT f.ordinal, f.pipeline, coalesce(f.id, ''),
           coalesce(left(f.aggregate_type, {NAME_BYTES_MAX}), ''),
           coalesce(left(f.aggregate_id, {AGGREGATE_ID_BYTES_MAX}), ''),
           coalesce(left(f.event_type, {NAME_BYTES_MAX}), ''),
           coalesce(f.kind, ''), coalesce(f.error, ''), f.attempts, f.set_aside_at,
           (SELECT count(*) FROM (SELECT FROM {failures} AS b WHERE f.blocks
             AND b.pipeline = f.pipeline AND b.aggregate_type = f.aggregate_type
             AND b.aggregate_id = f.aggregate_id AND b.seq > f.seq AND b.blocks
             LIMIT $12) AS b){more}
         FROM {failures} AS f WHERE {SELECTED} AND f.ordinal > $10
         ORDER BY f.ordinal LIMIT $11"
    )
}

fn unpublished(table: &Table) -> String {
    match table.has("published_at") {
        true => format!("{} IS NULL", table.select("o", "published_at")),
        false => "true".to_owned(),
    }
}

/// How long ago a row was written, in microseconds.
fn age(table: &Table) -> String {
    let created_at = table.time("o", "created_at");
    format!(
        "CASE WHEN isfinite({created_at}) THEN
         (extract(epoch FROM clock_timestamp() - {created_at}) * 1000000)::bigint END"
    )
}
