//! Transactions in memory: one that blocks, and one that is awaited.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::statement::{Refusal, Statement};
use super::tables::{Changes, Row};
use super::{MemoryDatabase, Shared, State};
use crate::error::WriteError;
use crate::event::Event;
use crate::outbox::{Answer, Begin, Transaction};
use crate::schema::TableName;

/// An open transaction of a [`MemoryDatabase`], which is rolled back if it is dropped. After an
/// error it can go on, without what failed, as in SQLite.
#[derive(Debug)]
pub struct MemoryTransaction(pub(super) Session);

/// An open transaction of a [`MemoryDatabase`] whose calls are awaited. It is for any runtime.
///
/// A call that waits for another transaction is woken when that ends. It has no deadline, as only
/// the runtime has a clock that can be awaited: put the test into its timeout, if a deadlock
/// should fail it.
#[derive(Debug)]
pub struct AsyncMemoryTransaction(pub(super) Session);

/// Another open transaction has written the same row, and did not end in time: the source of a
/// [`WriteError::Database`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{row} was written by another open transaction, which did not end within {wait_max:?}; \
     commit or drop that one first, or let it end in another thread"
)]
pub struct HeldByAnother {
    row: String,
    wait_max: Duration,
}

impl MemoryTransaction {
    pub(super) fn begin(database: &MemoryDatabase) -> Self {
        Self(Session::begin(database))
    }

    /// Makes everything visible at once.
    ///
    /// # Errors
    ///
    /// None; it is a `Result` as with real databases, so that code is the same.
    pub fn commit(self) -> Result<(), WriteError> {
        self.0.commit();
        Ok(())
    }

    /// Forgets everything, as dropping does.
    ///
    /// # Errors
    ///
    /// None, as with [`commit`](Self::commit).
    pub fn rollback(self) -> Result<(), WriteError> {
        Ok(())
    }
}

impl AsyncMemoryTransaction {
    pub(super) fn begin(database: &MemoryDatabase) -> Self {
        Self(Session::begin(database))
    }

    /// Makes everything visible at once.
    ///
    /// # Errors
    ///
    /// None; it is a `Result` as with real databases, so that code is the same.
    pub async fn commit(self) -> Result<(), WriteError> {
        self.0.commit();
        Ok(())
    }

    /// Forgets everything, as dropping does.
    ///
    /// # Errors
    ///
    /// None, as with [`commit`](Self::commit).
    pub async fn rollback(self) -> Result<(), WriteError> {
        Ok(())
    }
}

/// A transaction, however it is called.
pub(super) struct Session {
    shared: Arc<Shared>,
    wait_max: Duration,
    transaction: u64,
    changes: Changes,
}

impl Session {
    fn begin(database: &MemoryDatabase) -> Self {
        let shared = Arc::clone(&database.shared);
        let mut state = shared.lock();
        state.transactions += 1;
        let transaction = state.transactions;
        drop(state);
        Self { shared, wait_max: database.wait_max, transaction, changes: Changes::default() }
    }

    fn commit(mut self) {
        self.shared.end(self.transaction, std::mem::take(&mut self.changes));
    }

    /// Runs a statement, again and again until no other transaction is in its way.
    pub(super) fn run<T>(
        &mut self,
        mut statement: impl FnMut(&mut Statement<'_>) -> Result<T, Refusal>,
    ) -> Result<T, WriteError> {
        let deadline = Instant::now() + self.wait_max;
        let mut state = self.shared.lock();
        loop {
            let row =
                match statement(&mut under_way(&mut state, &mut self.changes, self.transaction)) {
                    Ok(value) => return Ok(value),
                    Err(Refusal::Failed(error)) => return Err(error),
                    Err(Refusal::Held(row)) => row,
                };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(held_by_another(&row, self.wait_max));
            }
            let woken = self.shared.ended.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The same, awaited.
    pub(super) fn awaited<'t, T>(
        &'t mut self,
        mut statement: impl FnMut(&mut Statement<'_>) -> Result<T, Refusal> + Send + 't,
    ) -> Answer<'t, T> {
        Box::pin(poll_fn(move |context| {
            let mut state = self.shared.lock();
            match statement(&mut under_way(&mut state, &mut self.changes, self.transaction)) {
                Ok(value) => Poll::Ready(Ok(value)),
                Err(Refusal::Failed(error)) => Poll::Ready(Err(error)),
                Err(Refusal::Held(_)) => {
                    state.wakers.push(context.waker().clone());
                    Poll::Pending
                }
            }
        }))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // After a commit there is nothing left to end, and this changes nothing.
        self.shared.end(self.transaction, Changes::default());
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("transaction", &self.transaction).finish_non_exhaustive()
    }
}

fn under_way<'s>(state: &'s mut State, own: &'s mut Changes, transaction: u64) -> Statement<'s> {
    Statement { state, own, transaction }
}

fn held_by_another(row: &Row, wait_max: Duration) -> WriteError {
    WriteError::Database { source: HeldByAnother { row: row.to_string(), wait_max }.into() }
}

impl Transaction for MemoryTransaction {
    type Written<'t, T: Send + 't>
        = Result<T, WriteError>
    where
        Self: 't;

    fn answer<'t, T: Send + 't>(result: Result<T, WriteError>) -> Result<T, WriteError>
    where
        Self: 't,
    {
        result
    }

    fn insert<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        events: Vec<Event>,
        written: T,
    ) -> Result<T, WriteError> {
        self.0.run(|statement| statement.insert(table, &events))?;
        Ok(written)
    }
}

impl Transaction for AsyncMemoryTransaction {
    type Written<'t, T: Send + 't>
        = Answer<'t, T>
    where
        Self: 't;

    fn answer<'t, T: Send + 't>(result: Result<T, WriteError>) -> Answer<'t, T>
    where
        Self: 't,
    {
        Box::pin(std::future::ready(result))
    }

    fn insert<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        events: Vec<Event>,
        written: T,
    ) -> Answer<'t, T> {
        Box::pin(async move {
            self.0.awaited(|statement| statement.insert(table, &events)).await?;
            Ok(written)
        })
    }
}

impl Begin for &MemoryDatabase {
    type Tx<'t> = AsyncMemoryTransaction;

    fn begin<'t>(self) -> Answer<'t, AsyncMemoryTransaction>
    where
        Self: 't,
    {
        Box::pin(async move { Ok(self.begin_async()) })
    }

    fn finish<'t>(
        mut tx: AsyncMemoryTransaction,
        table: &'t TableName,
        events: Vec<Event>,
    ) -> Answer<'t, ()> {
        Box::pin(async move {
            tx.insert(table, events, ()).await?;
            tx.commit().await
        })
    }
}
