//! Every SQL statement of the SQLite backend, for one outbox.
//!
//! Rules that hold for all of them:
//!
//! - Names of tables come from [`TableName::quoted`], values are always bound.
//! - A column of outside bytes is never loaded beyond what an event may have: `octet_length`
//!   does not read the overflow pages, so a payload of a gigabyte costs nothing. A text that is
//!   too long comes as its length, which is a number and so cannot be taken for a text.
//! - To copy or to change a row, SQLite has all of it in memory, more than once. So a row with a
//!   heavy column stays in the outbox as it is when it is set aside, whatever the progress; what
//!   is set aside has NULL in place of the heavy columns, and leads to the row by its number.
//! - Times are text with six digits in UTC, so that text compares as time does. The clock is
//!   SQLite's own ([`NOW`]).

mod admin;
mod checkpoint;
mod events;
mod prune;
mod reconcile;
pub(super) mod scratch;
mod stops;

use postrider::event::{AGGREGATE_ID_BYTES_MAX, NAME_BYTES_MAX, PAYLOAD_BYTES_MAX};
use postrider::schema::TableName;

pub(super) use self::admin::AdminQueries;
pub(super) use self::checkpoint::CheckpointQueries;
pub(super) use self::events::EventQueries;
pub(super) use self::prune::PruneQueries;
pub(super) use self::reconcile::ReconcileQueries;
pub(super) use self::stops::StopQueries;

/// A column with more bytes is heavy: see [above](self).
const HEAVY_BYTES: usize = PAYLOAD_BYTES_MAX;
/// Longest text of a UUID or a time that is looked at, in bytes.
const SHORT_BYTES_MAX: usize = 64;
/// Longest JSON of headers that is looked at, in bytes. Escaped text is up to six times as long.
pub(super) const HEADERS_JSON_BYTES_MAX: usize = 8 * postrider::event::HEADERS_BYTES_MAX;

/// The time now.
pub(super) const NOW: &str = "SELECT strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')";
/// A number that changes when another connection commits.
pub(super) const DATA_VERSION: &str = "PRAGMA data_version";
/// Columns of a table, by its name.
pub(super) const COLUMNS_OF: &str = "SELECT name FROM pragma_table_info(?1)";
/// Looks for damage; one line of it is enough.
pub(super) const QUICK_CHECK: &str = "PRAGMA quick_check(1)";
pub(super) const JOURNAL_MODE: &str = "PRAGMA journal_mode";
pub(super) const SYNCHRONOUS: &str = "PRAGMA synchronous";
pub(super) const PAGE_SIZE: &str = "PRAGMA page_size";
pub(super) const PAGE_COUNT: &str = "PRAGMA page_count";
pub(super) const FREELIST_COUNT: &str = "PRAGMA freelist_count";
/// Takes the right to write, and gives it back.
pub(super) const TRY_WRITE: &str = "BEGIN IMMEDIATE; ROLLBACK";

/// The journal mode in force after asking for write-ahead logging.
pub(super) const USE_WAL: &str = "PRAGMA journal_mode = WAL";
/// Enough for the pages of one window, which are read and then changed: 16 MiB.
pub(super) const CACHE_SIZE: &str = "PRAGMA cache_size = -16384";
/// Marks may be lost in a power cut; then the events are published again, which they may be.
/// What was set aside is lost together with its mark, so nothing is lost for good.
pub(super) const SYNC_NORMAL: &str = "PRAGMA synchronous = NORMAL";
/// The largest number that an outbox ever gave.
pub(super) const LAST_SEQ: &str = "SELECT seq FROM sqlite_sequence WHERE name = ?1 COLLATE NOCASE";

