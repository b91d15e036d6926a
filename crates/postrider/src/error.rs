//! Why an event could not be written or claimed.

use std::error::Error as StdError;
use std::fmt;

use uuid::Uuid;

use crate::commit::LostCommit;
use crate::event::InvalidEvent;

/// Why nothing was written. Of the events of one call either all are written or none is.
///
/// Only [`Unknown`](Self::Unknown) leaves open whether they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// An event of the call breaks a limit.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
    /// The outbox has an event of that id.
    #[error(
        "event {id} is in the outbox already; an id belongs to one event, so publish it once or \
         let it have a new id"
    )]
    Duplicate {
        /// The id.
        id: Uuid,
    },
    /// The table does not exist, or lacks a column.
    #[error("the table {table} is missing or out of date; run `postrider migrate`")]
    NotMigrated {
        /// The table's name.
        table: String,
        /// What the database said.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// A connection was passed on which no transaction is open, as the compiler cannot tell with
    /// diesel.
    #[error("the connection is not in a transaction; write inside `conn.transaction(…)`")]
    NotInTransaction,
    /// The connection was lost while the transaction was committed.
    #[error(
        "the connection was lost during COMMIT: the transaction may be committed or not; before \
         trying again ask `Outbox::was_written`"
    )]
    Unknown {
        /// What was being committed.
        commit: LostCommit,
        /// How the connection was lost.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The database failed.
    #[error("the database failed the write; roll the transaction back and try again")]
    Database {
        /// What the database said.
        source: Box<dyn StdError + Send + Sync>,
    },
}

/// What a server of PostgreSQL said when it refused a statement, as far as it can be repeated.
/// Neither as text nor with `Debug` does it quote what was to be written.
///
/// It is the source of a [`WriteError`], whichever the client:
///
/// ```
/// use std::error::Error;
///
/// use postrider::{ServerError, WriteError};
///
/// /// Whether two transactions were in each other's way.
/// fn is_conflict(error: &WriteError) -> bool {
///     let said = error.source().and_then(|source| source.downcast_ref::<ServerError>());
///     matches!(said.and_then(ServerError::code), Some("40001" | "40P01"))
/// }
/// ```
pub struct ServerError {
    code: Option<String>,
    message: Option<String>,
    constraint: Option<String>,
    table: Option<String>,
    driver: Box<dyn StdError + Send + Sync>,
}

impl ServerError {
    /// Keeps of what was said what quotes no values. Data exceptions quote the data, and functions
    /// of others say what they like; so does what has no code.
    #[cfg(any(feature = "diesel-async", feature = "sqlx-postgres", feature = "tokio-postgres"))]
    pub(crate) fn new(
        said: crate::outboxes::postgres::Refusal,
        driver: impl StdError + Send + Sync + 'static,
    ) -> Self {
        let crate::outboxes::postgres::Refusal { code, message, constraint, table, .. } = said;
        let quotes_values = ["", "22", "P0"].contains(&code.get(..2).unwrap_or_default());
        Self {
            code: (!code.is_empty()).then_some(code),
            message: (!quotes_values).then_some(message),
            constraint,
            table,
            driver: Box::new(driver),
        }
    }

    /// The error code (SQLSTATE). Of diesel only those are known for which it has a kind.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// The constraint that was violated.
    pub fn constraint(&self) -> Option<&str> {
        self.constraint.as_deref()
    }

    /// The table that the error is about.
    pub fn table(&self) -> Option<&str> {
        self.table.as_deref()
    }

    /// The error as the database client gave it: a `tokio_postgres::Error`, `sqlx::Error` or
    /// `diesel::result::Error`. It can quote whole rows, payloads too, so think twice before it
    /// goes to a log.
    pub fn driver_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.driver
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or("the server refused the statement"))?;
        match &self.code {
            Some(code) => write!(f, " (SQLSTATE {code})"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, message, constraint, table, driver: _ } = self;
        f.debug_struct("ServerError")
            .field("code", code)
            .field("message", message)
            .field("constraint", constraint)
            .field("table", table)
            .finish_non_exhaustive()
    }
}

impl StdError for ServerError {}
