//! What every source must do: the contract of [`Source`] and [`Admin`], case by case.
//!
//! Each case names in its documentation the guarantee (`docs/guarantees.md`) that it proves.

mod attempts;
mod batches;
mod beginnings;
mod cancelling;
mod commits;
mod concurrency;
mod events;
mod keys;
mod matching;
mod operator;
mod pauses;
mod reader;
mod reading;
mod set_aside;
mod sharing;
mod starts;
mod turns;
mod undecodable;
mod unsettled;

use std::sync::Arc;

use async_trait::async_trait;
use postrider::Event;
use postrider_relay::admin::Admin;
use postrider_relay::operator::Operator;
use postrider_relay::source::{Source, SourceError};
use postrider_relay::sources::{Progress, StartAt};

use super::Case;

/// A database with an outbox of one backend, made for one case.
#[async_trait]
pub trait TestOutbox: Send + Sync {
    /// What the backend can do.
    fn capabilities(&self) -> OutboxCapabilities;

    /// Begins a transaction that writes. Where there can be only one at a time, it waits.
    async fn begin(&self) -> Box<dyn TestTransaction>;

    /// Writes a row that is not an event, of a key, and commits. Whatever free text it needs
    /// contains [`CANARY`].
    async fn tamper(&self, aggregate_id: &str, tampering: Tampering);

    /// Connects a source.
    async fn connect(&self, connection: Connection<'_>) -> Result<Box<dyn Source>, SourceError>;

    /// Connects as an operator.
    async fn admin(&self) -> Box<dyn Admin>;

    /// Connects as an operator who looks at single events, keys and pauses too, where that can be
    /// done.
    async fn operator(&self) -> Option<Box<dyn Operator>>;

    /// How many rows stand in the outbox, published or not.
    async fn rows(&self) -> usize;

    /// Removes a pipeline's checkpoint, as an operator does with one that is no longer used; only
    /// where there are checkpoints.
    async fn forget(&self, pipeline: &str);
}

/// A transaction of an application.
#[async_trait]
pub trait TestTransaction: Send {
    /// Writes an event.
    async fn publish(&mut self, event: &Event);
    /// Ends it for good.
    async fn commit(self: Box<Self>);
    /// Takes everything back.
    async fn rollback(self: Box<Self>);
}

/// How a source is connected.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'c> {
    /// The name of the pipeline.
    pub pipeline: &'c str,
    /// Only these aggregate types; empty means all.
    pub aggregate_types: &'c [&'c str],
    /// Another way of keeping progress than the backend's own, where there are several.
    pub progress: Option<Progress>,
    /// Where it begins if it is new.
    pub start: StartAt,
}

/// The pipeline of cases that need only one.
pub const PIPELINE: &str = "default";

impl Default for Connection<'_> {
    fn default() -> Self {
        Self { pipeline: PIPELINE, aggregate_types: &[], progress: None, start: StartAt::Oldest }
    }
}

/// What a backend can do, as far as cases differ by it.
#[derive(Clone, Copy, Debug)]
pub struct OutboxCapabilities {
    /// Several transactions that write can be open at the same time.
    pub concurrent_transactions: bool,
    /// A source can be told to read only some aggregate types.
    pub filters: bool,
    /// A delivered event stays in the outbox until it is pruned.
    pub keeps_delivered: bool,
    /// An operator can look at single events, keys and pauses.
    pub operated: bool,
    /// Several pipelines can read the outbox.
    pub shared: bool,
    /// A second relay of one pipeline is refused while the first runs. Otherwise it takes over,
    /// and the first is refused.
    pub stands_by: bool,
    /// The rows that the backend can hold without their being events.
    pub tamperings: &'static [Tampering],
}

/// What can be wrong with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tampering {
    /// The time at which it happened is no time.
    BadTime,
    /// The version is no number.
    BadVersion,
    /// The headers are no JSON.
    BadHeaders,
    /// The id is no UUID.
    BadId,
    /// The key has no text at all.
    EmptyKey,
    /// The name of the event type holds a NUL.
    Nul,
    /// The key is not UTF-8.
    NotUtf8Key,
    /// The event type is not UTF-8.
    NotUtf8,
    /// The payload has 5 MB.
    Oversize,
    /// The payload has 60 MB. Only for what measures memory, so it is not among the others.
    Huge,
}

impl Tampering {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::BadTime,
        Self::BadVersion,
        Self::BadHeaders,
        Self::BadId,
        Self::EmptyKey,
        Self::Nul,
        Self::NotUtf8Key,
        Self::NotUtf8,
        Self::Oversize,
    ];

    /// Whether the key of such a row can be read.
    pub fn keeps_key(self) -> bool {
        !matches!(self, Self::EmptyKey | Self::NotUtf8Key)
    }
}

/// Stands in tampered rows wherever there is room for it; no message may show it.
pub const CANARY: &str = "canary";

/// What a case is tried on.
pub type Subject = Arc<dyn TestOutbox>;

/// A case about single events, keys or pauses.
fn operated(case: Case<Subject, OutboxCapabilities>) -> Case<Subject, OutboxCapabilities> {
    case.needing(|can| can.operated, "an operator sees only the dead letters of this outbox")
}

impl dyn TestOutbox {
    /// Connects as an operator; only for what [`operated`] is given.
    pub async fn operated(&self) -> Box<dyn Operator> {
        self.operator().await.expect("the case needs an operator")
    }

    /// Writes events in one transaction.
    pub async fn write(&self, events: &[Event]) {
        let mut transaction = self.begin().await;
        for event in events {
            transaction.publish(event).await;
        }
        transaction.commit().await;
    }
}

/// Every case.
pub fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    let mut cases = reading::cases();
    cases.extend(commits::cases());
    cases.extend(unsettled::cases());
    cases.extend(batches::cases());
    cases.extend(cancelling::cases());
    cases.extend(undecodable::cases());
    cases.extend(set_aside::cases());
    cases.extend(turns::cases());
    cases.extend(attempts::cases());
    cases.extend(operator::cases());
    cases.extend(events::cases());
    cases.extend(keys::cases());
    cases.extend(pauses::cases());
    cases.extend(starts::cases());
    cases.extend(sharing::cases());
    cases.extend(matching::cases());
    cases.extend(beginnings::cases());
    cases.extend(concurrency::cases());
    cases
}
