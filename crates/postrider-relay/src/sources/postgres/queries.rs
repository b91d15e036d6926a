//! Every SQL statement of a PostgreSQL source.
//!
//! Rules that hold for all of them:
//!
//! - Names come quoted from [`Table`] and [`TableName`], values are always bound.
//! - A column of outside bytes is never loaded beyond what an event may have: `octet_length`
//!   does not fetch what is stored out of line. One that is too long comes as NULL, and the
//!   lengths come beside it.
//! - The clock is the database's own.
//! - What reads or settles for a pipeline does nothing on another timeline than the one where the
//!   lease was taken ([`cluster`](super::cluster)).
//! - Each statement stands alone, so that it works behind a pooler that gives every transaction
//!   another connection.

mod admin;
pub(super) mod audit;
pub(super) mod diagnosis;
mod events;
mod prune;
mod reconcile;
pub(super) mod scratch;
mod stops;

use postrider::event::PAYLOAD_BYTES_MAX;
use postrider::schema::TableName;
use tokio_postgres::types::Type;

use self::events::is_id;
use super::cluster::Origin;
use super::log::Log;
use super::row::{LIMITS, SEQ_UNREADABLE};
use super::table::Table;
use crate::sources::Shard;

pub(super) use self::admin::{
    AdminQueries, MISSING_TABLES, ONE_SNAPSHOT, Shown, WRITTEN, pipelines,
};
pub(super) use self::events::{EventQueries, has_published, is_passed, of_checkpoint, sees};
pub(super) use self::prune::{CUTOFF, Order, PruneQueries, column as pruning};
pub(super) use self::reconcile::ReconcileQueries;
pub(super) use self::stops::StopQueries;

/// Longest JSON of headers that is looked at, in bytes. Escaped text is up to six times as long.
pub(super) const HEADERS_BYTES_MAX: usize = 8 * postrider::event::HEADERS_BYTES_MAX;

/// The time now.
pub(super) const CLOCK: &str = "SELECT clock_timestamp()";

/// The snapshot of now.
pub(super) const SNAPSHOT: &str = "SELECT pg_current_snapshot()::text";

/// Whether the database can store every character.
pub(super) const IS_UTF8: &str = "SELECT getdatabaseencoding() = 'UTF8'";

/// Before a statement that reads in the order of an index and stops at a limit: without good
/// statistics the planner may prefer to sort everything first, for every page anew. What sorting
/// cannot be avoided is then thought to cost so much that compiling the statement, which takes
/// up to seconds, seems worth it: that is turned off, too.
pub(super) const IN_ORDER: &str = "SET LOCAL enable_sort = off; SET LOCAL enable_seqscan = off; \
     SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off";

/// Before a statement that finds a few rows by their transaction: without good statistics the
/// planner may think that they are many.
pub(super) const FEW_ROWS: &str = "SET LOCAL enable_seqscan = off; SET LOCAL jit = off";

/// A row is set aside that is there already, unless it is another one with its number. What was
/// discarded keeps no contents, and makes room for another one.
const OR_AGAIN: &str = "ON CONFLICT (pipeline, seq) DO UPDATE SET state = excluded.state,
     blocks = excluded.blocks, due_at = excluded.due_at, attempts = excluded.attempts,
     kind = excluded.kind, error = excluded.error, set_aside_at = excluded.set_aside_at,
     id = excluded.id, aggregate_type = excluded.aggregate_type,
     aggregate_id = excluded.aggregate_id, event_type = excluded.event_type,
     event_version = excluded.event_version, payload = excluded.payload,
     content_type = excluded.content_type, headers = excluded.headers, topic = excluded.topic,
     occurred_at = excluded.occurred_at, created_at = excluded.created_at,
     deliver_after = excluded.deliver_after
     WHERE f.id IS NOT DISTINCT FROM excluded.id OR f.state = 'discarded'";

/// What a row takes besides its payload and headers, about, in bytes.
const ROW_BYTES: usize = 256;

/// Columns of a bounded statement behind those of the event.
pub(super) mod column {
    use super::super::row::column::MORE;

    /// Rows there were, with those that did not fit.
    pub(in super::super) const TOTAL: usize = MORE;
    /// How long the event is not to be delivered yet, in microseconds.
    pub(in super::super) const DELAY: usize = MORE + 1;
    /// The snapshot of a tick; how often a row that was set aside was tried.
    pub(in super::super) const SNAPSHOT: usize = MORE + 2;
    pub(in super::super) const ATTEMPTS: usize = MORE + 2;
    /// The last transaction of which a tick sees a row.
    pub(in super::super) const LAST_XID: usize = MORE + 3;
    /// Whether others of its key wait behind a row that was set aside.
    pub(in super::super) const BLOCKS: usize = MORE + 3;
}

