//! What an operator does with keys that wait: sees behind what, and gives it another attempt.

use std::time::SystemTime;

use async_trait::async_trait;
use postrider::Key;

use crate::events::Blocker;
use crate::source::SourceError;

/// Looks at the keys of one outbox that wait, and releases them. Safe while relays run.
#[async_trait]
pub trait Keys: Send + Sync {
    /// Keys that wait, of one pipeline or of all, those that have waited for longest first; at
    /// most `limit`.
    async fn blocked(
        &self,
        pipeline: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlockedKey>, SourceError>;

    /// Gives the first event of a key that is set aside another attempt now, in one pipeline or in
    /// all in which it waits: a parked one with fresh attempts, as a retry does. What waits behind
    /// it follows once it is published. Answers what was done in each pipeline.
    async fn release(
        &self,
        pipeline: Option<&str>,
        key: &Key,
    ) -> Result<Vec<Released>, SourceError>;
}

/// A key that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    /// The pipeline in which it waits.
    pub pipeline: String,
    /// The key.
    pub key: Key,
    /// Since when.
    pub since: SystemTime,
    /// How many of its events are set aside.
    pub events: u64,
    /// The first of them, for which the others wait.
    pub first: Blocker,
}

/// What was done to release a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The pipeline.
    pub pipeline: String,
    /// The event that is tried now.
    pub event_id: String,
    /// How it was set aside: `parked`, `deferred` or `queued`.
    pub was: String,
}
