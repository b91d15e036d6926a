//! The inbox: the consumer's ledger of processed event ids.
//!
//! A relay delivers at least once, so a consumer may see an event again. It claims the event's
//! id in the transaction that has the event's effect: if the claim is a
//! [`Duplicate`](Claim::Duplicate), the effect was committed before and there is nothing to do.
//! If that transaction is rolled back, so is the claim, and the next delivery counts as the
//! first. Two deliveries at once wait for each other at the primary key.
//!
//! A claim must outlive the broker's redeliveries: keep it longer than the broker may take to
//! deliver an event again, and [prune](Inbox::prune) what is older.
//!
//! Two things may stand beside a claim. A *watermark* is the highest version that a consumer has
//! seen of a key; it tells what is missing and what comes too late. A *message* is an event that
//! the consumer keeps: *stored*, to be handled later, or *dead*, because its handler failed too
//! often. A stored one has no claim yet; a dead one has, so that no redelivery is handled behind
//! the back of whoever looks after the dead ones, until it is [revived](Inbox::revive).
//!
//! ```text
//!                 once                     prune
//! delivered ─────────────────▶ claimed ─────────────▶ forgotten
//!     │                          ▲
//!     │ store      once          │
//!     ├─────────▶ stored ────────┘
//!     │           │    ▲
//!     │ bury      ▼    │ revive
//!     └─────────▶ dead ┘ (claimed)
//! ```

mod transaction;

use std::time::Duration;

use uuid::Uuid;

pub use self::transaction::{InboxTransaction, VERSION_MAX};
use crate::error::WriteError;
use crate::event::{Event, InvalidEvent, Key, check_key, check_name};

/// Whether an event is seen for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a duplicate must not be processed again"]
pub enum Claim {
    /// For the first time: process it and commit.
    First,
    /// Its effect was committed before: acknowledge it and do nothing.
    Duplicate,
}

/// How an event's version stands to the last one of its key that the consumer has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what is stale must not be processed"]
pub enum Sequence {
    /// The first of its key (0 or 1), or the one after the last. The watermark was moved.
    Next,
    /// Events between the last one and this are missing, or come later. The watermark was moved:
    /// roll back to refuse the event.
    Gap {
        /// The version that the watermark had.
        last: u64,
    },
    /// The watermark is at this version already, or beyond. It was not moved.
    Stale {
        /// The version that the watermark has.
        last: u64,
    },
}

impl Sequence {
    /// How a version stands to the last one that was known before, if there was any.
    pub fn of(last: Option<u64>, version: u64) -> Self {
        match last {
            None if version <= 1 => Self::Next,
            None => Self::Gap { last: 0 },
            Some(last) if version <= last => Self::Stale { last },
            Some(last) if version == last + 1 => Self::Next,
            Some(last) => Self::Gap { last },
        }
    }
}

/// Claims events for consumers, in the table `inbox`, and keeps what they put aside.
///
/// Each call names a consumer, such as `billing`; each of them has claims, watermarks and messages
/// of its own. With an asynchronous client the answer is a future: `.await` it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inbox {
    _private: (),
}

impl Inbox {
    /// The inbox of the database in which it is used.
    pub fn new() -> Self {
        Self::default()
    }

