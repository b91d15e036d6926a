//! A database in memory, with an outbox for each table name and one inbox.
//!
//! What a transaction writes lies in its own [`Changes`] until it commits, so that nobody else
//! sees it, and nothing has to be undone if it is dropped. A row that it wrote is *held* until it
//! ends. Whoever wants to write the same row waits, as at a primary key, and then sees what was
//! committed: so of two transactions that claim one event never both have the first claim.
//!
//! A statement looks at all its rows before it writes any, under one lock of the whole database.
//! Hence it happens entirely or not at all, and can simply be tried again once another
//! transaction has ended. A thread waits on a condition variable, with a deadline; a future
//! leaves its waker.

mod inbox;
mod statement;
mod tables;
mod transaction;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use uuid::Uuid;

pub use tables::DeadMessage;
pub use transaction::{AsyncMemoryTransaction, HeldByAnother, MemoryTransaction};

use crate::event::{Event, Key};
use crate::outbox::Outbox;
use tables::{Changes, Row, Tables};

/// How long a transaction waits for another one that has written the same row, unless it is told
/// otherwise by [`MemoryDatabase::with_wait_max`].
pub const WAIT_MAX: Duration = Duration::from_secs(5);

/// A database in memory, for tests. A clone is the same database.
///
/// It does what the real ones do: nothing is seen until [`commit`](MemoryTransaction::commit),
/// all is gone if a transaction is dropped, invalid events and known ids are refused. Each
/// transaction sees what others have committed by then. Every table name is there, and is an
/// outbox of its own; nothing has to be migrated.
///
/// Two open transactions that claim one event (or publish one id, or move one watermark): the
/// second call waits until the first transaction has ended, and fails after [`WAIT_MAX`]. In one
/// thread nobody would end it, so there it always fails; end the first one before.
#[derive(Clone)]
pub struct MemoryDatabase {
    shared: Arc<Shared>,
    wait_max: Duration,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// A transaction has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    tables: Tables,
    /// Rows that an open transaction has written, and which one.
    held: HashMap<Row, u64>,
    /// Futures that wait for a transaction to end.
    wakers: Vec<Waker>,
    transactions: u64,
}

impl MemoryDatabase {
    /// An empty database.
    pub fn new() -> Self {
        Self { shared: Arc::default(), wait_max: WAIT_MAX }
    }

    /// The same database, whose transactions wait that long for another that has written the same
    /// row.
    #[must_use]
    pub fn with_wait_max(&self, wait_max: Duration) -> Self {
        Self { shared: Arc::clone(&self.shared), wait_max }
    }

    /// Begins a transaction whose calls answer at once, as those of rusqlite do.
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction::begin(self)
    }

    /// Begins a transaction whose calls are awaited, as those of sqlx and tokio-postgres are.
    pub fn begin_async(&self) -> AsyncMemoryTransaction {
        AsyncMemoryTransaction::begin(self)
    }

    /// The events that were committed to an outbox, in order, delivered or not.
    pub fn events(&self, outbox: &Outbox) -> Vec<Event> {
        self.shared.lock().tables.events(outbox.table())
    }

    /// Those of the [events](Self::events) that were not delivered.
    pub fn pending(&self, outbox: &Outbox) -> Vec<Event> {
        self.shared.lock().tables.pending(outbox.table())
    }

    /// Whether a claim was committed.
    pub fn is_claimed(&self, consumer: &str, event_id: Uuid) -> bool {
        self.shared.lock().tables.claims.contains_key(&(consumer.to_owned(), event_id))
    }

    /// The last version of a key that a consumer has seen.
    pub fn watermark(&self, consumer: &str, key: &Key) -> Option<u64> {
        self.shared.lock().tables.versions.get(&(consumer.to_owned(), key.clone())).copied()
    }

    /// The events that a consumer has stored to be handled later, in order.
    pub fn stored(&self, consumer: &str) -> Vec<Event> {
        self.shared.lock().tables.stored(consumer)
    }

    /// The events that a consumer has given up, in order.
    pub fn dead(&self, consumer: &str) -> Vec<DeadMessage> {
        self.shared.lock().tables.dead(consumer)
    }

    /// Marks an event as delivered.
    pub(super) fn settle(&self, outbox: &Outbox, event: &Event) {
        self.shared.lock().tables.settle(outbox.table(), event.id());
    }
}

impl Default for MemoryDatabase {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDatabase").field("wait_max", &self.wait_max).finish_non_exhaustive()
    }
}

impl Shared {
    /// A statement does not panic half way, so a poisoned lock still guards whole rows.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a transaction: its changes, if it has any to keep, are there at once, and its rows are
    /// free.
    fn end(&self, transaction: u64, changes: Changes) {
        let mut state = self.lock();
        state.tables.apply(changes);
        state.held.retain(|_, holder| *holder != transaction);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.ended.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}
