//! Lanes that an operator has stopped.

use std::collections::HashSet;
use std::time::Duration;

use super::Engine;
use crate::source::Verdict;

/// How long an event of a key that is stopped is set aside, before it is looked at again. Whoever
/// lets the key go on need not wait for that: the source hands its first event out at once.
const PAUSED_FOR: Duration = Duration::from_secs(30);

impl<M> Engine<M> {
    /// Takes in which lanes an operator has stopped.
    pub fn pause_lanes(&mut self, lanes: HashSet<u64>) {
        self.paused = lanes;
    }

    /// Nothing was sent until now because an operator had stopped it: that is no stall.
    pub fn rested(&mut self, now: Duration) {
        self.moved_at = now;
    }

    /// Defers the first event of each lane that an operator has stopped, and queues those behind
    /// it. That waits until it is its turn: set aside before an earlier event of its key has its
    /// verdict, it could overtake that one later. Answers the events that may go.
    pub(super) fn without_paused(&mut self, entries: Vec<usize>) -> Vec<usize> {
        if self.paused.is_empty() {
            return entries;
        }
        let mut rest = Vec::with_capacity(entries.len());
        let mut left = entries.as_slice();
        while let Some(first) = left.first() {
            let key = self.lanes.entry(*first).key;
            if !key.is_some_and(|key| self.paused.contains(&key)) {
                rest.push(*first);
                left = &left[1..];
                continue;
            }
            // Those of one lane stand together.
            let together = left.iter().take_while(|index| self.lanes.entry(**index).key == key);
            let (lane, others) = left.split_at(together.count());
            left = others;
            let mut verdict = Verdict::Deferred { delay: PAUSED_FOR, failure: None, blocks: true };
            for index in lane {
                self.conclude(*index, std::mem::replace(&mut verdict, Verdict::Queued));
            }
            self.lanes.put_back(key, lane.len(), &[]);
        }
        rest
    }
}