/// The statements that read.
#[derive(Debug)]
pub(super) struct Reads {
    /// `$1` limit, `$2` bytes, `$3` types, `$4` xmax, `$5` under way: what has become visible
    /// since a snapshot, after a row that says which snapshot is the next. It says none on another
    /// timeline. More rows than the limit are any of those that there are.
    pub(super) tick: String,
    /// The same, if all rows are small.
    pub(super) small_tick: String,
    /// `$1` xmax, `$2` under way, `$3` types: the snapshot of now, as [`now`](Self::now) has it, and
    /// the first number that has become visible since a snapshot: not by the index of numbers, which
    /// leads through all rows that there are.
    pub(super) first: String,
    /// `$1` pipeline, `$2` xmax, `$3` under way: whether something has become visible since a
    /// snapshot, or may have come due. It costs next to nothing.
    pub(super) anything: String,
    /// `$1` a transaction: the snapshot of now, and the last transaction from there on of which it
    /// sees a row. On another timeline there is none.
    pub(super) now: String,
    /// `$1` limit, `$2` bytes, `$3` types, `$4` after, `$5` from, `$6` to: a page of a tick.
    pub(super) page: String,
    /// The same, if all rows are small.
    pub(super) small_page: String,
    /// `$1` limit, `$2` bytes, `$3` types, `$4` pipeline: the row whose number no tick has, unless it
    /// is set aside.
    pub(super) unreadable: String,
    /// `$1` limit, `$2` bytes, `$3` types, `$4` numbers that are under way: unpublished rows.
    pub(super) scan: String,
    /// `$1` limit, `$2` bytes, `$3` types, `$4` pipeline, `$5` shard, `$6` epoch: claims
    /// unpublished rows that nobody has claimed.
    pub(super) claim: String,
    /// `$1` limit, `$2` bytes, `$3` numbers: rows by their number.
    pub(super) rows: String,
    /// `$1` limit, `$2` bytes, `$3` pipeline, `$4` numbers under way: what is due of the rows set
    /// aside, with what may follow.
    pub(super) due: String,
    /// `$1` limit, `$2` bytes, `$3` pipeline, `$4` shard, `$5` epoch: claims what is due.
    pub(super) claim_due: String,
    /// `$1` types, `$2` base, `$3` tick, `$4` position, `$5` seen, `$6` beyond, `$7` end of base, `$8`
    /// what it has under way: whether a row could be delivered.
    pub(super) pending: String,
    /// `$1` pipeline: whether something set aside could be delivered by itself.
    pub(super) set_aside_pending: String,
    /// `$1` pipeline: keys with a blocking row.
    pub(super) blocked_keys: String,
}

/// The statements that settle.
#[derive(Debug)]
pub(super) struct Writes {
    /// `$1` pipeline, `$2` shard, `$3` epoch, `$4` numbers, `$5` whether one was delivered, `$6` ids:
    /// marks rows; answers whether the lease is still held.
    pub(super) mark: String,
    /// The same parameters: removes rows.
    pub(super) delete: String,
    /// `$1` pipeline, `$2` shard, `$3` epoch, then base, tick, position, seen, beyond, lsn, snapshot
    /// of the slot, the number of a row and its transaction, and whether one was delivered: moves a
    /// cursor. While the log is read it answers the snapshot of now, after that the end of the log,
    /// which publication there is, and whether the row is there.
    pub(super) advance: String,
    /// `$1` pipeline, `$2` shard, `$3` epoch: locks the lease against a takeover.
    pub(super) hold_lease: String,
    /// `$1` pipeline: nobody else changes what is set aside of it.
    pub(super) lock_failures: String,
    /// `$1` pipeline, then arrays of seq, state, blocks, delay, attempts, kind, error, id.
    pub(super) set_aside: String,
    /// The same parameters, then arrays of aggregate type and id, event type and version,
    /// payload, content type, headers, topic, and when it occurred and is to be delivered: for
    /// events that only the log has.
    pub(super) set_aside_logged: String,
    /// The same parameters as above, for rows that were set aside before.
    pub(super) set_aside_again: String,
    /// `$1` pipeline, `$2` numbers, `$3` ids: whether a row set aside is another than that of the
    /// outbox.
    pub(super) is_another: String,
    /// `$1` pipeline, `$2` numbers, `$3` shard, `$4` ids: rows that were set aside are delivered.
    pub(super) forget: String,
    /// The same parameters: and their marks say since when they really are.
    pub(super) forget_marked: String,
    /// See [`mend`].
    pub(super) mend: String,
    /// `$1` pipeline, `$2` numbers, `$3` shard, `$4` epoch: gives claims back.
    pub(super) unclaim: String,
    /// The type of ids of the outbox, as an array. Those of rows set aside are texts.
    pub(super) id_type: Type,
}

