//! Deliveries as a relay makes them, inline: each event is handed to a function of the test.
//!
//! Events are taken in rounds: all that are pending, in order, then all that handlers have
//! published meanwhile, until there are none. What fails stays in the outbox; its key is blocked
//! for the rest of the drain, so that nothing of that key comes out of order, and others go on.

mod drained;
mod run;

use std::fmt;
use std::time::SystemTime;

pub use drained::{Drained, Failed};

use super::Source;
use crate::event::Event;
use crate::outbox::Outbox;
use run::Run;

/// Most events that one drain delivers, unless it is told otherwise by
/// [`Delivery::deliveries_max`]: so a handler that publishes in answer to its own events is found.
pub const DELIVERIES_MAX: usize = 10_000;

/// Hands each pending event to the handler, in order per key, until the outbox is empty: also
/// those that handlers publish meanwhile. An event whose handler fails stays in the outbox, with
/// all later ones of its key; the others go on.
///
/// The handler gets the database, too, as it is in use here. It is called outside of any
/// transaction and begins its own.
///
/// ```
/// # use postrider::testing::{MemoryDatabase, drain};
/// # let mut database = MemoryDatabase::new();
/// drain(&mut database, |database, event| {
///     let tx = database.begin();
///     // … what the application does with the event …
///     tx.commit()
/// })
/// .assert_all_delivered();
/// ```
///
/// # Panics
///
/// If there are more than [`DELIVERIES_MAX`] events.
pub fn drain<S: Source, E: fmt::Display>(
    source: &mut S,
    handler: impl FnMut(&mut S, &Event) -> Result<(), E>,
) -> Drained {
    Delivery::new().drain(source, handler)
}

/// [`drain`] with a handler that is awaited: `async |database, event| …`.
pub async fn drain_async<S: Source, E: fmt::Display>(
    source: &mut S,
    handler: impl AsyncFnMut(&mut S, &Event) -> Result<(), E>,
) -> Drained {
    Delivery::new().drain_async(source, handler).await
}

/// [`drain`], with each event handed over twice in a row, as after a crash of a relay: with an
/// inbox the effect happens once.
pub fn drain_twice<S: Source, E: fmt::Display>(
    source: &mut S,
    handler: impl FnMut(&mut S, &Event) -> Result<(), E>,
) -> Drained {
    Delivery::new().times(2).drain(source, handler)
}

/// Hands over all events that were ever committed, in order per key, delivered or not, as when a
/// pipeline starts over. The outbox stays as it is.
pub fn redeliver_all<S: Source, E: fmt::Display>(
    source: &mut S,
    handler: impl FnMut(&mut S, &Event) -> Result<(), E>,
) -> Drained {
    Delivery::new().redeliver_all(source, handler)
}

/// Hands the very same event over twice.
///
/// # Errors
///
/// The handler's, of the first call that fails.
pub fn deliver_twice<E>(
    event: &Event,
    mut handler: impl FnMut(&Event) -> Result<(), E>,
) -> Result<(), E> {
    handler(event)?;
    handler(event)
}

/// How events are delivered, where the short forms such as [`drain`] do not suffice.
#[derive(Clone, Debug)]
#[must_use = "nothing is delivered until `drain` or `redeliver_all`"]
pub struct Delivery {
    outbox: Outbox,
    times: u32,
    deliveries_max: usize,
    at: Option<SystemTime>,
}

impl Delivery {
    /// Each event of the table `outbox` once.
    pub fn new() -> Self {
        Self { outbox: Outbox::new(), times: 1, deliveries_max: DELIVERIES_MAX, at: None }
    }

    /// Another outbox. Defaults to the one in the table `outbox`.
    pub fn outbox(mut self, outbox: &Outbox) -> Self {
        self.outbox = outbox.clone();
        self
    }

    /// How often each event is handed over in a row, until a call fails. Defaults to 1.
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// Most events that are delivered; one more is taken for a loop. Defaults to
    /// [`DELIVERIES_MAX`].
    pub fn deliveries_max(mut self, deliveries_max: usize) -> Self {
        self.deliveries_max = deliveries_max;
        self
    }

    /// As if it were that time, for events with `deliver_after`. Defaults to now.
    pub fn at(mut self, at: SystemTime) -> Self {
        self.at = Some(at);
        self
    }

    /// As the function [`drain`].
    ///
    /// # Panics
    ///
    /// If there are more events than [`deliveries_max`](Self::deliveries_max).
    pub fn drain<S: Source, E: fmt::Display>(
        &self,
        source: &mut S,
        mut handler: impl FnMut(&mut S, &Event) -> Result<(), E>,
    ) -> Drained {
        let mut run = Run::of_pending(self);
        while let Some(event) = run.next(source) {
            let result = (0..self.times).try_for_each(|_| handler(source, &event));
            run.settle(source, event, result);
        }
        run.end(source)
    }

    /// As the function [`drain_async`].
    ///
    /// # Panics
    ///
    /// If there are more events than [`deliveries_max`](Self::deliveries_max).
    pub async fn drain_async<S: Source, E: fmt::Display>(
        &self,
        source: &mut S,
        mut handler: impl AsyncFnMut(&mut S, &Event) -> Result<(), E>,
    ) -> Drained {
        let mut run = Run::of_pending(self);
        while let Some(event) = run.next(source) {
            let mut result = Ok(());
            for _ in 0..self.times {
                result = handler(source, &event).await;
                if result.is_err() {
                    break;
                }
            }
            run.settle(source, event, result);
        }
        run.end(source)
    }

    /// As the function [`redeliver_all`].
    ///
    /// # Panics
    ///
    /// If there are more events than [`deliveries_max`](Self::deliveries_max).
    pub fn redeliver_all<S: Source, E: fmt::Display>(
        &self,
        source: &mut S,
        mut handler: impl FnMut(&mut S, &Event) -> Result<(), E>,
    ) -> Drained {
        let mut run = Run::of_all(self, source);
        while let Some(event) = run.next(source) {
            let result = (0..self.times).try_for_each(|_| handler(source, &event));
            run.settle(source, event, result);
        }
        run.end(source)
    }
}

impl Default for Delivery {
    fn default() -> Self {
        Self::new()
    }
}
