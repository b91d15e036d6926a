//! Lanes that an operator has stopped.

use std::collections::HashSet;
use std::time::Duration;

use super::Engine;
use crate::source::Verdict;

/// How long an event of a key that is stopped is set aside, before it is looked at again. Whoever
/// lets the key go on need not wait for that: a relay that hears of it makes the event due.
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
            self.set_lane_aside(key, lane);
        }
        rest
    }

    /// Defers the first of the events of a lane. Those behind it that are set aside already are
    /// left there as they are: a key with many of them is not written anew each time.
    fn set_lane_aside(&mut self, key: Option<u64>, taken: &[usize]) {
        let mut lane: Vec<_> = taken.iter().map(|index| self.remove(*index)).collect();
        for behind in key.into_iter().flat_map(|key| self.lanes.clear(key)) {
            self.bytes -= behind.bytes;
            lane.push(behind);
        }
        let mut first = Some(Verdict::Deferred { delay: PAUSED_FOR, failure: None, blocks: true });
        for entry in lane {
            let behind = if entry.returned { Verdict::Released } else { Verdict::Queued };
            let verdict = first.take().unwrap_or(behind);
            self.settle(entry.handle, entry.key, entry.early, verdict);
        }
        self.lanes.put_back(key, taken.len(), &[], false);
    }
}