impl Reads {
    pub(super) fn new(table: &Table, outbox: &TableName, shard: Shard, origin: &Origin) -> Self {
        let holds = origin.holds();
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let failures = outbox.failures().quoted();
        let claims = outbox.claims().quoted();
        let leases = outbox.leases().quoted();
        let event = Selected::of_outbox(table);
        let aside = Selected::of_failures();
        let unpublished = match table.has("published_at") {
            true => format!("{} IS NULL", table.select("o", "published_at")),
            false => "true".to_owned(),
        };
        let xid = if table.has("xid") { table.select("o", "xid") } else { "NULL::xid8".to_owned() };
        let fresh = |types: &str| {
            let aggregate_type = table.text("o", "aggregate_type");
            let of_shard = of_shard(shard, &aggregate_type, &table.text("o", "aggregate_id"));
            format!(
                "{unpublished} AND ({types}::text[] IS NULL OR {aggregate_type} = ANY({types}))\
                 {of_shard} AND {holds}"
            )
        };
        let aside_of_shard = of_shard(shard, "f.aggregate_type", "f.aggregate_id");
        let inner = |rest: &str| {
            format!(
                "SELECT {}, {seq}::bigint AS place FROM {name} AS o WHERE {rest}
                 ORDER BY {seq} LIMIT $1",
                event.columns
            )
        };
        // In no order, which would lead through all rows that there are; and one more than asked
        // for, so that it can be told that these are not the first ones.
        let few = |rest: &str| {
            format!(
                "SELECT {}, {seq}::bigint AS place FROM {name} AS o WHERE {rest} LIMIT $1 + 1",
                event.columns
            )
        };
        // A scalar subquery is computed once and not for each row.
        let snapshot = |parameter: &str| format!("(SELECT {parameter}::text::pg_snapshot)");
        let has_come = |column: &str| format!("coalesce({column} <= clock_timestamp(), true)");
        let live_claim = |alias: &str| {
            format!(
                "EXISTS (SELECT FROM {leases} AS l WHERE l.pipeline = {alias}.pipeline
                 AND l.shard = {alias}.shard AND l.epoch = {alias}.epoch
                 AND l.expires_at > clock_timestamp())"
            )
        };
        let unclaimed = |pipeline: &str, seq: &str| {
            format!(
                "NOT EXISTS (SELECT FROM {claims} AS c WHERE c.pipeline = {pipeline}
                 AND c.seq = {seq} AND {})",
                live_claim("c")
            )
        };
        // No more than fits: what is claimed must be handed out. What another relay has claimed
        // since this statement began is left to it.
        let claim = |picked: &str, pipeline: &str, shard: &str, epoch: &str| {
            format!(
                "WITH picked AS MATERIALIZED ({picked}), claimed AS (
                   INSERT INTO {claims} AS c (pipeline, seq, shard, epoch)
                   SELECT {pipeline}, seq, {shard}, {epoch} FROM (
                     SELECT seq, sum(size) OVER (ORDER BY place, seq ROWS UNBOUNDED PRECEDING)
                       - size AS before FROM picked
                   ) AS p WHERE before < $2 OR before = 0
                   ON CONFLICT (pipeline, seq)
                   DO UPDATE SET shard = excluded.shard, epoch = excluded.epoch WHERE NOT {}
                   RETURNING seq)",
                live_claim("c")
            )
        };
        let last_xid = |since: &str| {
            format!(
                "(SELECT {xid}::text FROM {name} AS o WHERE {xid} >= {since}
                 ORDER BY {xid} DESC LIMIT 1)"
            )
        };
        let now = format!("CASE WHEN {holds} THEN pg_current_snapshot()::text END");
        let unreadable = format!("'{SEQ_UNREADABLE}'::bigint");
        let since_of = |xmax: &str, under_way: &str, types: &str| {
            format!(
                "({xid} >= {xmax} OR {xid} = ANY({under_way})) AND {seq} > {unreadable} AND {}",
                fresh(types)
            )
        };
        let since = since_of("$4", "$5", "$3");
        let between = format!(
            "{seq} > $4 AND {} AND pg_visible_in_snapshot({xid}, {})
             AND NOT pg_visible_in_snapshot({xid}, {})",
            fresh("$3"),
            snapshot("$6"),
            snapshot("$5")
        );
        Self {
            anything: format!(
                "SELECT NOT ({holds}) OR coalesce((SELECT true FROM {name} AS o WHERE {xid} >= $2
                   ORDER BY {xid} LIMIT 1), false)
                 OR EXISTS (SELECT FROM {name} AS o WHERE {xid} = ANY($3))
                 OR coalesce((SELECT f.due_at <= clock_timestamp() FROM {failures} AS f
                   WHERE f.pipeline = $1 AND f.due_at IS NOT NULL
                   ORDER BY f.due_at, f.seq LIMIT 1), false)"
            ),
            now: format!("SELECT {now}, {}", last_xid("$1")),
            tick: with_snapshot(&now, &last_xid("$4"), &bounded(&few(&since), "")),
            small_tick: with_snapshot(&now, &last_xid("$4"), &small(&few(&since))),
            first: format!(
                "SELECT {now}, {}, (SELECT min({seq}::bigint + 0) FROM {name} AS o WHERE {})",
                last_xid("$1"),
                since_of("$1", "$2", "$3")
            ),
            page: bounded(&inner(&between), ""),
            small_page: small(&inner(&between)),
            unreadable: bounded(
                &inner(&format!(
                    "{seq} = {unreadable} AND {} AND NOT EXISTS (SELECT FROM {failures} AS f
                     WHERE f.pipeline = $4 AND f.seq = {unreadable})",
                    fresh("$3")
                )),
                "",
            ),
            scan: bounded(&inner(&format!("{} AND NOT {seq} = ANY($4)", fresh("$3"))), ""),
            claim: format!(
                "{} {}",
                claim(
                    &format!(
                        "SELECT {seq}::bigint AS seq, {seq}::bigint AS place, {} AS size
                         FROM {name} AS o WHERE {} AND {}
                         ORDER BY {seq} LIMIT $1 FOR UPDATE OF o SKIP LOCKED",
                        size(&table.length("o", "payload"), &table.length("o", "headers")),
                        fresh("$3"),
                        unclaimed("$4", &seq)
                    ),
                    "$4",
                    "$5",
                    "$6"
                ),
                bounded(
                    &format!(
                        "SELECT {}, {seq}::bigint AS place FROM {name} AS o
                         WHERE {seq} = ANY(ARRAY(SELECT seq FROM claimed)) AND {unpublished}",
                        event.columns
                    ),
                    ""
                )
            ),
            rows: bounded(&inner(&format!("{unpublished} AND {seq} = ANY($3) AND {holds}")), ""),
            due: bounded(
                &format!(
                    "SELECT {}, row_number() OVER (ORDER BY h.due_at, h.seq, f.seq) AS place,
                       f.attempts, f.blocks
                     FROM (
                       SELECT f.* FROM {failures} AS f WHERE f.pipeline = $3
                       AND f.due_at <= clock_timestamp() AND NOT f.seq = ANY($4)
                       {aside_of_shard} AND {} AND {holds} ORDER BY f.due_at, f.seq LIMIT $1
                     ) AS h JOIN LATERAL (
                       SELECT b.* FROM {failures} AS b
                       WHERE b.pipeline = $3 AND (b.seq = h.seq OR h.blocks AND b.blocks
                         AND b.aggregate_type = h.aggregate_type
                         AND b.aggregate_id = h.aggregate_id AND b.seq > h.seq
                         AND b.seq < coalesce((SELECT min(n.seq) FROM {failures} AS n
                           WHERE n.pipeline = $3 AND n.aggregate_type = h.aggregate_type
                           AND n.aggregate_id = h.aggregate_id AND n.blocks AND n.seq > h.seq
                           AND (n.seq = ANY($4) OR n.state <> 'queued'
                             AND coalesce(n.due_at > clock_timestamp(), true))),
                           9223372036854775807))
                       ORDER BY b.seq LIMIT $1
                     ) AS f ON true
                     ORDER BY place LIMIT $1",
                    aside.columns,
                    nothing_before(&failures)
                ),
                ", attempts, blocks",
            ),
            claim_due: format!(
                "{} {}",
                claim(
                    &format!(
                        "SELECT f.seq, f.due_at AS place, {} AS size FROM {failures} AS f
                         WHERE f.pipeline = $3 AND f.due_at <= clock_timestamp() AND {} AND {}
                         AND {holds} ORDER BY f.due_at, f.seq LIMIT $1 FOR UPDATE OF f SKIP LOCKED",
                        size("octet_length(f.payload)", "octet_length(f.headers)"),
                        unclaimed("$3", "f.seq"),
                        nothing_before(&failures)
                    ),
                    "$3",
                    "$4",
                    "$5"
                ),
                bounded(
                    &format!(
                        "SELECT {}, row_number() OVER (ORDER BY f.due_at, f.seq) AS place,
                         f.attempts, f.blocks FROM {failures} AS f
                         WHERE f.pipeline = $3 AND f.seq = ANY(ARRAY(SELECT seq FROM claimed))",
                        aside.columns
                    ),
                    ", attempts, blocks"
                )
            ),
            pending: {
                let has_come = match table.has("deliver_after") {
                    true => has_come(&table.time("o", "deliver_after")),
                    false => "true".to_owned(),
                };
                let exists = |rest: &str| {
                    let fresh = fresh("$1");
                    format!("EXISTS (SELECT FROM {name} AS o WHERE {fresh} AND {has_come}{rest})")
                };
                let unsettled = format!(
                    " AND NOT pg_visible_in_snapshot({xid}, {})
                     AND NOT (pg_visible_in_snapshot({xid}, {}) AND {seq} <= $4)
                     AND NOT (pg_visible_in_snapshot({xid}, {})
                       AND {seq}::bigint <@ $6::text::int8multirange)",
                    snapshot("$2"),
                    snapshot("$3"),
                    snapshot("$5")
                );
                // One by one, so that each is found by an index.
                match table.has("xid") {
                    true => format!(
                        "SELECT NOT ({holds}) OR {} OR {}",
                        exists(&format!(" AND {xid} >= $7{unsettled}")),
                        exists(&format!(" AND {xid} = ANY($8){unsettled}"))
                    ),
                    false => format!("SELECT NOT ({holds}) OR {}", exists("")),
                }
            },
            set_aside_pending: format!(
                "SELECT EXISTS (SELECT FROM {failures} AS f WHERE f.pipeline = $1
                 AND f.due_at IS NOT NULL AND {} AND {}{aside_of_shard})",
                has_come("f.deliver_after"),
                nothing_before(&failures)
            ),
            blocked_keys: format!(
                "SELECT DISTINCT f.aggregate_type, f.aggregate_id FROM {failures} AS f
                 WHERE f.pipeline = $1 AND f.blocks{aside_of_shard}"
            ),
        }
    }
}