/// The columns of an event, as they are copied when it is set aside.
pub(super) const EVENT_COLUMNS: [&str; 13] = [
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
/// The columns that only the outbox has.
pub(super) const OUTBOX_COLUMNS: [&str; 1] = ["published_at"];
/// The columns that events set aside have besides.
pub(super) const FAILURE_COLUMNS: [&str; 8] =
    ["pipeline", "state", "blocks", "due_at", "attempts", "kind", "error", "set_aside_at"];
/// The columns of a checkpoint.
pub(super) const CHECKPOINT_COLUMNS: [&str; 14] = [
    "pipeline",
    "progress",
    "position",
    "beyond",
    "crashes",
    "settled_at",
    "updated_at",
    "trouble",
    "trouble_since",
    "aggregate_types",
    "formerly",
    "since",
    "start",
    "began_at",
];

/// The columns of what an operator has stopped.
pub(super) const PAUSE_COLUMNS: [&str; 5] =
    ["pipeline", "aggregate_type", "aggregate_id", "paused_at", "reason"];

/// The statements of a source.
#[derive(Debug)]
pub(super) struct Queries {
    /// `?1` after, `?2` up to, `?3` limit, `?4` aggregate types, `?5` pipeline: unpublished rows
    /// in order.
    pub(super) unpublished: String,
    /// `?1` after, `?2` up to, `?3` limit, `?4` aggregate types, `?5` pipeline: rows in order,
    /// without those that the pipeline set aside.
    pub(super) rows: String,
    /// `?1` seq: one row that is unpublished.
    pub(super) unpublished_row: String,
    /// `?1` seq: one row.
    pub(super) row: String,
    /// The largest seq in the table.
    pub(super) max_seq: String,
    /// `?1` pipeline, `?2` seq: one row that is set aside.
    pub(super) set_aside_row: String,
    /// `?1` pipeline, `?2` seq: the same, if it has columns that were left in the outbox.
    pub(super) left_row: String,
    /// `?1` pipeline, `?2` now, `?3` limit: what is due and has nothing before it in its key.
    pub(super) due: String,
    /// `?1` pipeline, `?2` aggregate type, `?3` id, `?4` after, `?5` now: the blocking rows
    /// behind one, and whether each may be handed out with it.
    pub(super) behind: String,
    /// `?1` pipeline, `?2` now: when something comes due next.
    pub(super) next_due: String,
    /// `?1` aggregate types, `?2` pipeline: whether an unpublished row could be delivered.
    pub(super) unpublished_pending: String,
    /// `?1` after, `?2` aggregate types, `?3` pipeline: whether a row could be delivered.
    pub(super) rows_pending: String,
    /// `?1` pipeline: whether something set aside could be delivered by itself.
    pub(super) set_aside_pending: String,
    /// `?1` pipeline: keys with a blocking row.
    pub(super) blocked_keys: String,
    /// `?1` first seq, `?2` last seq, `?3` now: notes that rows are done with.
    pub(super) mark: String,
    /// `?1` seq, `?2` now, `?3` pipeline: a row that was set aside when it was marked, or was left
    /// unmarked then, is really delivered.
    pub(super) mark_again: String,
    /// `?1` seq, `?2` pipeline: removes a row that was left when it was set aside.
    pub(super) delete_left: String,
    /// `?1` first seq, `?2` last seq: removes rows that are done with.
    pub(super) delete: String,
    /// Sets aside a row that is unpublished; the parameters are those of [`set_aside`].
    pub(super) set_aside_unpublished: String,
    /// Sets aside a row; the parameters are those of [`set_aside`].
    pub(super) set_aside: String,
    /// `?1` pipeline, `?2` seq, then state, blocks, due, attempts, kind, error, now: changes why
    /// a row is set aside.
    pub(super) set_aside_again: String,
    /// `?1` pipeline, `?2` seq: whether the row set aside is another than that of the outbox.
    pub(super) is_another: String,
    /// `?1` pipeline, `?2` seq: a row's key if it blocks.
    pub(super) blocking_key: String,
    /// `?1` pipeline, `?2` seq: removes a row that was set aside.
    pub(super) forget: String,
    /// `?1` pipeline, `?2` aggregate type, `?3` id: the first blocking row of a key, and whether
    /// nothing would ever hand it out.
    pub(super) first_blocking: String,
    /// `?1` pipeline, `?2` seq, `?3` due: hands a row out then.
    pub(super) make_due: String,
}

impl Queries {
    pub(super) fn new(table: &TableName, matching: bool) -> Self {
        let (outbox, failures) = (table.quoted(), table.failures().quoted());
        let matches = matches(matching, "?4");
        let event = event_columns("");
        let unpublished = "published_at IS NULL";
        let is_light = format!("NOT {}", is_heavy("o"));
        let is_left = |pipeline| is_left(&failures, &format!("s.pipeline = {pipeline}"));
        let is_aside = |pipeline| is_set_aside(&failures, &format!("s.pipeline = {pipeline}"));
        let elsewhere = |pipeline| not_set_aside(&failures, pipeline);
        Self {
            unpublished: format!(
                "SELECT {event}, 0 FROM {outbox} AS o WHERE seq > ?1 AND seq <= ?2
                 AND {unpublished}{matches} AND NOT {} ORDER BY seq LIMIT ?3",
                is_left("?5")
            ),
            rows: format!(
                "SELECT {event}, 0 FROM {outbox} AS o WHERE seq > ?1 AND seq <= ?2
                 AND {}{matches} ORDER BY seq LIMIT ?3",
                elsewhere("?5")
            ),
            unpublished_row: format!(
                "SELECT {event}, 0 FROM {outbox} WHERE seq = ?1 AND {unpublished}"
            ),
            row: format!("SELECT {event}, 0 FROM {outbox} WHERE seq = ?1"),
            max_seq: format!("SELECT coalesce(max(seq), 0) FROM {outbox}"),
            set_aside_row: format!(
                "SELECT {event}, attempts FROM {failures} WHERE pipeline = ?1 AND seq = ?2"
            ),
            left_row: format!(
                "SELECT {}, f.attempts FROM {failures} AS f
                 JOIN {outbox} AS o ON o.seq = f.seq AND f.id IS {}
                 WHERE f.pipeline = ?1 AND f.seq = ?2 AND ({})",
                event_columns("o."),
                light("id"),
                were_left()
            ),
            due: format!(
                "SELECT seq, iif(blocks, aggregate_type, NULL), iif(blocks, aggregate_id, NULL)
                 FROM {failures} AS f WHERE pipeline = ?1 AND due_at <= ?2 AND {}
                 ORDER BY due_at, seq LIMIT ?3",
                nothing_before(&failures)
            ),
            behind: format!(
                "SELECT seq, state = 'queued' OR coalesce(due_at <= ?5, 0) FROM {failures}
                 WHERE pipeline = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3
                 AND seq > ?4 AND blocks = 1 ORDER BY seq"
            ),
            next_due: format!(
                "SELECT min(due_at) FROM {failures} WHERE pipeline = ?1 AND due_at > ?2"
            ),
            unpublished_pending: format!(
                "SELECT EXISTS (SELECT 1 FROM {outbox} AS o
                 WHERE {unpublished}{} AND NOT {} AND {HAS_COME})",
                self::matches(matching, "?1"),
                is_left("?2")
            ),
            rows_pending: format!(
                "SELECT EXISTS (SELECT 1 FROM {outbox} AS o WHERE seq > ?1 AND {}{} AND {HAS_COME})",
                elsewhere("?3"),
                self::matches(matching, "?2")
            ),
            set_aside_pending: format!(
                "SELECT EXISTS (SELECT 1 FROM {failures} AS f
                 WHERE pipeline = ?1 AND due_at IS NOT NULL AND {HAS_COME} AND {})",
                nothing_before(&failures)
            ),
            blocked_keys: format!(
                "SELECT DISTINCT aggregate_type, aggregate_id FROM {failures}
                 WHERE pipeline = ?1 AND blocks = 1"
            ),
            // The plus keeps SQLite from going by the index that the statement changes.
            mark: format!(
                "UPDATE {outbox} AS o SET published_at = ?3
                 WHERE seq BETWEEN ?1 AND ?2 AND +published_at IS NULL AND {is_light}"
            ),
            mark_again: format!(
                "UPDATE {outbox} AS o SET published_at = ?2
                 WHERE seq = ?1 AND (published_at IS NOT NULL OR {})",
                is_aside("?3")
            ),
            delete: format!("DELETE FROM {outbox} AS o WHERE seq BETWEEN ?1 AND ?2 AND {is_light}"),
            delete_left: format!("DELETE FROM {outbox} AS o WHERE seq = ?1 AND {}", is_aside("?2")),
            set_aside_unpublished: set_aside(&outbox, &failures, "AND published_at IS NULL"),
            set_aside: set_aside(&outbox, &failures, ""),
            set_aside_again: format!(
                "UPDATE {failures} SET state = ?3, blocks = ?4, due_at = ?5,
                 attempts = coalesce(?6, attempts), kind = coalesce(?7, kind),
                 error = coalesce(?8, error),
                 set_aside_at = iif(?3 = 'parked', ?9, set_aside_at)
                 WHERE pipeline = ?1 AND seq = ?2"
            ),
            is_another: format!(
                "SELECT EXISTS (SELECT 1 FROM {failures} AS f JOIN {outbox} AS o ON o.seq = f.seq
                 WHERE f.pipeline = ?1 AND f.seq = ?2 AND f.id IS NOT {})",
                light("id")
            ),
            blocking_key: format!(
                "SELECT aggregate_type, aggregate_id FROM {failures}
                 WHERE pipeline = ?1 AND seq = ?2 AND blocks = 1"
            ),
            forget: format!("DELETE FROM {failures} WHERE pipeline = ?1 AND seq = ?2"),
            first_blocking: format!(
                "SELECT seq, state <> 'parked' AND due_at IS NULL FROM {failures}
                 WHERE pipeline = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3
                 AND blocks = 1 ORDER BY seq LIMIT 1"
            ),
            make_due: format!("UPDATE {failures} SET due_at = ?3 WHERE pipeline = ?1 AND seq = ?2"),
        }
    }
}

