//! Postrider publishes the events of a database transaction if and only if that transaction
//! commits.
//!
//! This is the part that lives in an application. It writes events to an *outbox* in the
//! caller's own transaction, from where the relay (the binary `postrider`) carries them to a
//! broker, in order per aggregate and at least once. On the consumer's side an *inbox* makes
//! the effect of an event happen once.
//!
//! ```
//! # #[cfg(all(feature = "derive", feature = "rusqlite"))]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use postrider::{Event, Outbox, schema};
//!
//! #[derive(serde::Serialize, Event)]
//! #[event(aggregate = "Order", id = order_id)]
//! struct OrderPaid { order_id: u64, cents: u64 }
//!
//! let mut conn = rusqlite::Connection::open_in_memory()?;
//! schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;
//!
//! let mut tx = conn.transaction()?;
//! // … the order is changed in the same transaction …
//! Outbox::new().publish(&mut tx, &OrderPaid { order_id: 42, cents: 999 })?;
//! tx.commit()?;
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "derive", feature = "rusqlite")))]
//! # fn main() {}
//! ```
//!
//! | feature | gives |
//! |---|---|
//! | `derive` (default) | `#[derive(Event)]` |
//! | `diesel-async` | transactions of diesel-async on PostgreSQL; the same calls, with `.await` |
//! | `opentelemetry` | events carry the trace context that was current when they were published |
//! | `rusqlite` | transactions of rusqlite |
//! | `sqlx-postgres` | transactions of sqlx on PostgreSQL; with `.await` |
//! | `sqlx-sqlite` | transactions of sqlx on SQLite; with `.await` |
//! | `testing` | for an application's own tests: a database in memory, assertions, deliveries |
//! | `tokio-postgres` | transactions of tokio-postgres; with `.await` |
//!
//! Another client joins by implementing [`Transaction`] and [`InboxTransaction`].
//!
//! What this library never does: it knows no broker and opens no connection, it spawns no task
//! and no thread, and it neither commits nor rolls back a transaction that it did not begin.

pub mod commit;
mod error;
pub mod event;
mod events;
mod hint;
pub mod inbox;
mod inboxes;
pub mod outbox;
mod outboxes;
pub mod schema;
#[cfg(feature = "testing")]
pub mod testing;
pub mod timestamp;
#[cfg(feature = "opentelemetry")]
mod trace_context;

pub use commit::{LostCommit, Outcome};
pub use error::{ServerError, WriteError};
pub use event::{Event, EventBuilder, EventType, InvalidEvent, Key, ToEvent};
pub use events::Events;
pub use hint::HintSender;
pub use inbox::{Claim, Inbox, InboxTransaction, Sequence};
pub use outbox::{Begin, LogTransaction, Outbox, Transaction};
#[cfg(feature = "derive")]
pub use postrider_derive::Event;

/// The README, so that its code is compiled.
#[cfg(all(doctest, feature = "derive", feature = "rusqlite", feature = "sqlx-postgres"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// The guide to PostgreSQL, for the same reason.
#[cfg(all(
    doctest,
    feature = "derive",
    feature = "diesel-async",
    feature = "sqlx-postgres",
    feature = "tokio-postgres"
))]
#[doc = include_str!("../../../docs/guides/postgresql.md")]
pub struct PostgresqlGuide;

/// The guide to log tailing, as well.
#[cfg(all(doctest, feature = "derive", feature = "sqlx-postgres"))]
#[doc = include_str!("../../../docs/guides/log-tailing.md")]
pub struct LogTailingGuide;

/// The guide to tests, too.
#[cfg(all(
    doctest,
    feature = "derive",
    feature = "rusqlite",
    feature = "sqlx-postgres",
    feature = "testing"
))]
#[doc = include_str!("../../../docs/guides/testing.md")]
pub struct TestingGuide;

/// What the derive macro refers to; not for use.
#[doc(hidden)]
pub mod __private {
    pub use serde::Serialize;
}