impl Writes {
    pub(super) fn new(
        table: &Table,
        outbox: &TableName,
        origin: &Origin,
        log: Option<&Log>,
    ) -> Self {
        let (name, seq) = (table.quoted(), table.select("o", "seq"));
        let failures = outbox.failures().quoted();
        let xid = if table.has("xid") { table.select("o", "xid") } else { "NULL::xid8".to_owned() };
        let checkpoints = outbox.checkpoints().quoted();
        let claims = outbox.claims().quoted();
        let leases = outbox.leases().quoted();
        let (published, unpublished) = match table.has("published_at") {
            true => {
                let (column, now) = (table.name("published_at"), table.now("published_at"));
                (format!("SET {column} = {now}"), format!(" AND o.{column} IS NULL"))
            }
            false => (String::new(), String::new()),
        };
        let lease = format!(
            "lease AS MATERIALIZED (SELECT 1 FROM {leases}
             WHERE pipeline = $1 AND shard = $2 AND epoch = $3 AND {} FOR KEY SHARE)",
            origin.holds()
        );
        let held = "EXISTS (SELECT FROM lease)";
        let noted = format!(
            "noted AS (UPDATE {checkpoints} SET settled_at = clock_timestamp()
             WHERE pipeline = $1 AND shard = $2 AND $5::boolean AND {held}
             AND coalesce(settled_at < clock_timestamp() - interval '1 second', true))"
        );
        let forgotten = format!(
            "WITH noted AS (UPDATE {checkpoints} SET settled_at = clock_timestamp()
               WHERE pipeline = $1 AND shard = $3
               AND coalesce(settled_at < clock_timestamp() - interval '1 second', true)),
             gone AS (DELETE FROM {failures} WHERE pipeline = $1 AND seq = ANY($2)
               AND coalesce(id = ANY($4::text[]), true) RETURNING seq, id)"
        );
        // One of the events, not another one with the number of one of them. A row that somebody
        // has left without an id is known by its number.
        // Of its type from the start: what is cast is cast again for each row, and not hashed.
        let (id, id_type) = match table.ty("id") {
            Some(&Type::UUID) => (table.select("o", "id"), Type::UUID_ARRAY),
            Some(&Type::INT2 | &Type::INT4 | &Type::INT8) => {
                (format!("{}::bigint", table.select("o", "id")), Type::INT8_ARRAY)
            }
            _ => (table.text("o", "id"), Type::TEXT_ARRAY),
        };
        let with_id = |ids: &str| format!(" AND coalesce({id} = ANY({ids}), true)");
        let unclaimed = format!(
            "unclaimed AS (DELETE FROM {claims} WHERE pipeline = $1 AND seq = ANY($4)
             AND shard = $2 AND epoch = $3)"
        );
        let done = |statement: String| {
            format!(
                "WITH {lease}, {noted}, {unclaimed}, done AS ({statement})
                 SELECT EXISTS (SELECT FROM lease)"
            )
        };
        let aside = "unnest($2::bigint[], $3::text[], $4::boolean[], $5::bigint[], $6::integer[],
             $7::text[], $8::text[]) AS s (seq, state, blocks, delay, attempts, kind, error)";
        let due = "clock_timestamp() + s.delay * interval '1 microsecond'";
        let copy = |name: &&str| match *name {
            "id" => table.copy_id("o"),
            name => table.copy("o", name),
        };
        let copied: Vec<String> = FAILURE_COLUMNS.iter().map(copy).collect();
        Self {
            mark: done(format!(
                "UPDATE {name} AS o {published} WHERE {seq} = ANY($4){}{unpublished} AND {held}",
                with_id("$6")
            )),
            delete: done(format!(
                "DELETE FROM {name} AS o WHERE {seq} = ANY($4){}{unpublished} AND {held}",
                with_id("$6")
            )),
            advance: format!(
                "WITH {lease}, advanced AS (
                   UPDATE {checkpoints} SET base = $4::text::pg_snapshot,
                   tick = $5::text::pg_snapshot, position = $6, seen = $7::text::pg_snapshot,
                   beyond = $8::text::int8multirange, lsn = $9::text::pg_lsn,
                   slot_snapshot = $10::text::pg_snapshot,
                   settled_at = CASE WHEN $13 THEN clock_timestamp() ELSE settled_at END,
                   updated_at = clock_timestamp()
                   WHERE pipeline = $1 AND shard = $2 AND {held} RETURNING 1)
                 SELECT EXISTS (SELECT FROM lease), EXISTS (SELECT FROM advanced){}",
                match log {
                    Some(log) => format!(
                        ", pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text, {},
                         EXISTS (SELECT FROM {name} AS o WHERE {xid} = $12 AND {seq} = $11)",
                        log.publication_id()
                    ),
                    None => ", $11::bigint, $12::xid8".to_owned(),
                }
            ),
            hold_lease: format!("WITH {lease} SELECT EXISTS (SELECT FROM lease)"),
            lock_failures: lock_failures(outbox),
            set_aside: format!(
                "INSERT INTO {failures} AS f (pipeline, {}, state, blocks, due_at, attempts, kind,
                   error, set_aside_at)
                 SELECT $1, {}, s.state, s.blocks, {due}, coalesce(s.attempts, 0), s.kind, s.error,
                   clock_timestamp()
                 FROM {aside} JOIN {name} AS o ON {seq} = s.seq AND {seq} = ANY($2){}{unpublished}
                 {OR_AGAIN} RETURNING f.seq",
                FAILURE_COLUMNS.join(", "),
                copied.join(", "),
                with_id("$9")
            ),
            set_aside_logged: format!(
                "INSERT INTO {failures} AS f (pipeline, {}, state, blocks, due_at, attempts, kind,
                   error, set_aside_at)
                 SELECT $1, s.seq, e.id, e.aggregate_type, e.aggregate_id, e.event_type,
                   e.event_version, e.payload, e.content_type, e.headers, e.topic, e.occurred_at,
                   clock_timestamp(), e.deliver_after, s.state, s.blocks, {due},
                   coalesce(s.attempts, 0), s.kind, s.error, clock_timestamp()
                 FROM ROWS FROM (unnest($2::bigint[]), unnest($3::text[]), unnest($4::boolean[]),
                   unnest($5::bigint[]), unnest($6::integer[]), unnest($7::text[]),
                   unnest($8::text[])) WITH ORDINALITY
                   AS s (seq, state, blocks, delay, attempts, kind, error, place)
                 JOIN ROWS FROM (unnest($9::text[]), unnest($10::text[]), unnest($11::text[]),
                   unnest($12::text[]), unnest($13::bigint[]), unnest($14::bytea[]),
                   unnest($15::text[]), unnest($16::text[]), unnest($17::text[]),
                   unnest($18::timestamptz[]), unnest($19::timestamptz[])) WITH ORDINALITY
                   AS e (id, aggregate_type, aggregate_id, event_type, event_version, payload,
                     content_type, headers, topic, occurred_at, deliver_after, place) USING (place)
                 {OR_AGAIN} RETURNING f.seq",
                FAILURE_COLUMNS.join(", ")
            ),
            set_aside_again: format!(
                "UPDATE {failures} AS f SET state = s.state, blocks = s.blocks, due_at = {due},
                   attempts = coalesce(s.attempts, f.attempts), kind = coalesce(s.kind, f.kind),
                   error = coalesce(s.error, f.error),
                   set_aside_at = CASE WHEN s.state = 'parked' THEN clock_timestamp()
                     ELSE f.set_aside_at END
                 FROM {aside} WHERE f.pipeline = $1 AND f.seq = s.seq AND f.seq = ANY($2)
                 AND coalesce(f.id = ANY($9::text[]), true)"
            ),
            is_another: format!(
                "SELECT EXISTS (SELECT FROM {failures} AS f JOIN {name} AS o ON {seq} = f.seq
                 AND {seq} = ANY($2){}{unpublished} WHERE f.pipeline = $1 AND f.seq = ANY($2)
                 AND f.id IS DISTINCT FROM {})",
                with_id("$3"),
                table.copy_id("o")
            ),
            forget: format!("{forgotten} SELECT seq FROM gone"),
            forget_marked: match table.has("published_at") {
                true => format!(
                    "{forgotten} UPDATE {name} AS o {published} FROM gone
                     WHERE {} AND {seq} = gone.seq AND o.{} IS NOT NULL",
                    is_id(table, "= $1", "").replace("$1", "gone.id"),
                    table.name("published_at")
                ),
                false => format!("{forgotten} SELECT seq FROM gone"),
            },
            mend: mend(outbox),
            unclaim: format!(
                "DELETE FROM {claims} WHERE pipeline = $1 AND seq = ANY($2)
                 AND shard = $3 AND epoch = $4"
            ),
            id_type,
        }
    }
}

