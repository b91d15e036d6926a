//! An outbox in memory: for tests, documentation and benchmarks.
//!
//! [`MemoryOutbox`] is a cloneable handle that stands for the database: it is appended to,
//! looked at, and operated on (it is an [`Admin`](crate::admin::Admin) too). A [`MemorySource`]
//! is connected to it and keeps the whole contract of a [`Source`]. Connecting again is what a
//! restart after a crash is: the new source is handed everything that is unsettled, and the old
//! one is refused from then on.
//!
//! [`MemoryOutbox::generated`] makes events on the fly instead of storing them, so that a
//! benchmark measures the relay and not its input.
//!
//! Time is tokio's clock, so that tests can pause it.

mod admin;
mod generator;
mod set_aside;
mod state;
mod stream;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use postrider::{Event, Key};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::set_aside::Moment;
use self::state::State;
use self::stream::Stream;
use crate::source::{
    BatchLimit, Record, Resume, Settled, Settlement, Source, SourceCapabilities, SourceError,
    SourceErrorKind, Undecodable,
};

pub use self::generator::Generated;
pub use self::set_aside::{SetAside, SetAsideState};

/// A handle to an outbox in memory. Clones are the same outbox.
#[derive(Clone, Debug)]
pub struct MemoryOutbox {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    started: Instant,
    started_at: SystemTime,
}

impl MemoryOutbox {
    /// An empty outbox.
    pub fn new() -> Self {
        Self::over(Stream::stored())
    }

    /// An outbox that makes its events as they are read, and stores none.
    pub fn generated(generated: Generated) -> Self {
        Self::over(Stream::generated(generated))
    }

    fn over(stream: Stream) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::new(stream)),
                changed: Notify::new(),
                started: Instant::now(),
                started_at: SystemTime::now(),
            }),
        }
    }

    /// Appends events, as one transaction that commits now. A generated outbox takes none.
    pub fn append(&self, events: impl IntoIterator<Item = Event>) {
        let events: Vec<_> = events.into_iter().map(|event| Ok(Arc::new(event))).collect();
        self.append_rows(events);
    }

    /// Appends a row that is not an event.
    pub fn append_undecodable(&self, key: Option<Key>, reason: impl Into<String>) {
        self.append_rows(vec![Err(Undecodable { key, reason: reason.into() })]);
    }

    fn append_rows(&self, rows: Vec<Result<Arc<Event>, Undecodable>>) {
        let mut state = self.state();
        for row in rows {
            state.stream.append(row);
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// Connects a source, as the start of a relay does. An earlier source is refused from now on.
    pub fn connect(&self) -> MemorySource {
        let generation = self.state().connect();
        MemorySource { outbox: self.clone(), generation }
    }

    /// The events that are set aside, in the order of the outbox.
    pub fn set_aside(&self) -> Vec<SetAside> {
        self.state().set_aside.iter().cloned().collect()
    }

    /// How many events are neither delivered nor set aside.
    pub fn unpublished(&self) -> u64 {
        self.state().stream.unsettled()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock leaves the state half changed.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        let elapsed = self.shared.started.elapsed();
        Moment { elapsed, date: self.shared.started_at + elapsed }
    }
}

impl Default for MemoryOutbox {
    fn default() -> Self {
        Self::new()
    }
}

/// A source over a [`MemoryOutbox`].
#[derive(Debug)]
pub struct MemorySource {
    outbox: MemoryOutbox,
    generation: u64,
}

impl MemorySource {
    /// The state, unless another source was connected since.
    fn state(&self) -> Result<MutexGuard<'_, State>, SourceError> {
        let state = self.outbox.state();
        if state.generation() == self.generation {
            return Ok(state);
        }
        Err(SourceError::new(
            SourceErrorKind::Lost,
            "another source was connected to this outbox in memory",
        ))
    }
}

#[async_trait]
impl Source for MemorySource {
    fn capabilities(&self) -> SourceCapabilities {
        SourceCapabilities { name: "memory", shared: false }
    }

    async fn resume(&self) -> Result<Resume, SourceError> {
        Ok(self.state()?.resume())
    }

    async fn next_batch(&self, limit: BatchLimit) -> Result<Vec<Record>, SourceError> {
        let deadline = self.outbox.now().elapsed.saturating_add(limit.wait);
        loop {
            let changed = self.outbox.shared.changed.notified();
            let now = self.outbox.now();
            let next_due = {
                let mut state = self.state()?;
                let batch = state.read(limit, now);
                if !batch.is_empty() || now.elapsed >= deadline {
                    return Ok(batch);
                }
                state.set_aside.next_due(now.elapsed)
            };
            let wait_until = next_due.map_or(deadline, |due| due.min(deadline));
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(wait_until.saturating_sub(now.elapsed)) => {}
            }
        }
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, SourceError> {
        let settled = self.state()?.settle(settlements, self.outbox.now());
        // Something may have been released, or come due.
        self.outbox.shared.changed.notify_waiters();
        Ok(settled)
    }

    async fn survived(&self) -> Result<(), SourceError> {
        self.state()?.survived();
        Ok(())
    }

    async fn note_trouble(&self, trouble: Option<&str>) -> Result<(), SourceError> {
        self.state()?.note_trouble(trouble, self.outbox.now().date);
        Ok(())
    }

    async fn pending(&self) -> Result<bool, SourceError> {
        Ok(self.state()?.pending(self.outbox.now().date))
    }

    async fn give_back(self: Box<Self>) {
        if let Ok(mut state) = self.state() {
            state.not_started();
        }
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        self.state()?.survived();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