/// The columns of an event for [`decode`](super::row::decode), in its order. `of` stands before
/// each, such as `o.`.
fn event_columns(of: &str) -> String {
    let bounded = |column: &str, bytes_max: usize| {
        let column = format!("{of}{column}");
        format!(
            "CASE WHEN octet_length({column}) > {bytes_max} THEN octet_length({column})
             ELSE {column} END"
        )
    };
    [
        format!("{of}seq"),
        bounded("id", SHORT_BYTES_MAX),
        bounded("aggregate_type", NAME_BYTES_MAX),
        bounded("aggregate_id", AGGREGATE_ID_BYTES_MAX),
        bounded("event_type", NAME_BYTES_MAX),
        format!("iif(typeof({of}event_version) = 'integer', {of}event_version, NULL)"),
        format!("iif(octet_length({of}payload) <= {PAYLOAD_BYTES_MAX}, {of}payload, NULL)"),
        format!("octet_length({of}payload)"),
        bounded("content_type", NAME_BYTES_MAX),
        bounded("headers", HEADERS_JSON_BYTES_MAX),
        bounded("topic", NAME_BYTES_MAX),
        bounded("occurred_at", SHORT_BYTES_MAX),
        bounded("deliver_after", SHORT_BYTES_MAX),
    ]
    .join(", ")
}

