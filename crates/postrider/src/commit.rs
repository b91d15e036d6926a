//! A COMMIT that had no answer, and how to find out what became of it.
//!
//! When the connection is lost between COMMIT and its answer, nobody can tell from here whether
//! the transaction was committed. Trying again could do its work twice, giving up could lose it.
//! The database knows: it has the events if it was, and it keeps, for a long while, what became
//! of each transaction. So `transact_async` ends with
//! [`WriteError::Unknown`], and
//! [`Outbox::was_written`](crate::Outbox::was_written) answers on another connection.

use uuid::Uuid;

use crate::error::WriteError;
use crate::schema::TableName;

/// What was being committed when the connection was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostCommit {
    event_ids: Vec<Uuid>,
    transaction: Option<u64>,
}

impl LostCommit {
    /// The commit of a transaction, by its number in the database, with events.
    #[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
    pub(crate) fn new(event_ids: Vec<Uuid>, transaction: Option<u64>) -> Self {
        Self { event_ids, transaction }
    }

    /// The ids of the events that the transaction published, in order.
    pub fn event_ids(&self) -> &[Uuid] {
        &self.event_ids
    }

    /// The number of the transaction; `None` if it had changed nothing.
    pub fn transaction(&self) -> Option<u64> {
        self.transaction
    }
}

/// What became of a transaction whose COMMIT had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a transaction that was written must not be tried again"]
pub enum Outcome {
    /// It was committed: do not try again.
    Written,
    /// It was rolled back, or changed nothing: try again.
    NotWritten,
    /// The server has not ended it yet, so ask again later; or that was so long ago that the
    /// server does not know it any more; or a relay with `progress = "delete"` may have removed its
    /// events, which cannot be told from a server that has crashed and lost it: see whether your
    /// own tables have its changes.
    Undecided,
}

/// A connection on which the outcome of a commit can be asked for.
pub trait AskOutcome {
    /// What became of a commit.
    fn outcome(
        &self,
        table: &TableName,
        commit: &LostCommit,
    ) -> impl Future<Output = Result<Outcome, WriteError>> + Send;
}
