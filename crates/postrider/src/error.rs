//! Why an event could not be written or claimed.

use std::error::Error as StdError;

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