/// `deliver_after` has come, or is not a time (which is found when the row is read).
const HAS_COME: &str = "coalesce(julianday(deliver_after) <= julianday('now'), 1)";

fn matches(matching: bool, types: &str) -> String {
    if matching {
        return format!(" AND aggregate_type IN (SELECT value FROM json_each({types}))");
    }
    // Takes the parameter, so that both forms are called alike.
    format!(" AND {types} IS NULL")
}

/// Whether a row has a column that is not to be copied.
fn is_heavy(row: &str) -> String {
    let heavy = |column: &&str| format!("octet_length({row}.{column}) > {HEAVY_BYTES}");
    let columns: Vec<_> = EVENT_COLUMNS[1..].iter().map(heavy).collect();
    format!("(coalesce({}, 0))", columns.join(", 0) OR coalesce("))
}

/// A column of the row `o`, as it is copied when the row is set aside.
fn light(column: &str) -> String {
    format!("iif(octet_length(o.{column}) > {HEAVY_BYTES}, NULL, o.{column})")
}

/// The row `f`, which is set aside, lacks something that the row `o` has.
fn were_left() -> String {
    let lacks = |column: &&str| {
        format!("octet_length(f.{column}) IS NULL AND octet_length(o.{column}) IS NOT NULL")
    };
    EVENT_COLUMNS[1..].iter().map(lacks).collect::<Vec<_>>().join(" OR ")
}

