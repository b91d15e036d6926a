//! What was received and is not done with, in one queue per key.
//!
//! A lane is *ready* if it has deliveries and none of them is being worked on or waits for another
//! attempt. So events of one key are worked on one after the other, and those of different keys
//! side by side.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use postrider::{Event, Key};

/// A delivery under way.
#[derive(Debug)]
pub(super) struct Item<H> {
    pub(super) handle: H,
    pub(super) event: Event,
    /// How often its handler has failed.
    pub(super) attempts: u32,
    /// Why it is no event, if it is none: it becomes a dead letter.
    pub(super) undecodable: Option<String>,
    /// Which one of its key it is, if that is known.
    pub(super) version: Option<u64>,
    /// Since when it waits for those before it.
    pub(super) waits_since: Option<Instant>,
    /// It was dead, and somebody wants it to be handled.
    pub(super) is_revived: bool,
}

/// The work that one worker takes: for each key its next deliveries, in order.
pub(super) type Batch<H> = Vec<(Key, Vec<Item<H>>)>;

#[derive(Debug)]
struct Lane<H> {
    items: VecDeque<Item<H>>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    /// Its first deliveries are with a worker.
    Working,
    /// For another attempt.
    Waiting,
}

/// All lanes.
#[derive(Debug)]
pub(super) struct Lanes<H> {
    lanes: HashMap<Key, Lane<H>>,
    ready: VecDeque<Key>,
    /// Lanes that wait for another attempt, by when it is made. The number tells apart what is
    /// due at the same moment.
    waiting: BTreeMap<(Instant, u64), Key>,
    count: usize,
    number: u64,
}

impl<H> Lanes<H> {
    pub(super) fn new() -> Self {
        Self {
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            waiting: BTreeMap::new(),
            count: 0,
            number: 0,
        }
    }

    /// How many deliveries are not done with.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes in what was received.
    pub(super) fn push(&mut self, item: Item<H>) {
        self.count += 1;
        if let Some(lane) = self.lanes.get_mut(item.event.key()) {
            let is_first = insert(&mut lane.items, item) == 0;
            // What the first one waited for may be this.
            if is_first && lane.state == State::Waiting {
                lane.state = State::Ready;
                let its_key = lane.items[0].event.key().clone();
                self.waiting.retain(|_, key| *key != its_key);
                self.ready.push_back(its_key);
            }
            return;
        }
        let key = item.event.key().clone();
        self.ready.push_back(key.clone());
        self.lanes.insert(key, Lane { items: VecDeque::from([item]), state: State::Ready });
    }

    /// The next work, of at most so many deliveries. One whose handler has failed goes alone, so
    /// that it fails nothing else.
    pub(super) fn take(&mut self, max: usize) -> Batch<H> {
        let mut batch = Vec::new();
        let mut left = max;
        while left > 0
            && let Some(key) = self.ready.pop_front()
        {
            let lane = self.lanes.get_mut(&key).expect("what is ready has a lane");
            let goes_alone = |item: &Item<H>| {
                item.attempts > 0 || item.undecodable.is_some() || item.waits_since.is_some()
            };
            if lane.items.front().is_some_and(goes_alone) {
                if !batch.is_empty() {
                    self.ready.push_front(key);
                    break;
                }
                left = 1;
            }
            let mut later = lane.items.iter().skip(1);
            let together = later.position(goes_alone).map_or(lane.items.len(), |at| at + 1);
            let taken: Vec<_> = lane.items.drain(..together.min(left)).collect();
            left -= taken.len();
            lane.state = State::Working;
            batch.push((key, taken));
        }
        batch
    }

    /// Takes back a lane whose work has ended: `done` of its deliveries are done with, `left` are
    /// not, and the first of these is tried again at `again`.
    pub(super) fn put_back(
        &mut self,
        key: Key,
        done: usize,
        left: Vec<Item<H>>,
        again: Option<Instant>,
    ) {
        self.count -= done;
        let lane = self.lanes.get_mut(&key).expect("what was taken has a lane");
        let came = lane.items.front().and_then(|item| item.version);
        let first_left = left.first().and_then(|item| item.version);
        // What came while a later one was worked on goes before it, at once.
        let is_overtaken = came.is_some_and(|came| first_left.is_some_and(|first| came < first));
        for item in left.into_iter().rev() {
            if is_overtaken {
                insert(&mut lane.items, item);
            } else {
                lane.items.push_front(item);
            }
        }
        let again = again.filter(|_| !is_overtaken);
        if lane.items.is_empty() {
            self.lanes.remove(&key);
            return;
        }
        match again {
            Some(at) => {
                lane.state = State::Waiting;
                self.number += 1;
                self.waiting.insert((at, self.number), key);
            }
            None => {
                lane.state = State::Ready;
                self.ready.push_back(key);
            }
        }
    }

