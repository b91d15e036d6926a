//! What an operator sees of single events: the life of one, those that are being written, and
//! those that are stored.
//!
//! Like [`Admin`](crate::admin::Admin) it is a trait of its own, for the command line and the
//! dashboard. Nothing here changes anything. Every call reads a bounded number of rows, in the
//! order of an index, except for [`stored`](Events::stored), which looks through the table.

use std::time::SystemTime;

use async_trait::async_trait;
use postrider::Key;

use crate::source::{SourceError, Undecodable};

/// Looks at the events of one outbox.
#[async_trait]
pub trait Events: Send + Sync {
    /// One event by its id, as it stands in the row, and how it stands in every pipeline; `None`
    /// if it is neither in the outbox nor set aside.
    async fn event(&self, event_id: &str, payload: bool) -> Result<Option<EventLife>, SourceError>;

    /// The newest events that match, at most `limit`, in order. No more than
    /// [`LOOKED_AT_MAX`] rows are looked at.
    async fn newest(&self, wanted: &Wanted, limit: usize) -> Result<Written, SourceError>;

    /// Events that match and have become visible since a place, at most `limit`, in order: each
    /// comes once, also one whose transaction took long.
    async fn written(
        &self,
        since: &Place,
        wanted: &Wanted,
        limit: usize,
    ) -> Result<Written, SourceError>;

    /// Events that match, after a position in the outbox's own order, at most `limit`.
    async fn stored(
        &self,
        wanted: &Wanted,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Stored>, SourceError>;

    /// What became of stored events in a pipeline, by position, if it reads these aggregate types,
    /// or all if none is named. One that is gone by now is left out.
    async fn fates(
        &self,
        pipeline: &str,
        aggregate_types: &[String],
        stored: &[Stored],
    ) -> Result<Vec<(i64, Fate)>, SourceError>;

    /// The time now, by the clock that says when events were written.
    async fn now(&self) -> Result<SystemTime, SourceError>;

    /// Reads stored events whole, in order. One that is gone by now is left out.
    async fn read(&self, stored: &[Stored]) -> Result<Vec<ReadEvent>, SourceError>;
}

/// Most rows that are looked at to find the newest that match.
pub const LOOKED_AT_MAX: u64 = 100_000;

/// Which events are meant: those that match every part that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Of this event type.
    pub event_type: Option<String>,
    /// Of this aggregate type.
    pub aggregate_type: Option<String>,
    /// Of this key.
    pub key: Option<Key>,
    /// Written at this time or later.
    pub since: Option<SystemTime>,
    /// Written before this time.
    pub until: Option<SystemTime>,
    /// Payloads, too.
    pub payload: bool,
}

/// Where to go on. What is in it is the database's own business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(pub(crate) String);

/// Events, and where to go on after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The events, in order.
    pub events: Vec<EventRow>,
    /// Where to go on.
    pub next: Place,
}

/// An event as it stands in its row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRow {
    /// Its number in the order of the outbox.
    pub position: i64,
    /// The transaction that wrote it, where the row says so.
    pub transaction: Option<String>,
    /// Its id.
    pub event_id: String,
    /// The type of its aggregate.
    pub aggregate_type: String,
    /// The id of its aggregate.
    pub aggregate_id: String,
    /// The event type.
    pub event_type: String,
    /// The version of that type.
    pub event_version: Option<i64>,
    /// The media type of the payload.
    pub content_type: String,
    /// The headers, as JSON.
    pub headers: String,
    /// The topic, if it has one of its own.
    pub topic: Option<String>,
    /// When the fact happened.
    pub occurred_at: Option<SystemTime>,
    /// When it was written.
    pub created_at: Option<SystemTime>,
    /// Not to be delivered before.
    pub deliver_after: Option<SystemTime>,
    /// How long the payload is, in bytes.
    pub payload_bytes: u64,
    /// The payload, if it was asked for.
    pub payload: Option<Vec<u8>>,
}

/// One event, and how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventLife {
    /// The event.
    pub event: EventRow,
    /// It stands in the outbox; otherwise it is only set aside.
    pub in_outbox: bool,
    /// How it stands in each pipeline that has ever read the outbox, by name. Without a row in the
    /// outbox only those that have set it aside are known.
    pub pipelines: Vec<InPipeline>,
}

/// How an event stands in a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPipeline {
    /// The pipeline's name.
    pub pipeline: String,
    /// How it stands.
    pub standing: Standing,
    /// Events of its key that were set aside before it, counted up to
    /// [`COUNT_MAX`](crate::admin::COUNT_MAX).
    pub ahead: u64,
    /// The first of them.
    pub behind: Option<Blocker>,
}

/// How an event stands in a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is not settled: yet to be read, or under way.
    Waiting,
    /// It is settled: published, or not of this pipeline's types. The time is known where rows are
    /// marked: when it was published.
    Settled {
        /// When.
        at: Option<SystemTime>,
    },
    /// It is set aside.
    SetAside(SetAside),
}

/// Why and until when an event is set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// `parked`, `deferred`, `queued`, or [`DISCARDED`].
    pub state: String,
    /// Since when.
    pub since: SystemTime,
    /// When it is tried again by itself.
    pub due_at: Option<SystemTime>,
    /// How often publishing it failed.
    pub attempts: u32,
    /// The kind of the last error.
    pub kind: Option<String>,
    /// The last error.
    pub error: Option<String>,
}

impl SetAside {
    /// An operator has discarded it: it is never published, and its contents are gone.
    pub fn is_discarded(&self) -> bool {
        self.state == DISCARDED
    }
}

/// The state of a dead letter that an operator has discarded. It stays known until it is pruned.
pub const DISCARDED: &str = "discarded";

/// An event behind which others of its key wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Its id.
    pub event_id: String,
    /// Why it is set aside.
    pub set_aside: SetAside,
}

/// What became of a stored event in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The pipeline has published it.
    Published,
    /// It is not for this pipeline: it does not match its aggregate type, or did not when it came
    /// to it; or another pipeline had published it, or it was there, before this one began.
    NotItsOwn,
    /// It is yet to be read, or under way; or the pipeline never ran.
    Waiting,
    /// It is parked, deferred or queued.
    SetAside,
    /// An operator has discarded it.
    Discarded,
}

impl Fate {
    /// Of an event that is set aside in this state, if it is, that the pipeline reads or not, is
    /// past or not, and has published itself or not.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn of(
        state: Option<&str>,
        is_its_own: bool,
        is_settled: bool,
        is_published: bool,
    ) -> Self {
        match state {
            Some(DISCARDED) => Self::Discarded,
            Some(_) => Self::SetAside,
            None if !is_its_own => Self::NotItsOwn,
            None if is_published => Self::Published,
            None if is_settled => Self::NotItsOwn,
            None => Self::Waiting,
        }
    }
}

/// Where an event is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its number in the order of the outbox.
    pub position: i64,
    /// Its id.
    pub event_id: String,
    /// How long the payload is, in bytes.
    pub payload_bytes: u64,
    /// When it was written.
    pub created_at: Option<SystemTime>,
}

/// A stored event, whole.
#[derive(Clone, Debug)]
pub struct ReadEvent {
    /// Its number in the order of the outbox.
    pub position: i64,
    /// The event, or what is wrong with its row.
    pub event: Result<std::sync::Arc<postrider::Event>, Undecodable>,
}