/// `$1` pipeline: nobody else changes what is set aside of it until the transaction ends.
pub(super) fn lock_failures(outbox: &TableName) -> String {
    let failures = outbox.failures();
    format!(
        "SELECT pg_advisory_xact_lock(hashtextextended($1, {}::regclass::oid::bigint))",
        literal(&failures.quoted())
    )
}

/// `$1` pipeline, `$2` aggregate types, `$3` ids: makes the first blocking row of each key due if
/// nothing else would ever hand it out. Answers the keys that have none.
pub(super) fn mend(outbox: &TableName) -> String {
    let failures = outbox.failures().quoted();
    format!(
        "WITH first AS MATERIALIZED (
           SELECT k.aggregate_type, k.aggregate_id, f.seq, f.idle
           FROM unnest($2::text[], $3::text[]) AS k (aggregate_type, aggregate_id)
           LEFT JOIN LATERAL (
             SELECT f.seq, f.state <> 'parked' AND f.due_at IS NULL AS idle FROM {failures} AS f
             WHERE f.pipeline = $1 AND f.aggregate_type = k.aggregate_type
             AND f.aggregate_id = k.aggregate_id AND f.blocks ORDER BY f.seq LIMIT 1
           ) AS f ON true
         ), due AS (
           UPDATE {failures} AS f SET due_at = clock_timestamp() FROM first
           WHERE f.pipeline = $1 AND f.seq = first.seq AND first.idle
         )
         SELECT aggregate_type, aggregate_id FROM first WHERE seq IS NULL"
    )
}

