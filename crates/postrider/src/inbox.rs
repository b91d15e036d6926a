//! The inbox: the consumer's ledger of processed event ids.
//!
//! A relay delivers at least once, so a consumer may see an event again. It claims the event's
//! id in the transaction that has the event's effect: if the claim is a
//! [`Duplicate`](Claim::Duplicate), the effect was committed before and there is nothing to do.
//! If that transaction is rolled back, so is the claim, and the next delivery counts as the
//! first. Two deliveries at once wait for each other at the primary key.
//!
//! A claim must outlive the broker's redeliveries: keep it longer than the broker may take to
//! deliver an event again.

use uuid::Uuid;

use crate::outbox::Transaction;

/// A transaction in which events can be claimed: the inbox's side of [`Transaction`].
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
}

/// Whether an event is seen for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a duplicate must not be processed again"]
pub enum Claim {
    /// For the first time: process it and commit.
    First,
    /// Its effect was committed before: acknowledge it and do nothing.
    Duplicate,
}

/// Claims events for consumers, in the table `inbox`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inbox {
    _private: (),
}

impl Inbox {
    /// The inbox of the database in which it is used.
    pub fn new() -> Self {
        Self::default()
    }

    /// Claims an event for a consumer, such as `billing`; each consumer has claims of its own.
    ///
    /// With an asynchronous client the answer is a future: `.await` it.
    ///
    /// ```
    /// # #[cfg(feature = "rusqlite")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use postrider::{Claim, Inbox, schema};
    /// # let mut conn = rusqlite::Connection::open_in_memory()?;
    /// # schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;
    /// # let event_id = uuid::Uuid::now_v7();
    /// let mut tx = conn.transaction()?;
    /// if Inbox::new().once(&mut tx, "billing", event_id)? == Claim::First {
    ///     // … the event's effect, in the same transaction …
    /// }
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "rusqlite"))]
    /// # fn main() {}
    /// ```
    pub fn once<'t, Tx: InboxTransaction>(
        &self,
        tx: &'t mut Tx,
        consumer: &'t str,
        event_id: Uuid,
    ) -> Tx::Written<'t, Claim> {
        tx.claim(consumer, event_id)
    }
}
