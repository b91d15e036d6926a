//! The sources there are, by the scheme of the database's URL.
//!
//! A new backend is one folder here, one feature, and its arms in `Backend`.

mod backend;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod matching;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
mod room;
pub mod schema;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use postrider::schema::{Migration, TableName};

use self::backend::{Backend, scheme};
use crate::admin::Admin;
use crate::audit::{Audit, Watch};
use crate::diagnosis::Diagnose;
use crate::hint::Hint;
use crate::operator::Operator;
use crate::pipeline::Ordering;
use crate::prune::Prune;
use crate::scratch::ScratchDatabase;
use crate::shutdown::Shutdown;
use crate::slots::Slots;
use crate::source::{Source, SourceError};

pub use self::backend::UnusableUrl;

/// How long a lease runs unless it is renewed, by default.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(15);

/// How a pipeline keeps its progress in a SQL database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Progress {
    /// As a position; nothing is written per row. Several pipelines can read one outbox.
    Cursor,
    /// By deleting rows.
    Delete,
    /// By setting `published_at` of rows.
    #[default]
    Mark,
}

impl Progress {
    /// All of them, by name.
    pub const ALL: [Self; 3] = [Self::Cursor, Self::Delete, Self::Mark];

    /// The name in configuration and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cursor => "cursor",
            Self::Delete => "delete",
            Self::Mark => "mark",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|progress| progress.as_str() == name)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a new pipeline begins that keeps its progress by a cursor. One that has a checkpoint goes on
/// where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartAt {
    /// With what is written from now on.
    Now,
    /// With the oldest row, published or not.
    #[default]
    Oldest,
    /// With the oldest row that no pipeline has marked as published.
    Unpublished,
}

impl StartAt {
    /// All of them, by name.
    pub const ALL: [Self; 3] = [Self::Now, Self::Oldest, Self::Unpublished];

    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Oldest => "oldest",
            Self::Unpublished => "unpublished",
        }
    }
}

/// How events are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By asking the table for new rows.
    #[default]
    Poll,
    /// From the database's log.
    Cdc,
}

/// How much of the server's log is kept for a pipeline before the table is read instead, in bytes.
pub const MAX_RETAINED_WAL_DEFAULT: u64 = 10 << 30;

/// Which outbox is to be read, for which pipeline, and how.
#[derive(Clone)]
pub struct SourceSpec {
    /// The database, such as `sqlite:app.db`. May hold a password.
    pub url: String,
    /// The outbox table. Defaults to `outbox`.
    pub table: TableName,
    /// The name under which progress is kept. Defaults to `default`.
    pub pipeline: String,
    /// How events are read. Defaults to [`Mode::Poll`].
    pub mode: Mode,
    /// With [`Mode::Cdc`]: how much of the server's log may be kept for the pipeline, in bytes,
    /// before the table is read instead. Defaults to [`MAX_RETAINED_WAL_DEFAULT`].
    pub max_retained_wal: u64,
    /// How progress is kept. Defaults to [`Progress::Mark`].
    pub progress: Progress,
    /// Where it begins if it is new. Defaults to [`StartAt::Oldest`].
    pub start: StartAt,
    /// Other pipelines of the same relay that are to keep their progress by a cursor: one that does
    /// not yet is waited for.
    pub companions: Vec<String>,
    /// Only events of these aggregate types; empty means all.
    pub aggregate_types: Vec<String>,
    /// What is kept in order. Defaults to [`Ordering::Key`].
    pub ordering: Ordering,
    /// Which of the keys. Defaults to all of them.
    pub shard: Shard,
    /// How long a lease runs unless it is renewed. Defaults to 15 s.
    pub lease: Duration,
    /// The relay's own name, by which other relays know it as the owner of a lease.
    pub relay: String,
    /// The columns of a table that is not of our making: our name to its name.
    pub columns: BTreeMap<String, String>,
    /// Tells that it is worth looking for events now.
    pub hint: Hint,
}

/// A part of the keys of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Which part; they count from 0.
    pub index: u32,
    /// How many parts there are.
    pub of: u32,
}

impl Default for Shard {
    /// All keys.
    fn default() -> Self {
        Self { index: 0, of: 1 }
    }
}

impl SourceSpec {
    /// The defaults for a database.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            table: TableName::default(),
            pipeline: "default".to_owned(),
            mode: Mode::default(),
            max_retained_wal: MAX_RETAINED_WAL_DEFAULT,
            progress: Progress::default(),
            start: StartAt::default(),
            companions: Vec::new(),
            aggregate_types: Vec::new(),
            ordering: Ordering::Key,
            shard: Shard::default(),
            lease: LEASE_DEFAULT,
            relay: "relay".to_owned(),
            columns: BTreeMap::new(),
            hint: Hint::default(),
        }
    }

    /// Everything that is wrong with it, without looking at the database.
    pub fn problems(&self) -> Vec<String> {
        match Backend::of(&self.url) {
            Ok(backend) => backend.problems(self),
            Err(unusable) => vec![unusable.to_string()],
        }
    }

    /// Connects to the outbox.
    pub async fn connect(&self) -> Result<Box<dyn Source>, SourceError> {
        Backend::of(&self.url)?.connect(self).await
    }
}

