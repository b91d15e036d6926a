//! How an outbox in PostgreSQL is to be read.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::schema::TableName;

use super::{Location, PostgresSource};
use crate::hint::Hint;
use crate::pipeline::Ordering;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::{LEASE_DEFAULT, MAX_RETAINED_WAL_DEFAULT, Mode, Progress, Shard, StartAt};

/// Longest name of a pipeline, in bytes.
const PIPELINE_BYTES_MAX: usize = 255;

/// How an outbox in PostgreSQL is to be read.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// The database.
    pub location: Location,
    /// The outbox table. Defaults to `outbox`.
    pub table: TableName,
    /// The columns of a table that is not of our making: our name to its name.
    pub columns: BTreeMap<String, String>,
    /// The name under which progress is kept. Defaults to `default`.
    pub pipeline: String,
    /// How events are found. Defaults to [`Mode::Poll`].
    pub mode: Mode,
    /// With [`Mode::Cdc`]: a slot that keeps more of the server's log than this, in bytes, is given
    /// up, and the table is read instead. Defaults to [`MAX_RETAINED_WAL_DEFAULT`].
    pub max_retained_wal: u64,
    /// How progress is kept. Defaults to [`Progress::Mark`].
    pub progress: Progress,
    /// Where a new pipeline begins. Defaults to [`StartAt::Oldest`].
    pub start: StartAt,
    /// Other pipelines of the same relay that are to keep their progress by a cursor: one that does
    /// not yet is waited for. Defaults to none.
    pub companions: Vec<String>,
    /// What is kept in order. Defaults to [`Ordering::Key`].
    pub ordering: Ordering,
    /// Which of the keys. Defaults to all of them.
    pub shard: Shard,
    /// Only events of these aggregate types. Defaults to all.
    pub matching: Option<Vec<String>>,
    /// The relay's own name.
    pub relay: String,
    /// How long a lease runs unless it is renewed. Defaults to [`LEASE_DEFAULT`].
    pub lease: Duration,
    /// Tells that it is worth looking for events now.
    pub hint: Hint,
}

impl PostgresOptions {
    /// The defaults for a database.
    pub fn new(location: Location) -> Self {
        Self {
            location,
            table: TableName::default(),
            columns: BTreeMap::new(),
            pipeline: "default".to_owned(),
            mode: Mode::default(),
            max_retained_wal: MAX_RETAINED_WAL_DEFAULT,
            progress: Progress::default(),
            start: StartAt::default(),
            companions: Vec::new(),
            ordering: Ordering::Key,
            shard: Shard::default(),
            matching: None,
            relay: "relay".to_owned(),
            lease: LEASE_DEFAULT,
            hint: Hint::default(),
        }
    }

    /// Everything that is wrong with the options, without looking at the database.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.pipeline.is_empty() {
            problems.push("the pipeline has no name; give it one".to_owned());
        }
        if self.pipeline.len() > PIPELINE_BYTES_MAX {
            problems.push(format!(
                "the pipeline's name has {} bytes, the limit is {PIPELINE_BYTES_MAX}; shorten it",
                self.pipeline.len()
            ));
        }
        if self.pipeline.contains(char::is_control) {
            problems.push("the pipeline's name contains a control character; remove it".to_owned());
        }
        if self.mode == Mode::Cdc && self.progress != Progress::Cursor {
            problems.push(format!(
                "mode cdc keeps its progress by cursor, not by {}; write progress = \"cursor\"",
                self.progress
            ));
        }
        if self.mode == Mode::Cdc && self.shard.of > 1 {
            problems.push("mode cdc reads one log; write shards = 1".to_owned());
        }
        if self.matching.as_ref().is_some_and(Vec::is_empty) {
            problems.push(
                "no aggregate type matches; name at least one, or leave the match out".to_owned(),
            );
        }
        problems
    }

    /// Connects and takes the pipeline, or a shard of it, for this relay.
    ///
    /// # Errors
    ///
    /// `Misconfigured` if the database or its tables are not as they should be, `Unavailable` if
    /// the server cannot be reached or another relay has the lease, `Unsafe` if the position is
    /// of another database.
    pub async fn connect(self) -> Result<PostgresSource, SourceError> {
        if let Some(problem) = self.problems().into_iter().next() {
            return Err(SourceError::new(SourceErrorKind::Misconfigured, problem));
        }
        PostgresSource::connect(self).await
    }
}