/// The columns of an event, as they are copied when it is set aside.
pub(super) const FAILURE_COLUMNS: [&str; 13] = [
    "seq",
    "id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "event_version",
    "payload",
    "content_type",
    "headers",
    "topic",
    "occurred_at",
    "created_at",
    "deliver_after",
];

/// What is selected of an event, for [`row`](super::row).
struct Selected {
    /// The columns of the event, the size of the row and the delay.
    columns: String,
}

impl Selected {
    fn of_outbox(table: &Table) -> Self {
        let text = |name: &str| table.text("o", name);
        Self::new(
            |name| match name {
                "aggregate_type" | "aggregate_id" | "event_type" | "content_type" | "topic" => {
                    (text(name), format!("octet_length({})", text(name)))
                }
                name => (table.select("o", name), table.length("o", name)),
            },
            |name| match name {
                "id" => table.select_id("o"),
                name => table.time("o", name),
            },
        )
    }

    fn of_failures() -> Self {
        let column = |name: &str| format!("f.{name}");
        Self::new(|name| (column(name), format!("octet_length({})", column(name))), column)
    }

    /// `limited` answers a column and its length.
    fn new(limited: impl Fn(&str) -> (String, String), plain: impl Fn(&str) -> String) -> Self {
        let bounded = |name: &str| {
            let bytes_max = LIMITS.iter().find(|(limited, _)| *limited == name);
            let bytes_max = bytes_max.expect("the column has a limit").1;
            let (column, length) = limited(name);
            format!("CASE WHEN {length} <= {bytes_max} THEN {column} END")
        };
        let mut fits = Vec::new();
        let mut lengths = Vec::new();
        for (name, bytes_max) in LIMITS {
            let (_, length) = limited(name);
            fits.push(format!("coalesce({length}, 0) <= {bytes_max}"));
            lengths.push(format!("CASE WHEN {length} > {bytes_max} THEN {length} END"));
        }
        let ((_, payload), (_, headers)) = (limited("payload"), limited("headers"));
        let deliver_after = plain("deliver_after");
        let columns = [
            format!("{}::bigint AS c0", plain("seq")),
            format!("{} AS c1", plain("id")),
            format!("{} AS c2", bounded("aggregate_type")),
            format!("{} AS c3", bounded("aggregate_id")),
            format!("{} AS c4", bounded("event_type")),
            format!("{} AS c5", plain("event_version")),
            format!("{} AS c6", bounded("payload")),
            format!("{} AS c7", bounded("content_type")),
            format!("{} AS c8", bounded("headers")),
            format!("{} AS c9", bounded("topic")),
            format!("{} AS c10", plain("occurred_at")),
            format!("{deliver_after} AS c11"),
            format!(
                "CASE WHEN {} THEN NULL ELSE ARRAY[{}] END AS c12",
                fits.join(" AND "),
                lengths.join(", ")
            ),
            format!("{} AS size", size(&payload, &headers)),
            format!(
                "CASE WHEN isfinite({deliver_after}) AND {deliver_after} > clock_timestamp() THEN
                 (extract(epoch FROM {deliver_after} - clock_timestamp()) * 1000000)::bigint
                 END AS delay"
            ),
        ];
        Self { columns: columns.join(", ") }
    }
}

