//! Statements about checkpoints, and about changing the way of progress.

use postrider::schema::TableName;

use super::{EVENT_COLUMNS, is_heavy, is_set_aside, not_set_aside};

/// The statements about checkpoints.
#[derive(Debug)]
pub(in super::super) struct CheckpointQueries {
    /// `?1` pipeline: how the other pipelines keep their progress.
    pub(in super::super) others: String,
    /// `?1` pipeline, `?2` progress, `?3` now, `?4` types, `?5` position, `?6` beyond, `?7` since,
    /// `?8` start: a first checkpoint, unless there is one.
    pub(in super::super) create: String,
    /// `?1` pipeline, `?2` types: what it matches, if that was never written down.
    pub(in super::super) adopt_types: String,
    /// `?1` after, `?2` types, `?3` limit: the stretches of marked rows of these types.
    pub(in super::super) marked: String,
    /// `?1` pipeline: progress, position, what is settled beyond it, types and former types.
    pub(in super::super) get: String,
    /// `?1` pipeline, `?2` types, `?3` formerly, `?4` now.
    pub(in super::super) set_types: String,
    /// `?1` pipeline, `?2` after, `?3` up to, `?4` types, `?5` now: sets aside rows that the cursor
    /// has passed and not published; answers number, key and whether it blocks.
    pub(in super::super) take_up: String,
    /// `?1` pipeline, `?2` progress, `?3` position, `?4` beyond, `?5` now.
    pub(in super::super) set_progress: String,
    /// `?1` pipeline, `?2` position, `?3` beyond, `?4` now, `?5` whether one was delivered: what a
    /// settlement notes.
    pub(in super::super) settled: String,
    /// `?1` pipeline, `?2` position, `?3` now: rows were passed over.
    pub(in super::super) passed: String,
    /// `?1` pipeline, `?2` now: counts a start; answers how many there were before it, and whether
    /// trouble is noted.
    pub(in super::super) started: String,
    /// `?1` pipeline, `?2` now: takes the last start back.
    pub(in super::super) not_started: String,
    /// `?1` pipeline, `?2` what is wrong with the sink, `?3` now.
    pub(in super::super) trouble: String,
    /// `?1` pipeline, `?2` now: forgets the starts.
    pub(in super::super) survived: String,
    /// The number before the smallest seq.
    pub(in super::super) before_first: String,
    /// The smallest seq that is unpublished.
    pub(in super::super) first_unpublished: String,
    /// `?1` after, `?2` up to, `?3` now, `?4` pipeline: marks what it has published of a stretch.
    pub(in super::super) mark_stretch: String,
    /// `?1` pipeline, `?2` after, `?3` now: marks rows that the pipeline set aside.
    pub(in super::super) mark_set_aside: String,
    /// `?1` pipeline, `?2` after, `?3` up to: rows that the pipeline set aside.
    pub(in super::super) set_aside_between: String,
}

