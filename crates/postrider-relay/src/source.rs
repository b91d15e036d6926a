//! The contract of a source: it reads one outbox for one pipeline and settles what was read.
//!
//! # What a source promises
//!
//! - Records come in the order of the outbox, so that two events of one key never swap.
//! - A record that was handed out and not settled comes back: after a crash to the next
//!   source that is connected, and after [`Verdict::Released`] to this one.
//! - Progress moves only through [`Source::settle`].
//! - A row that cannot be decoded is handed out as such (so that it can be parked), never
//!   skipped and never a reason to stop.
//!
//! # Events set aside
//!
//! An event that failed does not stay in the way. The verdicts `Parked`, `Deferred` and
//! `Queued` move it, durably, out of the outbox's stream to a place beside it (a table
//! `outbox_failures` in SQL databases), and progress goes on past it. There it waits
//!
//! - `Parked`: for an operator,
//! - `Deferred`: for a time to come,
//! - `Queued`: for the events of its key that were set aside before it.
//!
//! The source hands such an event out again, marked [`returned`](Record::returned), once it
//! is its turn: a deferred event when its time has come, a queued event when everything of its
//! key before it is gone, a parked event when an operator asked for a retry. What has been due
//! for longest comes first, so that no key starves. Events of one key
//! return in their order: several may be handed out together, but no further one of that key
//! before those are settled, or it could overtake one that is set aside once more. *The first
//! blocking event of a key that is set aside is either parked or due at some time*: so a key can
//! wait, but never be forgotten.
//!
//! A key with a blocking event set aside is *blocked*: the pipeline queues every new event of
//! it. The source tells it about blocked keys at the start ([`Resume`]) and tells when the last
//! one of a key is gone ([`Settled::unblocked`]).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::{Event, Key};
use tokio::time::Instant;

use crate::failure::Failure;

/// Reads one outbox for one pipeline.
///
/// `next_batch` and `settle` may run at the same time as each other, but never twice at the
/// same time.
#[async_trait]
pub trait Source: Send + Sync {
    /// What this source can do.
    fn capabilities(&self) -> SourceCapabilities;

    /// Where the pipeline left off. Called once, before the first batch.
    async fn resume(&self) -> Result<Resume, SourceError>;

    /// The next records in order, at least one if any is due, never more than the limit allows.
    ///
    /// Waits up to `limit.wait` for the first one; an empty batch means that there was none.
    /// Cancel-safe: dropping the future loses nothing.
    async fn next_batch(&self, limit: BatchLimit) -> Result<Vec<Record>, SourceError>;

    /// Records, durably and in one step, what became of events. Settling an event again changes
    /// nothing.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, SourceError>;

    /// Forgets earlier [crashes](Resume::crashes): the events that were under way then are
    /// settled now.
    async fn survived(&self) -> Result<(), SourceError>;

    /// Notes what is wrong with the pipeline's sink as a whole, for whoever asks for the
    /// pipeline's status; `None` once that is over. Since when it is so is kept while it goes on.
    async fn note_trouble(&self, trouble: Option<&str>) -> Result<(), SourceError>;

    /// Whether anything is left to deliver, apart from parked events, events queued behind
    /// them, and events whose `deliver_after` has not come.
    async fn pending(&self) -> Result<bool, SourceError>;

    /// The right to this outbox, as far as the source knows. Looked at before every send, so it
    /// is only a look at memory.
    fn lease(&self) -> Lease {
        Lease::default()
    }

    /// Gives back what is held, so that another source can have it at once, after an error that
    /// was told: this start is not counted among the [crashes](Resume::crashes), and those before
    /// it are not forgotten. Dropping a source gives it back too, but nobody can wait for that,
    /// and it counts as a crash.
    async fn give_back(self: Box<Self>);

    /// Gives back what is held and notes that this was an orderly end.
    async fn close(self: Box<Self>) -> Result<(), SourceError>;
}

/// What a source can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceCapabilities {
    /// The kind of database, such as `sqlite`.
    pub name: &'static str,
    /// Several pipelines can read the same outbox.
    pub shared: bool,
}

/// The right to read an outbox, or a shard of it, and to settle what was read. The default is
/// one that cannot pass on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Nothing may be sent from then on, because another relay may take over; `None` if none can.
    /// It moves on while the source can renew the lease.
    pub until: Option<Instant>,
    /// Another relay should have it: finish what is under way, close, and stand by.
    pub wanted: bool,
}

