//! What SQLite's errors mean for the relay.

use postrider::schema::TableName;
use rusqlite::ErrorCode;

use super::Location;
use crate::shell::word;
use crate::source::{SourceError, SourceErrorKind};

/// Turns an error of SQLite into what the pipeline can act on.
pub(super) fn source_error(doing: &str, err: rusqlite::Error) -> SourceError {
    let err = without_sql(err);
    let (kind, hint) = meaning(&err);
    let error = SourceError::new(kind, format!("cannot {doing}")).with_source(err);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// The tables are not there, or not as they should be.
pub(super) fn not_migrated(
    location: &Location,
    outbox: &TableName,
    what: impl Into<String>,
) -> SourceError {
    let mut command = format!("postrider migrate --from {location}");
    if *outbox != TableName::default() {
        command.push_str(&format!(" --table {}", word(outbox.as_str())));
    }
    SourceError::new(SourceErrorKind::Misconfigured, what).with_hint(format!("run `{command}`"))
}

/// An error in a statement names all of it, which helps nobody who runs a relay.
fn without_sql(err: rusqlite::Error) -> rusqlite::Error {
    match err {
        rusqlite::Error::SqlInputError { error, msg, .. } => {
            rusqlite::Error::SqliteFailure(error, Some(msg))
        }
        err => err,
    }
}

fn meaning(err: &rusqlite::Error) -> (SourceErrorKind, Option<&'static str>) {
    use SourceErrorKind::{Misconfigured, Unavailable, Unsafe};
    match err.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            Unavailable,
            Some("another connection holds a lock; look for a write transaction that stays open"),
        ),
        Some(ErrorCode::NotADatabase) => {
            (Unsafe, Some("the file is not a SQLite database, or it is encrypted"))
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            (Unsafe, Some("run `PRAGMA integrity_check`, then recover or restore the database"))
        }
        Some(
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::AuthorizationForStatementDenied,
        ) => (Misconfigured, Some("the relay needs to write to the file and to its directory")),
        Some(ErrorCode::CannotOpen) => {
            (Misconfigured, Some("the relay needs to read and write the file and its directory"))
        }
        Some(ErrorCode::DiskFull) => (Unavailable, Some("free some disk space")),
        // No such table or column: the schema was changed under the relay.
        Some(ErrorCode::Unknown) => {
            (Misconfigured, Some("run `postrider migrate` if the tables were changed"))
        }
        // A value in a table of postrider is not of the type that it was written with.
        None => (Unsafe, Some("a side table of the outbox was changed by hand; undo that")),
        Some(_) => (Unavailable, None),
    }
}

/// What can go wrong while the database is used.
#[derive(Debug)]
pub(super) enum Trouble {
    Sqlite(rusqlite::Error),
    Source(SourceError),
}

impl Trouble {
    pub(super) fn while_doing(self, doing: &str) -> SourceError {
        match self {
            Self::Sqlite(err) => source_error(doing, err),
            Self::Source(error) => error,
        }
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(err: rusqlite::Error) -> Self {
        Self::Sqlite(err)
    }
}

impl From<SourceError> for Trouble {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}
