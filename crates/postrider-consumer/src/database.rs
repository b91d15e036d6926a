//! The consumer's database, which has the inbox and takes the effects.

use std::time::Duration;

use postrider::outbox::Answer;
use postrider::{Claim, Event, Key, Sequence};
use uuid::Uuid;

/// A pool of connections to a database that has the inbox. A client joins by one file in
/// `databases/`.
pub trait Database: Clone + Send + Sync + 'static {
    /// An open transaction, which handlers work in. It is rolled back if it is dropped.
    type Tx: Send + 'static;

    /// Begins a transaction.
    fn begin(&self) -> Answer<'_, Self::Tx>;

    /// Commits it. Fails if it was not committed, also if the server would not say so by itself.
    fn commit(tx: Self::Tx) -> Answer<'static, ()>;

    /// Claims events for a consumer; see [`Inbox::once_all`](postrider::Inbox::once_all).
    fn claim_all<'t>(
        tx: &'t mut Self::Tx,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Answer<'t, Vec<Claim>>;

    /// Moves the watermark of a key; see [`Inbox::advance`](postrider::Inbox::advance).
    fn advance<'t>(
        tx: &'t mut Self::Tx,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Answer<'t, Sequence>;

    /// Keeps an event as dead; see [`Inbox::bury`](postrider::Inbox::bury).
    fn bury<'t>(
        tx: &'t mut Self::Tx,
        consumer: &'t str,
        event: &'t Event,
        error: &'t str,
        attempts: u32,
    ) -> Answer<'t, ()>;

    /// Removes old claims; see [`Inbox::prune`](postrider::Inbox::prune).
    fn prune<'t>(
        tx: &'t mut Self::Tx,
        consumer: &'t str,
        older_than: Duration,
        limit: u32,
    ) -> Answer<'t, u64>;
}
