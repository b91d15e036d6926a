//! What an operator does with an outbox: look at it, and deal with its dead letters.
//!
//! It is a trait of its own, used by the command line and the dashboard only, so that
//! [`Source`](crate::source::Source) stays small. Every call is safe while relays run: they find
//! what was changed at their next look.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use postrider::Key;

use crate::pauses::{Pause, PausedKeys};
use crate::slots::SlotStatus;
use crate::source::SourceError;

/// Looks at one outbox and its dead letters, for all pipelines.
#[async_trait]
pub trait Admin: Send + Sync {
    /// How each pipeline stands.
    async fn status(&self) -> Result<OutboxStatus, SourceError>;

    /// Dead letters that match, oldest first, at most `limit` after `after` (a
    /// [`DeadLetter::cursor`]).
    async fn dead_letters(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, SourceError>;

    /// One dead letter whole, by event id.
    async fn dead_letter(&self, event_id: &str) -> Result<Option<DeadLetterDetail>, SourceError>;

    /// The same as [`dead_letters`](Self::dead_letters), each whole.
    async fn dead_letter_details(
        &self,
        selection: &Selection,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Vec<DeadLetterDetail>, SourceError>;

    /// Gives the matching dead letters a fresh set of attempts: relays publish them, and then
    /// what waits behind them, in order per key. A dead letter with an earlier one of its key
    /// still parked waits behind that one. Answers how many there were.
    async fn retry(&self, selection: &Selection) -> Result<u64, SourceError>;

    /// Removes the contents of the matching dead letters for good; what waits behind them flows
    /// again. That they were discarded stays known until it is pruned. Answers how many there were.
    async fn discard(&self, selection: &Selection) -> Result<u64, SourceError>;
}

/// Which dead letters are meant: those that match every part that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Of this pipeline.
    pub pipeline: Option<String>,
    /// With one of these event ids; empty means any.
    pub event_ids: Vec<String>,
    /// Of this key.
    pub key: Option<Key>,
    /// Of this event type.
    pub event_type: Option<String>,
    /// Whose last error is of this kind.
    pub kind: Option<String>,
    /// Whose last error has this text in it, whatever the case of its ASCII letters.
    pub error: Option<String>,
    /// Parked at this time or later.
    pub since: Option<SystemTime>,
    /// Parked before this time.
    pub until: Option<SystemTime>,
}

/// How an outbox stands.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxStatus {
    /// The kind of database, such as `sqlite`.
    pub database: &'static str,
    /// The outbox table.
    pub table: String,
    /// Events written so far, as the database counts them: for rates, not for totals.
    pub written: Option<u64>,
    /// The pipelines that have ever read it, by name; one named `default` if there were none.
    pub pipelines: Vec<PipelineStatus>,
    /// Events that no pipeline matches.
    pub unmatched: Unmatched,
}

/// Events that are not marked as published and are of aggregate types that no pipeline matches, of
/// the oldest and the newest, [`COUNT_MAX`] rows in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// How many.
    pub events: u64,
    /// Their types, the most frequent first, at most [`UNMATCHED_TYPES_MAX`].
    pub aggregate_types: Vec<String>,
}

impl Unmatched {
    /// From types and how many events there are of each, the most frequent first.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn of(types: Vec<(String, u64)>) -> Self {
        let events = types.iter().map(|(_, count)| count).sum();
        let names = types.into_iter().map(|(name, _)| name);
        Self { events, aggregate_types: names.take(UNMATCHED_TYPES_MAX).collect() }
    }
}

/// So many aggregate types are named that no pipeline matches.
pub const UNMATCHED_TYPES_MAX: usize = 10;

/// How one pipeline stands.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineStatus {
    /// The pipeline's name.
    pub name: String,
    /// `mark`, `delete` or `cursor`; `None` if no relay ever ran it.
    pub progress: Option<String>,
    /// Events not published and not set aside, counted up to [`COUNT_MAX`].
    pub unpublished: u64,
    /// Age of the oldest of them.
    pub oldest_unpublished_age: Option<Duration>,
    /// Dead letters.
    pub parked: u64,
    /// Events that wait behind a dead letter or a retry of their key.
    pub queued: u64,
    /// Events that will be tried again by themselves, or are not due yet.
    pub deferred: u64,
    /// Keys that wait.
    pub blocked_keys: u64,
    /// When the pipeline last settled something as delivered; what it sets aside does not count.
    pub last_settled_at: Option<SystemTime>,
    /// What is wrong with its sink as a whole, as the relay that runs it, or ran it last, has noted.
    pub trouble: Option<SinkTrouble>,
    /// Who may read each shard, by shard; empty where no lease is needed.
    pub leases: Vec<LeaseStatus>,
    /// What keeps the server's log for it, if the log is read, or should be.
    pub slot: Option<SlotStatus>,
    /// An operator has stopped it.
    pub paused: Option<Pause>,
    /// What an operator has stopped of it.
    pub paused_keys: PausedKeys,
}

impl PipelineStatus {
    /// Keys that wait for another reason than that an operator has stopped them.
    pub fn keys_in_trouble(&self) -> u64 {
        self.blocked_keys.saturating_sub(self.paused_keys.waiting)
    }
}

/// What is wrong with a pipeline's sink as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkTrouble {
    /// The last error.
    pub why: String,
    /// Since when something is wrong.
    pub since: SystemTime,
}

/// Who may read a shard of an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The shard.
    pub shard: u32,
    /// The relay that has it, unless it was given back.
    pub owner: Option<String>,
    /// How often it has passed from one relay to another.
    pub epoch: u64,
    /// How long it lasts if it is not renewed; zero if another relay may take it.
    pub expires_in: Duration,
}

/// Counting stops here, so that looking never scans a huge backlog.
pub const COUNT_MAX: u64 = 100_000;

/// A parked event, without its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Where to go on listing.
    pub cursor: u64,
    /// The pipeline that parked it.
    pub pipeline: String,
    /// The event id as it stands in the row.
    pub event_id: String,
    /// The key as it stands in the row.
    pub key: Key,
    /// The event type as it stands in the row.
    pub event_type: String,
    /// The kind of the last error.
    pub kind: String,
    /// The last error.
    pub error: String,
    /// How often publishing it failed.
    pub attempts: u32,
    /// When it was parked.
    pub parked_at: SystemTime,
    /// Later events of its key that wait behind it.
    pub queued_behind: u64,
}

/// A parked event with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterDetail {
    /// What the list shows.
    pub letter: DeadLetter,
    /// The media type of the payload.
    pub content_type: String,
    /// The headers as they stand in the row.
    pub headers: String,
    /// When the fact happened, as it stands in the row.
    pub occurred_at: String,
    /// The payload, byte for byte.
    pub payload: Vec<u8>,
}