/// About how many bytes a row takes: no more of it is loaded than an event may have.
fn size(payload_bytes: &str, headers_bytes: &str) -> String {
    format!(
        "least(coalesce({payload_bytes}, 0), {PAYLOAD_BYTES_MAX})
         + least(coalesce({headers_bytes}, 0), {HEADERS_BYTES_MAX}) + {ROW_BYTES}"
    )
}

fn event_names(alias: &str) -> String {
    let mut names: Vec<String> = (0..13).map(|index| format!("{alias}.c{index}")).collect();
    names.extend([format!("{alias}.total"), format!("{alias}.delay")]);
    names.join(", ")
}

/// As many rows of a statement, by `place`, as have `$2` bytes together, and one more at least;
/// with how many there were.
fn bounded(inner: &str, more: &str) -> String {
    format!(
        "SELECT {}{more} FROM (
           SELECT i.*, count(*) OVER () AS total,
             sum(size) OVER (ORDER BY place ROWS UNBOUNDED PRECEDING) - size AS before
           FROM ({inner}) AS i
         ) AS b WHERE before < $2 OR before = 0 ORDER BY place",
        event_names("b")
    )
}

/// All rows of a statement. A row that takes more than its share of `$2` comes without what makes
/// it large and with a one where [`bounded`] has how many there were: then nothing is to be made
/// of the answer. Adding up sizes takes several times as long as reading small rows.
fn small(inner: &str) -> String {
    let is_small = "b.size <= $2 / greatest($1, 1)";
    let mut names: Vec<String> = (0..13).map(|index| format!("b.c{index}")).collect();
    for index in [6, 8] {
        names[index] = format!("CASE WHEN {is_small} THEN b.c{index} END AS c{index}");
    }
    format!(
        "SELECT {}, CASE WHEN {is_small} THEN 0 ELSE 1 END::bigint AS total,
         b.delay FROM ({inner}) AS b ORDER BY b.place",
        names.join(", ")
    )
}