/// How much to read at most. A single event larger than `bytes` is a batch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimit {
    /// Most events.
    pub events: usize,
    /// Most bytes, by [`Record::size_bytes`].
    pub bytes: usize,
    /// Longest time to wait for the first event.
    pub wait: Duration,
}

/// What a pipeline needs to know before it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Keys of which a blocking event is set aside.
    pub blocked_keys: Vec<Key>,
    /// How many starts in a row, before this one, ended neither in an orderly way, nor after
    /// [`Source::survived`], nor with an error that was told ([`Source::give_back`]).
    pub crashes: u32,
    /// Trouble of the sink [is noted](Source::note_trouble).
    pub is_troubled: bool,
}

/// The source's own name for a record that is not settled yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// An event as it was read.
#[derive(Clone, Debug)]
pub struct Record {
    /// Names the record when it is settled.
    pub handle: Handle,
    /// The event, or what could be read of it.
    pub event: Result<Arc<Event>, Undecodable>,
    /// How often publishing it has failed.
    pub attempts: u32,
    /// It was set aside before and comes back.
    pub returned: bool,
    /// How long it is not to be delivered yet, by the database's clock.
    pub delay: Option<Duration>,
}

impl Record {
    /// About how much memory the record takes.
    pub fn size_bytes(&self) -> usize {
        self.event.as_ref().map_or(0, |event| event.size_bytes())
    }
}

/// A row that is not an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undecodable {
    /// The key, if it can be read.
    pub key: Option<Key>,
    /// What is wrong with the row.
    pub reason: String,
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// The record.
    pub handle: Handle,
    /// What became of it.
    pub verdict: Verdict,
}

/// What became of an event; see the [module](self) for what it means to be set aside.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The sink said that it is durable.
    Delivered,
    /// It failed for good and waits for an operator.
    Parked {
        /// Why.
        failure: Failure,
        /// Later events of its key wait behind it.
        blocks: bool,
    },
    /// It comes back after a while.
    Deferred {
        /// How long to wait, by the database's clock.
        delay: Duration,
        /// Why; `None` for an event that is merely not due yet.
        failure: Option<Failure>,
        /// Later events of its key wait behind it.
        blocks: bool,
    },
    /// It waits behind earlier events of its key that are set aside.
    Queued,
    /// Not the end of it: it is about to be tried, and stays under way. Should the relay die now,
    /// the event comes back, at once, with so many attempts.
    Attempting {
        /// How often it was tried, this time included.
        attempts: u32,
        /// Later events of its key wait behind it.
        blocks: bool,
    },
    /// Nothing became of it; it is handed out again.
    Released,
}

/// The answer to [`Source::settle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Keys of which no blocking event is set aside any more.
    pub unblocked: Vec<Key>,
}

/// Why a source cannot go on.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// Whether trying again can help.
    pub kind: SourceErrorKind,
    /// What happened.
    pub message: String,
    /// What the operator can do.
    pub hint: Option<String>,
    /// The cause below.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// A cause: the database does not let this role do it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotPermitted(pub String);

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceErrorKind {
    /// The database cannot be reached or is busy: try again later.
    Unavailable,
    /// Another relay has it, as it should be: stand by, and try again later.
    Held,
    /// An operator must act: a missing table, a wrong password.
    Misconfigured,
    /// Another relay has taken over, or the database is not the one any more in which this relay
    /// had: nothing may be sent or settled any more, and whoever wants to go on connects anew and
    /// stands by.
    Lost,
    /// Going on could lose or repeat events: a damaged file, a position from another database.
    Unsafe,
}

impl SourceError {
    /// An error without hint or cause.
    pub fn new(kind: SourceErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, source: None }
    }

    /// The same error for somebody else who has to hear of it, with its causes in the message.
    pub(crate) fn told_again(&self) -> Self {
        Self { hint: self.hint.clone(), ..Self::new(self.kind, self.with_causes()) }
    }

    /// The error with its causes and the hint, for a log.
    pub fn details(&self) -> String {
        let mut details = self.with_causes();
        if let Some(hint) = &self.hint {
            details.push_str("; ");
            details.push_str(hint);
        }
        details
    }

    fn with_causes(&self) -> String {
        let mut details = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            let below = error.to_string();
            // A cause may only say of what kind it is.
            if !details.ends_with(&below) {
                details.push_str(": ");
                details.push_str(&below);
            }
            cause = error.source();
        }
        details
    }

    /// Adds what the operator can do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause below.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }
}