impl fmt::Debug for SourceSpec {
    /// Of the URL only the scheme: the rest may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSpec")
            .field("scheme", &scheme(&self.url))
            .field("table", &self.table)
            .field("pipeline", &self.pipeline)
            .field("mode", &self.mode)
            .field("progress", &self.progress)
            .field("aggregate_types", &self.aggregate_types)
            .field("ordering", &self.ordering)
            .field("shard", &self.shard)
            .field("relay", &self.relay)
            .field("columns", &self.columns)
            .finish_non_exhaustive()
    }
}

/// Connects to an outbox as its operator. `columns` are those of a table that is not of our
/// making: our name to its name.
pub async fn connect_admin(
    url: &str,
    table: &TableName,
    columns: &BTreeMap<String, String>,
) -> Result<Box<dyn Admin>, SourceError> {
    Backend::of(url)?.connect_admin(table, columns).await
}

/// Connects to a database to audit it, and begins. `columns` are those of an outbox that is not of
/// our making: our name to its name.
pub async fn connect_audit(
    url: &str,
    table: &TableName,
    columns: &BTreeMap<String, String>,
    watch: &Watch,
    shutdown: &Shutdown,
) -> Result<Box<dyn Audit>, SourceError> {
    Backend::of(url)?.connect_audit(table, columns, watch, shutdown).await
}

/// Connects to an outbox for everything that an operator does with it. `columns` are those of a
/// table that is not of our making: our name to its name.
pub async fn connect_operator(
    url: &str,
    table: &TableName,
    columns: &BTreeMap<String, String>,
) -> Result<Box<dyn Operator>, SourceError> {
    Backend::of(url)?.connect_operator(table, columns).await
}

/// Examines an outbox and its database. Nothing is connected before the first check. `columns` are
/// those of a table that is not of our making: our name to its name.
pub fn diagnosis(
    url: &str,
    table: &TableName,
    columns: &BTreeMap<String, String>,
) -> Result<Box<dyn Diagnose>, SourceError> {
    Ok(Backend::of(url)?.diagnosis(table, columns))
}

/// Connects to an outbox to prune it. `columns` are those of a table that is not of our making:
/// our name to its name.
pub async fn connect_prune(
    url: &str,
    table: &TableName,
    columns: &BTreeMap<String, String>,
) -> Result<Box<dyn Prune>, SourceError> {
    Backend::of(url)?.connect_prune(table, columns).await
}

/// Connects to an outbox to look after the slots of its pipelines. `columns` are those of a table
/// that is not of our making: our name to its name.
pub async fn connect_slots(
    url: &str,
    table: &TableName,
    columns: &BTreeMap<String, String>,
) -> Result<Box<dyn Slots>, SourceError> {
    Backend::of(url)?.connect_slots(table, columns).await
}

/// Scratch outboxes in the database of a URL, to measure with. Nothing is connected before the
/// first call.
pub fn scratch(url: &str) -> Result<Box<dyn ScratchDatabase>, SourceError> {
    Ok(Backend::of(url)?.scratch())
}

/// Makes the tables of an outbox, or brings them up to date. Makes a database file that does not
/// exist. Answers the migrations that were needed.
pub async fn migrate(url: &str, table: &TableName) -> Result<Vec<&'static Migration>, SourceError> {
    schema::migrate(url, table, None).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceErrorKind;

    #[test]
    fn a_url_without_a_source_is_refused_and_never_quoted() {
        let cases = [
            ("app.db", "the database URL has no scheme; write one such as "),
            ("mysql://user:canary@host/db", "MySQL is not supported by this build; it has "),
            ("dynamodb://canary", "DynamoDB is not supported by this build"),
            ("pg://user:canary@host/db", "known by the scheme \"pg\"; write a URL such as "),
            #[cfg(feature = "postgres")]
            ("postgress://user:canary@host/db", "\"postgress\"; did you mean postgres: ? write"),
            #[cfg(feature = "sqlite")]
            ("sqllite:canary", "\"sqllite\"; did you mean sqlite: ? write a URL such as"),
            ("/canary:x", "has no scheme"),
            ("sqlite:app.db?key=canary", "takes no parameters"),
        ];
        for (url, expected) in cases {
            let spec = SourceSpec::new(url);
            let problems = spec.problems().join("\n");
            assert!(problems.contains(expected), "{problems:?} should contain {expected:?}");
            assert!(!format!("{problems}{spec:?}").contains("canary"), "{problems} {spec:?}");
        }
    }

    #[tokio::test]
    async fn connecting_to_an_unusable_url_is_a_misconfiguration() {
        let error = SourceSpec::new("mysql://canary@h/db").connect().await.err().unwrap();
        assert_eq!(error.kind, SourceErrorKind::Misconfigured);
        let (table, columns) = (TableName::default(), BTreeMap::new());
        let error = connect_admin("mysql://h/db", &table, &columns).await.err().unwrap();
        assert_eq!(error.kind, SourceErrorKind::Misconfigured);
        assert!(migrate("x", &TableName::default()).await.is_err());
    }

    #[test]
    fn progress_has_a_name() {
        for progress in Progress::ALL {
            assert_eq!(Progress::from_name(&progress.to_string()), Some(progress));
        }
        assert_eq!(Progress::from_name("none"), None);
    }
}
