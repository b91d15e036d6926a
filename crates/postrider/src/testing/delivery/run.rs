//! One run over the outbox: which event is next, and what became of it.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::time::SystemTime;

use uuid::Uuid;

use super::{Delivery, Drained, Failed};
use crate::event::{Event, Key};
use crate::testing::Source;
use crate::testing::listing::named;

/// How many of the last deliveries are named when there were too many.
const LAST_SHOWN: usize = 5;

pub(super) struct Run<'d> {
    delivery: &'d Delivery,
    /// All events are delivered again, and the outbox stays as it is.
    again: bool,
    queue: VecDeque<Event>,
    failed: HashSet<Uuid>,
    blocked: HashSet<Key>,
    drained: Drained,
}

impl<'d> Run<'d> {
    pub(super) fn of_pending(delivery: &'d Delivery) -> Self {
        Self {
            delivery,
            again: false,
            queue: VecDeque::new(),
            failed: HashSet::new(),
            blocked: HashSet::new(),
            drained: Drained::default(),
        }
    }

    pub(super) fn of_all(delivery: &'d Delivery, source: &impl Source) -> Self {
        let queue = source.events(&delivery.outbox).into();
        Self { again: true, queue, ..Self::of_pending(delivery) }
    }

    /// The event that is to be handed over next.
    pub(super) fn next(&mut self, source: &impl Source) -> Option<Event> {
        loop {
            while let Some(event) = self.queue.pop_front() {
                if self.is_free(&event) {
                    self.check_maximum(&event);
                    return Some(event);
                }
                if self.again {
                    self.drained.waiting.push(event);
                }
            }
            if self.again {
                return None;
            }
            let pending = source.pending(&self.delivery.outbox).into_iter();
            self.queue =
                pending.filter(|event| self.is_free(event) && self.is_due(event)).collect();
            if self.queue.is_empty() {
                return None;
            }
        }
    }

    /// Notes what became of an event.
    pub(super) fn settle<E: fmt::Display>(
        &mut self,
        source: &mut impl Source,
        event: Event,
        result: Result<(), E>,
    ) {
        match result {
            Ok(()) => {
                if !self.again {
                    source.settle(&self.delivery.outbox, &event);
                }
                self.drained.delivered.push(event);
            }
            Err(error) => {
                self.failed.insert(event.id());
                if event.deliver_after().is_none() {
                    self.blocked.insert(event.key().clone());
                }
                // The alternate form has the causes, too, with those errors that know them.
                self.drained.failed.push(Failed { event, error: format!("{error:#}") });
            }
        }
    }

    /// What was delivered, and what is left.
    pub(super) fn end(mut self, source: &impl Source) -> Drained {
        if !self.again {
            for event in source.pending(&self.delivery.outbox) {
                if !self.is_due(&event) {
                    self.drained.not_due.push(event);
                } else if !self.failed.contains(&event.id()) {
                    self.drained.waiting.push(event);
                }
            }
        }
        self.drained
    }

    /// An event with a time of its own is outside of its key's order, and waits for nothing.
    fn is_free(&self, event: &Event) -> bool {
        let waits = event.deliver_after().is_none() && self.blocked.contains(event.key());
        !waits && !self.failed.contains(&event.id())
    }

    fn is_due(&self, event: &Event) -> bool {
        let now = self.delivery.at.unwrap_or_else(SystemTime::now);
        event.deliver_after().is_none_or(|deliver_after| deliver_after <= now)
    }

    fn check_maximum(&self, next: &Event) {
        let Drained { delivered, failed, .. } = &self.drained;
        if delivered.len() + failed.len() < self.delivery.deliveries_max {
            return;
        }
        let last = &delivered[delivered.len().saturating_sub(LAST_SHOWN)..];
        let last: Vec<String> = last.iter().chain([next]).map(named).collect();
        panic!(
            "{} events were delivered, and the outbox is not empty yet: a handler publishes in \
             answer to its own events; the last were {}; if so many are meant, raise \
             `Delivery::deliveries_max`",
            delivered.len() + failed.len(),
            last.join(", "),
        );
    }
}
