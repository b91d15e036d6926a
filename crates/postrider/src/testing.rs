//! For the tests of an application: an outbox and an inbox in memory, assertions about what was
//! published, and deliveries as a relay makes them, twice and again if need be.
//!
//! ```
//! use postrider::testing::{MemoryDatabase, assert_published, drain_twice};
//! use postrider::{Claim, Event, Inbox, Outbox};
//!
//! let mut database = MemoryDatabase::new();
//! let mut tx = database.begin();
//! let paid = Event::builder("Order", "42", "OrderPaid").json(&serde_json::json!({"cents": 999}));
//! Outbox::new().publish(&mut tx, &paid.build()?)?;
//! tx.commit()?;
//! assert_published!(database, "OrderPaid", { "cents": 999 });
//!
//! let mut receipts = 0;
//! let drained = drain_twice(&mut database, |database, event| {
//!     let mut tx = database.begin();
//!     if Inbox::new().once(&mut tx, "receipts", event.id())? == Claim::First {
//!         receipts += 1;
//!     }
//!     tx.commit()
//! });
//! drained.assert_all_delivered();
//! assert_eq!(receipts, 1);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`MemoryDatabase`] has an outbox and an inbox, and no tables of the application. So it suits
//! code that takes any [`Transaction`](crate::Transaction); code that speaks SQL is tested with
//! its own database, of which the assertions and, with rusqlite, the deliveries work as well.
//!
//! Enable the feature `testing` for tests only, among `[dev-dependencies]`.

mod assertions;
mod delivery;
mod listing;
mod memory;
mod published;
#[cfg(feature = "rusqlite")]
mod rusqlite;
mod source;

pub use assertions::Expected;
pub use delivery::{
    DELIVERIES_MAX, Delivery, Drained, Failed, deliver_twice, drain, drain_async, drain_twice,
    redeliver_all,
};
pub use memory::{
    AsyncMemoryTransaction, DeadMessage, HeldByAnother, MemoryDatabase, MemoryTransaction, WAIT_MAX,
};
pub use published::{Published, published};
pub use source::Source;

pub use crate::{assert_not_published, assert_published};

/// What the macros refer to; not for use.
#[doc(hidden)]
pub mod __private {
    pub use serde_json::json;

    pub use super::assertions::{Expectation, assert_absent, assert_count, assert_present};
}
