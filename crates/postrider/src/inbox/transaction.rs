//! The seam where a client joins.

use std::time::Duration;

use uuid::Uuid;

use super::{Claim, Sequence};
use crate::event::{Event, Key};
use crate::outbox::Transaction;

/// The highest version that a watermark can have: what databases can keep.
pub const VERSION_MAX: u64 = i64::MAX as u64;

/// A transaction in which events can be claimed: the inbox's side of [`Transaction`].
///
/// What it is given was checked by [`Inbox`](super::Inbox): the name of the consumer is not empty, and a version
/// is no higher than [`VERSION_MAX`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction, and events can only be claimed in one",
    label = "begin a transaction and pass that",
    note = "`let mut tx = conn.transaction()?` with rusqlite, \
            `let mut tx = pool.begin().await?` with sqlx, \
            `let mut tx = client.transaction().await?` with tokio-postgres; \
            then `inbox.once(&mut tx, …)`",
    note = "with diesel-async: `inbox.once(conn, …)` inside `conn.transaction(async |conn| …)`",
    note = "each client is behind a feature of postrider: `diesel-async`, `rusqlite`, \
            `sqlx-postgres`, `sqlx-sqlite`, `tokio-postgres`"
)]
pub trait InboxTransaction: Transaction {
    /// Writes the claim unless there is one.
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim>;

    /// Writes several claims in one statement, in the order of the ids, so that two batches never
    /// wait for each other. Answers for each id in the order given; one that is given twice is
    /// `First` at its first place only.
    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Self::Written<'t, Vec<Claim>>;

    /// Moves the watermark of a key to `version` if it is higher.
    fn advance<'t>(
        &'t mut self,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Self::Written<'t, Sequence>;

    /// Keeps an event to be handled later, unless it is kept already or was claimed: then it is a
    /// `Duplicate`.
    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Self::Written<'t, Claim>;

    /// Keeps an event as dead, whether it was stored or not, and claims it.
    fn bury<'t>(
        &'t mut self,
        consumer: &'t str,
        event: &'t Event,
        error: &'t str,
        attempts: u32,
    ) -> Self::Written<'t, ()>;

    /// Makes a dead event, or all of a consumer, stored and due now, without attempts, and removes
    /// the claim. Answers how many there were.
    fn revive<'t>(
        &'t mut self,
        consumer: &'t str,
        event_id: Option<Uuid>,
    ) -> Self::Written<'t, u64>;

    /// Removes claims of a consumer that were made longer ago than that, by the clock that claims
    /// are given their time by, at most `limit` of them. Answers how many.
    fn prune<'t>(
        &'t mut self,
        consumer: &'t str,
        older_than: Duration,
        limit: u32,
    ) -> Self::Written<'t, u64>;
}
