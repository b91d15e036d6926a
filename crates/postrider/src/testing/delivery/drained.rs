//! What became of the events.

use std::fmt::{self, Write as _};

use crate::event::Event;
use crate::testing::listing::described;

/// What a drain did, and what it left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "an event whose handler failed was not delivered; see `assert_all_delivered`"]
#[non_exhaustive]
pub struct Drained {
    /// What was delivered, in order.
    pub delivered: Vec<Event>,
    /// What was not, because its handler failed. It stays in the outbox.
    pub failed: Vec<Failed>,
    /// What stays in the outbox behind a failed event of its key.
    pub waiting: Vec<Event>,
    /// What stays in the outbox because its `deliver_after` has not come.
    pub not_due: Vec<Event>,
}

/// An event whose handler failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failed {
    /// The event.
    pub event: Event,
    /// What the handler said.
    pub error: String,
}

impl Drained {
    /// The types of what was delivered, in order.
    pub fn delivered_types(&self) -> Vec<&str> {
        self.delivered.iter().map(Event::event_type).collect()
    }

    /// That no handler failed and nothing waits; an event that is not due yet may be left.
    ///
    /// # Panics
    ///
    /// If one did, with a list of what failed and what waits behind it.
    #[track_caller]
    pub fn assert_all_delivered(&self) {
        assert!(self.failed.is_empty() && self.waiting.is_empty(), "{self}");
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delivered, failed, waiting, not_due } = self;
        let mut counts = format!("{} delivered, {} failed", delivered.len(), failed.len());
        for (events, state) in [(waiting, "waiting"), (not_due, "not due")] {
            if !events.is_empty() {
                write!(counts, ", {} {state}", events.len())?;
            }
        }
        f.write_str(&counts)?;
        for Failed { event, error } in failed {
            write!(f, "\n  failed: {}\n    {error}", described(event))?;
        }
        for event in waiting {
            write!(f, "\n  waiting behind it: {}", described(event))?;
        }
        Ok(())
    }
}