impl CheckpointQueries {
    pub(in super::super) fn new(table: &TableName) -> Self {
        let (outbox, failures) = (table.quoted(), table.failures().quoted());
        let checkpoints = table.checkpoints().quoted();
        let columns = EVENT_COLUMNS.join(", ");
        let is_delayed = "coalesce(julianday(o.deliver_after) > julianday('now'), 0)";
        Self {
            others: format!(
                "SELECT pipeline, progress FROM {checkpoints} WHERE pipeline <> ?1 ORDER BY pipeline"
            ),
            create: format!(
                "INSERT INTO {checkpoints} (pipeline, progress, updated_at, began_at, aggregate_types,
                   position, beyond, since, start) VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8)
                 ON CONFLICT (pipeline) DO NOTHING"
            ),
            adopt_types: format!(
                "UPDATE {checkpoints} SET aggregate_types = ?2
                 WHERE pipeline = ?1 AND aggregate_types IS NULL"
            ),
            marked: format!(
                "SELECT min(seq), max(seq) FROM (
                   SELECT seq, is_marked, row_number() OVER (ORDER BY seq)
                     - row_number() OVER (PARTITION BY is_marked ORDER BY seq) AS stretch
                   FROM (SELECT seq, published_at IS NOT NULL AS is_marked FROM {outbox} AS o
                     WHERE seq > ?1 AND {})
                 ) WHERE is_marked GROUP BY stretch ORDER BY 1 LIMIT ?3",
                is_of("?2")
            ),
            get: format!(
                "SELECT progress, position, beyond, aggregate_types, formerly FROM {checkpoints}
                 WHERE pipeline = ?1"
            ),
            set_types: format!(
                "UPDATE {checkpoints} SET aggregate_types = ?2, formerly = ?3, updated_at = ?4
                 WHERE pipeline = ?1"
            ),
            take_up: format!(
                "INSERT INTO {failures} (pipeline, {columns}, state, blocks, due_at, attempts,
                   set_aside_at)
                 SELECT ?1, {}, iif({is_delayed}, 'deferred', 'queued'), NOT {is_delayed},
                   iif({is_delayed}, o.deliver_after, NULL), 0, ?5
                 FROM {outbox} AS o JOIN {checkpoints} AS c ON c.pipeline = ?1
                 WHERE o.seq > ?2 AND o.seq <= ?3 AND o.seq > c.since AND {} AND NOT {}
                 AND {}
                 RETURNING seq, aggregate_type, aggregate_id, blocks",
                EVENT_COLUMNS.map(|column| format!("o.{column}")).join(", "),
                is_of("?4"),
                was_matched(),
                not_set_aside(&failures, "?1")
            ),
            set_progress: format!(
                "UPDATE {checkpoints} SET progress = ?2, position = ?3, beyond = ?4, updated_at = ?5
                 WHERE pipeline = ?1"
            ),
            settled: format!(
                "UPDATE {checkpoints} SET position = ?2, beyond = ?3,
                 settled_at = iif(?5, ?4, settled_at), updated_at = ?4 WHERE pipeline = ?1"
            ),
            passed: format!(
                "UPDATE {checkpoints} SET position = ?2, updated_at = ?3 WHERE pipeline = ?1"
            ),
            started: format!(
                "UPDATE {checkpoints} SET crashes = crashes + 1, updated_at = ?2
                 WHERE pipeline = ?1 RETURNING crashes - 1, trouble IS NOT NULL"
            ),
            not_started: format!(
                "UPDATE {checkpoints} SET crashes = max(crashes - 1, 0), updated_at = ?2
                 WHERE pipeline = ?1"
            ),
            trouble: format!(
                "UPDATE {checkpoints} SET trouble = ?2,
                 trouble_since = iif(?2 IS NULL, NULL, coalesce(trouble_since, ?3))
                 WHERE pipeline = ?1 AND trouble IS NOT ?2"
            ),
            survived: format!(
                "UPDATE {checkpoints} SET crashes = 0, updated_at = ?2 WHERE pipeline = ?1"
            ),
            before_first: format!("SELECT coalesce(min(seq), 1) - 1 FROM {outbox}"),
            first_unpublished: format!("SELECT min(seq) FROM {outbox} WHERE published_at IS NULL"),
            mark_stretch: format!(
                "UPDATE {outbox} AS o SET published_at = ?3 WHERE seq > ?1 AND seq <= ?2
                 AND published_at IS NULL AND NOT {} AND EXISTS (SELECT 1 FROM {checkpoints} AS c
                   WHERE c.pipeline = ?4 AND (o.seq <= c.since OR {}))",
                is_heavy("o"),
                was_matched()
            ),
            set_aside_between: format!(
                "SELECT seq FROM {failures} WHERE pipeline = ?1 AND seq > ?2 AND seq <= ?3"
            ),
            mark_set_aside: format!(
                "UPDATE {outbox} AS o SET published_at = ?3 WHERE published_at IS NULL AND seq > ?2
                 AND {} AND NOT {}",
                is_set_aside(&failures, "s.pipeline = ?1"),
                is_heavy("o")
            ),
        }
    }
}

/// Whether the row `o` is of one of these types, a JSON array, of which none means all.
fn is_of(types: &str) -> String {
    format!(
        "(json_array_length({types}) = 0
         OR o.aggregate_type IN (SELECT value FROM json_each({types})))"
    )
}

/// Whether the pipeline of the checkpoint `c` matched the type of the row `o` when its cursor came
/// to it.
fn was_matched() -> String {
    let formerly = |name: &str| {
        format!(
            "coalesce(o.seq <= (SELECT CAST(value AS INTEGER) FROM json_each(c.formerly)
             WHERE key = {name}), 0)"
        )
    };
    format!(
        "(coalesce({}, 0) OR {} OR {})",
        is_of("c.aggregate_types"),
        formerly("o.aggregate_type"),
        formerly("''")
    )
}