/// The row `o` is set aside by a pipeline. By its id, too: an outbox whose numbers began anew has
/// others at the same place.
fn is_set_aside(failures: &str, by: &str) -> String {
    let id = light("id");
    format!("EXISTS (SELECT 1 FROM {failures} AS s WHERE {by} AND s.seq = o.seq AND s.id IS {id})")
}

fn not_set_aside(failures: &str, pipeline: &str) -> String {
    format!("NOT {}", is_set_aside(failures, &format!("s.pipeline = {pipeline}")))
}

/// The row `o` was left in the outbox when it was set aside: by this limit, or by a lower one.
fn is_left(failures: &str, by: &str) -> String {
    let heavy = is_heavy("o");
    let lacks = "octet_length(s.payload) IS NULL AND s.state <> 'discarded'";
    is_set_aside(failures, &format!("{by} AND ({heavy} OR {lacks})"))
}

/// No blocking row of the same key stands before the row `f`, or it does not care.
fn nothing_before(failures: &str) -> String {
    format!(
        "(f.blocks = 0 OR NOT EXISTS (SELECT 1 FROM {failures} AS e WHERE e.pipeline = f.pipeline
         AND e.aggregate_type = f.aggregate_type AND e.aggregate_id = f.aggregate_id
         AND e.seq < f.seq AND e.blocks = 1))"
    )
}

/// `?1` pipeline, `?2` seq, then state, blocks, due, attempts, kind, error, now: copies a row of
/// the outbox as it stands, but for heavy columns, and answers its seq. If it is set aside already, changes why; but
/// never a row with another id, which would be lost, unless it was discarded.
fn set_aside(outbox: &str, failures: &str, condition: &str) -> String {
    let columns = EVENT_COLUMNS.join(", ");
    let copied = EVENT_COLUMNS.map(light).join(", ");
    let anew = EVENT_COLUMNS.map(|column| format!("{column} = excluded.{column}")).join(", ");
    format!(
        "INSERT INTO {failures} (pipeline, {columns}, state, blocks, due_at, attempts, kind,
         error, set_aside_at)
         SELECT ?1, {copied}, ?3, ?4, ?5, coalesce(?6, 0), ?7, ?8, ?9
         FROM {outbox} AS o WHERE seq = ?2 {condition}
         ON CONFLICT (pipeline, seq) DO UPDATE SET state = excluded.state,
         blocks = excluded.blocks, due_at = excluded.due_at, attempts = excluded.attempts,
         kind = excluded.kind, error = excluded.error, set_aside_at = excluded.set_aside_at, {anew}
         WHERE id IS excluded.id OR state = 'discarded'
         RETURNING seq"
    )
}
