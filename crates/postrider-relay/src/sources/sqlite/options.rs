//! How an outbox in SQLite is to be read.

use std::time::Duration;

use postrider::schema::TableName;

use super::{Location, SqliteSource};
use crate::hint::Hint;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::{Progress, StartAt};

/// How long to wait for a lock that another connection holds, by default.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest name of a pipeline, in bytes.
const PIPELINE_BYTES_MAX: usize = 255;

/// How an outbox in SQLite is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// The database file.
    pub location: Location,
    /// The outbox table. Defaults to `outbox`.
    pub table: TableName,
    /// The name under which progress is kept. Defaults to `default`.
    pub pipeline: String,
    /// How progress is kept. Defaults to [`Progress::Mark`].
    pub progress: Progress,
    /// Where a new pipeline begins. Defaults to [`StartAt::Oldest`].
    pub start: StartAt,
    /// Other pipelines of the same relay that are to keep their progress by a cursor: one that does
    /// not yet is waited for. Defaults to none.
    pub companions: Vec<String>,
    /// Only events of these aggregate types. Defaults to all.
    pub matching: Option<Vec<String>>,
    /// How long to wait for a lock. Defaults to [`BUSY_TIMEOUT`].
    pub busy_timeout: Duration,
    /// Tells that it is worth looking for events now. Defaults to one that nobody gives.
    pub hint: Hint,
}

impl SqliteOptions {
    /// The defaults for a database.
    pub fn new(location: Location) -> Self {
        Self {
            location,
            table: TableName::default(),
            pipeline: "default".to_owned(),
            progress: Progress::default(),
            start: StartAt::default(),
            companions: Vec::new(),
            matching: None,
            busy_timeout: BUSY_TIMEOUT,
            hint: Hint::new(),
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
        if self.matching.as_ref().is_some_and(Vec::is_empty) {
            problems.push(
                "no aggregate type matches; name at least one, or leave the match out".to_owned(),
            );
        }
        problems
    }

    /// Opens the database and takes the pipeline for this relay.
    ///
    /// # Errors
    ///
    /// `Misconfigured` if there is no such database or its tables are not up to date,
    /// `Unavailable` if it is locked or another relay runs the pipeline, `Unsafe` if the file is
    /// damaged.
    pub async fn connect(self) -> Result<SqliteSource, SourceError> {
        if let Some(problem) = self.problems().into_iter().next() {
            return Err(SourceError::new(SourceErrorKind::Misconfigured, problem));
        }
        SqliteSource::connect(self).await
    }
}
