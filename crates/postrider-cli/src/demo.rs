//! The demo: a shop takes orders twice over the same schedule of faults.
//!
//! ```text
//!   naive      shop ──────────publish─────────▶ broker ──▶ consumer, applies what comes
//!   postrider  shop ─▶ outbox ─▶ relay ───────▶ broker ──▶ consumer with an inbox
//! ```
//!
//! The [schedule] is drawn from a seed: which request is answered when, at which one a process
//! is killed, a transaction is rolled back, the broker is down or keeps its answer to itself.
//! Faults are bound to request numbers and not to the clock, so both rounds meet the same ones.
//! The shop and the relay are child processes that are killed for real; the broker is an HTTP
//! endpoint in this process; the shop and the consumer have a SQLite database each.
//!
//! Nothing in the result is known beforehand: [counts] compares what the shop has committed
//! with what the broker has stored and what the consumer has applied.

pub(crate) mod broker;
pub(crate) mod consumer;
pub(crate) mod counts;
pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod round;
pub(crate) mod schedule;
pub(crate) mod shop;

/// Whatever keeps the demo from going on. Its text is for people; nothing reacts to its kind.
pub(crate) type DemoError = Box<dyn std::error::Error + Send + Sync>;

/// The way in which the shop publishes its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// By itself, beside its transaction.
    Naive,
    /// Through the outbox, in its transaction.
    Postrider,
}

impl Way {
    /// Both, in the order in which they are shown.
    pub(crate) const ALL: [Self; 2] = [Self::Naive, Self::Postrider];

    /// The name, also of the directory with its databases.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Postrider => "postrider",
        }
    }
}
