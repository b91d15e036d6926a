//! The events of a replay that are read and not published, and which of them may go next.

use std::collections::HashSet;

use postrider::Key;
use uuid::Uuid;

use crate::failure::SinkError;
use crate::sink::{Message, SinkCapabilities};

/// Events in the order of the outbox.
#[derive(Default)]
pub(super) struct Queue {
    events: Vec<(i64, Message)>,
}

impl Queue {
    pub(super) fn push(&mut self, position: i64, message: Message) {
        self.events.push((position, message));
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// The position of the first event.
    pub(super) fn first(&self) -> Option<i64> {
        self.events.first().map(|(position, _)| *position)
    }

    /// Which events may go in one call: no event before an earlier one of its key, and two of one
    /// key only where the sink keeps their order.
    pub(super) fn next_call(&self, can: &SinkCapabilities, events_max: usize) -> Vec<usize> {
        let events_max = can.batch_events_max.min(events_max);
        let mut keys: HashSet<&Key> = HashSet::new();
        let mut indexes = Vec::new();
        let mut bytes = 0;
        for (index, (_, message)) in self.events.iter().enumerate() {
            bytes += message.body.len();
            let is_full = indexes.len() >= events_max || bytes > can.batch_bytes_max;
            if is_full && !indexes.is_empty() {
                break;
            }
            if keys.insert(message.event.key()) || can.ordered_by_key {
                indexes.push(index);
            }
        }
        indexes
    }

    pub(super) fn messages(&self, indexes: &[usize]) -> Vec<Message> {
        indexes.iter().map(|index| self.events[*index].1.clone()).collect()
    }

    /// Removes what was published. Answers the first that was not, and why.
    pub(super) fn settle(
        &mut self,
        indexes: &[usize],
        results: Vec<Result<(), SinkError>>,
    ) -> Option<(i64, Uuid, SinkError)> {
        let mut failed = None;
        let mut published = HashSet::new();
        for (index, result) in indexes.iter().zip(results) {
            let (position, message) = &self.events[*index];
            match result {
                Ok(()) => drop(published.insert(*position)),
                Err(error) => drop(failed.get_or_insert((*position, message.event.id(), error))),
            }
        }
        self.events.retain(|(position, _)| !published.contains(position));
        failed
    }
}
