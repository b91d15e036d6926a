//! Statements about checkpoints, and about changing the way of progress.

use postrider::schema::TableName;

use super::matches;

/// The statements about checkpoints.
#[derive(Debug)]
pub(in super::super) struct CheckpointQueries {
    /// `?1` pipeline: how the other pipelines keep their progress.
    pub(in super::super) others: String,
    /// `?1` pipeline, `?2` progress, `?3` now: a first checkpoint, unless there is one.
    pub(in super::super) create: String,
    /// `?1` pipeline: progress, position and what is settled beyond it.
    pub(in super::super) get: String,
    /// `?1` pipeline, `?2` progress, `?3` position, `?4` beyond, `?5` now.
    pub(in super::super) set_progress: String,
    /// `?1` pipeline, `?2` position, `?3` beyond, `?4` now, `?5` whether one was delivered: what a
    /// settlement notes.
    pub(in super::super) settled: String,
    /// `?1` pipeline, `?2` position, `?3` now: rows were passed over.
    pub(in super::super) passed: String,
    /// `?1` pipeline, `?2` now: counts a start; answers how many there were before it.
    pub(in super::super) started: String,
    /// `?1` pipeline, `?2` now: forgets the starts.
    pub(in super::super) survived: String,
    /// The smallest seq that is unpublished.
    pub(in super::super) first_unpublished: String,
    /// `?1` after, `?2` up to, `?3` now, `?4` aggregate types: marks a stretch of rows.
    pub(in super::super) mark_stretch: String,
    /// `?1` pipeline, `?2` after, `?3` now: marks rows that the pipeline set aside.
    pub(in super::super) mark_set_aside: String,
}

impl CheckpointQueries {
    pub(in super::super) fn new(table: &TableName, matching: bool) -> Self {
        let (outbox, failures) = (table.quoted(), table.failures().quoted());
        let checkpoints = table.checkpoints().quoted();
        Self {
            others: format!(
                "SELECT pipeline, progress FROM {checkpoints} WHERE pipeline <> ?1 ORDER BY pipeline"
            ),
            create: format!(
                "INSERT INTO {checkpoints} (pipeline, progress, updated_at) VALUES (?1, ?2, ?3)
                 ON CONFLICT (pipeline) DO NOTHING"
            ),
            get: format!(
                "SELECT progress, position, beyond FROM {checkpoints} WHERE pipeline = ?1"
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
                 WHERE pipeline = ?1 RETURNING crashes - 1"
            ),
            survived: format!(
                "UPDATE {checkpoints} SET crashes = 0, updated_at = ?2 WHERE pipeline = ?1"
            ),
            first_unpublished: format!("SELECT min(seq) FROM {outbox} WHERE published_at IS NULL"),
            mark_stretch: format!(
                "UPDATE {outbox} SET published_at = ?3 WHERE seq > ?1 AND seq <= ?2
                 AND published_at IS NULL{}",
                matches(matching, "?4")
            ),
            mark_set_aside: format!(
                "UPDATE {outbox} AS o SET published_at = ?3 WHERE published_at IS NULL AND seq > ?2
                 AND EXISTS (SELECT 1 FROM {failures} AS s
                   WHERE s.pipeline = ?1 AND s.seq = o.seq AND s.id IS o.id)"
            ),
        }
    }
}