/// The rows of a statement after one that has nothing but the snapshot of all of them, and the
/// last transaction of which it sees a row.
fn with_snapshot(now: &str, last_xid: &str, rows: &str) -> String {
    let nothing = vec!["NULL"; 15].join(", ");
    format!(
        "SELECT {nothing}, {now}, {last_xid}
         UNION ALL SELECT {}, NULL, NULL FROM ({rows}) AS e",
        event_names("e")
    )
}

/// Restricts rows to a shard of the keys.
pub(super) fn of_shard(shard: Shard, aggregate_type: &str, aggregate_id: &str) -> String {
    let Shard { index, of } = shard;
    if of <= 1 {
        return String::new();
    }
    // The mask takes the sign away.
    format!(
        " AND (hashtextextended(coalesce({aggregate_id}, ''),
           hashtextextended(coalesce({aggregate_type}, ''), 0)) & 9223372036854775807) % {of}
         = {index}"
    )
}

/// No blocking row of the same key stands before the row `f`, or it does not care.
fn nothing_before(failures: &str) -> String {
    format!(
        "(NOT f.blocks OR NOT EXISTS (SELECT FROM {failures} AS e WHERE e.pipeline = f.pipeline
         AND e.aggregate_type = f.aggregate_type AND e.aggregate_id = f.aggregate_id
         AND e.seq < f.seq AND e.blocks))"
    )
}

/// Whether an operator has stopped a pipeline, or this key of it.
fn paused(outbox: &TableName, pipeline: &str, aggregate_type: &str, aggregate_id: &str) -> String {
    let pauses = outbox.pauses().quoted();
    format!(
        "EXISTS (SELECT FROM {pauses} AS p WHERE p.pipeline IN ({pipeline}, '*')
         AND (p.aggregate_type = ''
           OR p.aggregate_type = {aggregate_type} AND p.aggregate_id = {aggregate_id}))"
    )
}

/// A text as SQL has it, whatever `standard_conforming_strings` is: where that is off, a backslash
/// escapes what follows it, also in a string without an `E`.
pub(super) fn literal(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    format!("{escape}'{}'", text.replace('\'', "''").replace('\\', r"\\"))
}