    /// Claims an event for a consumer, in the transaction that has the event's effect.
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
    ///
    /// # Errors
    ///
    /// Nothing is claimed if the consumer has no name or the database fails.
    pub fn once<'t, Tx: InboxTransaction>(
        &self,
        tx: &'t mut Tx,
        consumer: &'t str,
        event_id: Uuid,
    ) -> Tx::Written<'t, Claim> {
        match check_consumer(consumer) {
            Ok(()) => tx.claim(consumer, event_id),
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }

    /// Claims several events for a consumer in one statement, for a transaction that has the
    /// effect of all of them. Answers for each in the order given; an id that is given twice is a
    /// [`Duplicate`](Claim::Duplicate) the second time.
    ///
    /// ```
    /// # #[cfg(feature = "rusqlite")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use postrider::{Claim, Inbox, schema};
    /// # let mut conn = rusqlite::Connection::open_in_memory()?;
    /// # schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;
    /// # let (one, two) = (uuid::Uuid::now_v7(), uuid::Uuid::now_v7());
    /// let mut tx = conn.transaction()?;
    /// let claims = Inbox::new().once_all(&mut tx, "billing", &[one, two, one])?;
    /// assert_eq!(claims, [Claim::First, Claim::First, Claim::Duplicate]);
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "rusqlite"))]
    /// # fn main() {}
    /// ```
    ///
    /// Two such calls at once never wait for each other in a circle, whatever ids they share. Two
    /// transactions with several calls each may: then the database fails one of them.
    ///
    /// # Errors
    ///
    /// Nothing is claimed if the consumer has no name or the database fails.
    pub fn once_all<'t, Tx: InboxTransaction>(
        &self,
        tx: &'t mut Tx,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Tx::Written<'t, Vec<Claim>> {
        match check_consumer(consumer) {
            Ok(()) if event_ids.is_empty() => Tx::answer(Ok(Vec::new())),
            Ok(()) => tx.claim_all(consumer, event_ids),
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }

    /// Moves a consumer's watermark of a key to the version of an event, unless it is there or
    /// beyond. It is for writers who number the events of each key from one on, without gaps.
    ///
    /// ```
    /// # #[cfg(feature = "rusqlite")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use postrider::{Inbox, Key, Sequence, schema};
    /// # let mut conn = rusqlite::Connection::open_in_memory()?;
    /// # schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;
    /// # let order = Key { aggregate_type: "Order".into(), aggregate_id: "42".into() };
    /// let mut tx = conn.transaction()?;
    /// match Inbox::new().advance(&mut tx, "billing", &order, 7)? {
    ///     Sequence::Next => { /* … the event's effect … */ }
    ///     Sequence::Gap { last } => { /* … what came after `last` is missing … */ }
    ///     Sequence::Stale { .. } => { /* … something newer was applied before … */ }
    /// }
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "rusqlite"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing is moved if the consumer has no name, the version is over [`VERSION_MAX`] or the
    /// database fails.
    pub fn advance<'t, Tx: InboxTransaction>(
        &self,
        tx: &'t mut Tx,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Tx::Written<'t, Sequence> {
        let checked = check_consumer(consumer).and_then(|()| Ok(check_key(key)?));
        match checked {
            Ok(()) if version <= VERSION_MAX => tx.advance(consumer, key, version),
            Ok(()) => Tx::answer(Err(InvalidEvent::VersionTooHigh { version }.into())),
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }

    /// Keeps an event for a consumer, to be handled later and claimed then. It is a
    /// [`Duplicate`](Claim::Duplicate) if it is kept already, dead ones too, or was claimed.
    ///
    /// Of an event that is being claimed at the same moment this may answer
    /// [`First`](Claim::First): whoever handles it later learns from its claim.
    ///
    /// # Errors
    ///
    /// Nothing is kept if the consumer has no name or the database fails.
    pub fn store<'t, Tx: InboxTransaction>(
        &self,
        tx: &'t mut Tx,
        consumer: &'t str,
        event: &'t Event,
    ) -> Tx::Written<'t, Claim> {
        match check_consumer(consumer) {
            Ok(()) => tx.store(consumer, event),
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }

    /// Keeps an event as dead, whether it was stored or not, with the error of its handler and how
    /// often that was tried. Claims it, so that a redelivery is a duplicate.
    ///
    /// Somebody else may have applied the event since its handler failed here. So claim it first,
    /// and bury it only if that is a [`First`](Claim::First): otherwise it could be revived and
    /// applied again.
    ///
    /// # Errors
    ///
    /// Nothing is kept if the consumer has no name or the database fails.
    pub fn bury<'t, Tx: InboxTransaction>(
        &self,
        tx: &'t mut Tx,
        consumer: &'t str,
        event: &'t Event,
        error: &'t str,
        attempts: u32,
    ) -> Tx::Written<'t, ()> {
        match check_consumer(consumer) {
            Ok(()) => tx.bury(consumer, event, error, attempts),
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }

    /// Makes a dead event of a consumer, or all of them, stored and due now, as if it had never
    /// been tried, and removes its claim. Answers how many there were.
    ///
    /// # Errors
    ///
    /// Nothing is changed if the consumer has no name or the database fails.
    pub fn revive<'t, Tx: InboxTransaction>(
        &self,
        tx: &'t mut Tx,
        consumer: &'t str,
        event_id: Option<Uuid>,
    ) -> Tx::Written<'t, u64> {
        match check_consumer(consumer) {
            Ok(()) => tx.revive(consumer, event_id),
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }

    /// Removes claims of a consumer that were made longer ago than `older_than`, at most `limit` of
    /// them, and answers how many. An event that is delivered again afterwards counts as new, so
    /// keep claims longer than the broker keeps events.
    ///
    /// PostgreSQL's own clock says how old a claim is, as it says when one is made: the clock of
    /// this host does not matter. SQLite has no clock but that of the host.
    ///
    /// # Errors
    ///
    /// Nothing is removed if the database fails.
    pub fn prune<'t, Tx: InboxTransaction>(
        &self,
        tx: &'t mut Tx,
        consumer: &'t str,
        older_than: Duration,
        limit: u32,
    ) -> Tx::Written<'t, u64> {
        match check_consumer(consumer) {
            Ok(()) => tx.prune(consumer, older_than, limit),
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }
}

fn check_consumer(consumer: &str) -> Result<(), WriteError> {
    Ok(check_name("consumer", consumer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_next_after_the_last() {
        let sequences = [
            (None, 1, Sequence::Next),
            (None, 2, Sequence::Gap { last: 0 }),
            (None, 7, Sequence::Gap { last: 0 }),
            (None, 0, Sequence::Next),
            (Some(7), 8, Sequence::Next),
            (Some(7), 9, Sequence::Gap { last: 7 }),
            (Some(7), 7, Sequence::Stale { last: 7 }),
            (Some(7), 1, Sequence::Stale { last: 7 }),
            (Some(0), VERSION_MAX, Sequence::Gap { last: 0 }),
            (Some(VERSION_MAX), VERSION_MAX, Sequence::Stale { last: VERSION_MAX }),
        ];
        for (last, version, expected) in sequences {
            assert_eq!(Sequence::of(last, version), expected, "{last:?} {version}");
        }
    }
}