    /// Makes lanes ready whose time has come.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 <= now
        {
            let key = first.remove();
            self.lanes.get_mut(&key).expect("what waits has a lane").state = State::Ready;
            self.ready.push_back(key);
        }
    }

    /// When the next lane becomes ready.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Removes deliveries that nobody works on and that are to go; answers them.
    pub(super) fn remove_if(&mut self, mut is_to_go: impl FnMut(&H) -> bool) -> Vec<H>
    where
        H: Clone,
    {
        let mut gone = Vec::new();
        for lane in self.lanes.values_mut() {
            lane.items.retain(|item| {
                let goes = is_to_go(&item.handle);
                if goes {
                    gone.push(item.handle.clone());
                }
                !goes
            });
        }
        self.count -= gone.len();
        // A lane whose work is under way stays: it is put back later.
        self.lanes.retain(|_, lane| !lane.items.is_empty() || lane.state == State::Working);
        self.ready.retain(|key| self.lanes.contains_key(key));
        self.waiting.retain(|_, key| self.lanes.contains_key(key));
        gone
    }

    /// The deliveries that nobody works on.
    pub(super) fn handles(&self) -> impl Iterator<Item = &H> {
        self.lanes.values().flat_map(|lane| &lane.items).map(|item| &item.handle)
    }
}

/// Puts a delivery before the first one of a later version, or last; answers where. A broker may
/// deliver again what came before.
fn insert<H>(items: &mut VecDeque<Item<H>>, item: Item<H>) -> usize {
    let is_later = |other: &Item<H>| item.version.is_some() && other.version > item.version;
    let at = items.iter().position(is_later).unwrap_or(items.len());
    items.insert(at, item);
    at
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn item(key: &str, handle: u32) -> Item<u32> {
        let event = Event::builder("Order", key, "OrderPaid").build().expect("it is valid");
        Item {
            handle,
            event,
            attempts: 0,
            undecodable: None,
            version: None,
            waits_since: None,
            is_revived: false,
        }
    }

    fn lanes(items: &[(&str, u32)]) -> Lanes<u32> {
        let mut lanes = Lanes::new();
        items.iter().for_each(|(key, handle)| lanes.push(item(key, *handle)));
        lanes
    }

    fn handles(batch: &Batch<u32>) -> Vec<Vec<u32>> {
        batch.iter().map(|(_, items)| items.iter().map(|item| item.handle).collect()).collect()
    }

    #[test]
    fn a_key_is_worked_on_by_one_worker_at_a_time() {
        let mut lanes = lanes(&[("a", 1), ("b", 2), ("a", 3)]);
        let first = lanes.take(2);
        assert_eq!(handles(&first), [[1, 3]]);
        lanes.push(item("a", 4));
        assert_eq!(handles(&lanes.take(9)), [[2]]);
        assert!(!lanes.has_ready(), "4 waits for 1 and 3");
        for (key, items) in first {
            lanes.put_back(key, items.len(), Vec::new(), None);
        }
        assert_eq!(handles(&lanes.take(9)), [[4]]);
        assert_eq!(lanes.count(), 2);
    }

    #[test]
    fn what_failed_waits_with_its_key_and_then_goes_alone() {
        let mut lanes = lanes(&[("a", 1), ("a", 2), ("b", 3)]);
        let mut batch = lanes.take(2);
        let (key, mut items) = batch.remove(0);
        items[0].attempts = 1;
        let again = Instant::now() + Duration::from_secs(1);
        lanes.put_back(key, 0, items, Some(again));
        assert_eq!(handles(&lanes.take(9)), [[3]]);
        assert!(!lanes.has_ready());
        assert_eq!(lanes.next_due(), Some(again));
        lanes.wake(again);
        lanes.push(item("c", 4));
        assert_eq!(handles(&lanes.take(9)), [[1]], "it fails nothing else");
        assert_eq!(handles(&lanes.take(9)), [[4]]);
    }

    #[test]
    fn what_was_missing_goes_before_what_waits_for_it() {
        let versioned = |version: u64| {
            let handle = u32::try_from(version).expect("it is small");
            Item { version: Some(version), ..item("a", handle) }
        };
        let mut lanes = Lanes::new();
        [4, 5].into_iter().for_each(|version| lanes.push(versioned(version)));
        let (key, mut items) = lanes.take(1).remove(0);
        items[0].attempts = 1;
        lanes.put_back(key, 0, items, Some(Instant::now() + Duration::from_secs(9)));
        assert!(!lanes.has_ready(), "it waits for what is missing");
        lanes.push(versioned(3));
        assert_eq!(lanes.next_due(), None);
        let (key, items) = lanes.take(1).remove(0);
        assert_eq!(items[0].handle, 3);
        // The one before comes while it is worked on, in vain.
        lanes.push(versioned(2));
        lanes.put_back(key, 0, items, Some(Instant::now() + Duration::from_secs(9)));
        assert_eq!(handles(&lanes.take(2)), [[2, 3]]);
    }

    #[test]
    fn what_is_removed_leaves_no_lane_behind_that_is_never_ready() {
        let mut lanes = lanes(&[("a", 1), ("b", 2), ("b", 3)]);
        let (key, items) = lanes.take(1).remove(0);
        lanes.put_back(key, 0, items, Some(Instant::now() + Duration::from_secs(9)));
        let at_work = lanes.take(1);
        assert_eq!(lanes.remove_if(|_| true).len(), 2);
        assert_eq!((lanes.count(), lanes.next_due()), (1, None));
        lanes.push(item("a", 4));
        assert_eq!(handles(&lanes.take(9)), [[4]]);
        lanes.push(item("b", 5));
        assert!(!lanes.has_ready(), "2 is being worked on");
        for (key, items) in at_work {
            lanes.put_back(key, items.len(), Vec::new(), None);
        }
        assert_eq!(handles(&lanes.take(9)), [[5]]);
    }
}
