//! Lanes: the events in memory, one queue per key.
//!
//! A lane is *ready* when it has events and none of them is under way. A ready lane gives its
//! first event to a call, or several where the sink keeps their order; it becomes ready again
//! when the call is over. So two events of one key are never under way in two calls at a time.
//!
//! Lanes are named by a hash of their key, seeded anew in each process. Should two keys of a
//! window ever collide (a chance of one in 2⁶⁴ for each pair), they share a lane and wait for each
//! other; only if both are blocked could a new event of one overtake its queue.

use std::collections::VecDeque;
use std::time::Duration;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as LaneEntry;
use slab::Slab;

use crate::source::Handle;

/// An event in memory.
#[derive(Debug)]
pub(super) struct Entry<M> {
    pub(super) handle: Handle,
    /// The hash of its key; `None` if it has no place in any order.
    pub(super) key: Option<u64>,
    /// A hash of its id.
    pub(super) id: u64,
    pub(super) bytes: usize,
    pub(super) attempts: u32,
    /// Among the first events read after the start.
    pub(super) early: bool,
    /// It was set aside before, and came back.
    pub(super) returned: bool,
    /// When it last failed and kept its place.
    pub(super) held_at: Option<Duration>,
    /// What is sent; away while a call is under way.
    pub(super) message: Option<M>,
    /// Why it can never be sent.
    pub(super) unsendable: Option<String>,
    next: Option<usize>,
}

impl<M> Entry<M> {
    pub(super) fn new(
        handle: Handle,
        key: Option<u64>,
        id: u64,
        message: Result<M, String>,
    ) -> Self {
        let (message, unsendable) = match message {
            Ok(message) => (Some(message), None),
            Err(reason) => (None, Some(reason)),
        };
        Self {
            handle,
            key,
            id,
            bytes: 0,
            attempts: 0,
            early: false,
            returned: false,
            held_at: None,
            message,
            unsendable,
            next: None,
        }
    }

    /// What the breaker counts as one lane.
    pub(super) fn lane(&self) -> u64 {
        self.key.unwrap_or(self.id)
    }
}

#[derive(Debug, Default)]
struct Lane {
    head: Option<usize>,
    tail: Option<usize>,
    in_flight: usize,
}

#[derive(Debug, Clone, Copy)]
enum Ready {
    Lane(u64),
    /// An event outside of any order.
    Free(usize),
}

#[derive(Debug)]
pub(super) struct Lanes<M> {
    entries: Slab<Entry<M>>,
    lanes: HashMap<u64, Lane, foldhash::fast::FixedState>,
    ready: VecDeque<Ready>,
    in_flight: usize,
}

/// How much fits into a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) events: usize,
    pub(super) bytes: usize,
    /// Whether several events of one lane may go together.
    pub(super) whole_lanes: bool,
}

impl<M> Lanes<M> {
    pub(super) fn new() -> Self {
        Self {
            entries: Slab::new(),
            lanes: HashMap::default(),
            ready: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// Events in memory, under way or not.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Events under way.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn entry(&mut self, index: usize) -> &mut Entry<M> {
        &mut self.entries[index]
    }

    /// Adds an event at the end of its lane.
    pub(super) fn push(&mut self, entry: Entry<M>) {
        let key = entry.key;
        let index = self.entries.insert(entry);
        let Some(key) = key else {
            self.ready.push_back(Ready::Free(index));
            return;
        };
        let lane = self.lanes.entry(key).or_default();
        match lane.tail.replace(index) {
            Some(tail) => self.entries[tail].next = Some(index),
            None => {
                lane.head = Some(index);
                if lane.in_flight == 0 {
                    self.ready.push_back(Ready::Lane(key));
                }
            }
        }
    }

    /// Takes as many events as fit from ready lanes; those of one lane stand together and in
    /// order, and one that can never be sent comes alone of its lane.
    pub(super) fn take(&mut self, room: Room) -> Vec<usize> {
        let mut taken = Vec::with_capacity(room.events.min(self.ready.len()));
        let mut bytes_left = room.bytes;
        while taken.len() < room.events {
            let Some(ready) = self.ready.pop_front() else { break };
            let before = taken.len();
            match ready {
                Ready::Free(index) => {
                    if fits(self.entries[index].bytes, &taken, &mut bytes_left) {
                        taken.push(index);
                    }
                }
                Ready::Lane(key) => self.take_lane(key, room, &mut bytes_left, &mut taken),
            }
            if taken.len() == before {
                self.ready.push_front(ready);
                break;
            }
        }
        self.in_flight += taken.len();
        taken
    }

    fn take_lane(&mut self, key: u64, room: Room, bytes_left: &mut usize, taken: &mut Vec<usize>) {
        let most = if room.whole_lanes { room.events - taken.len() } else { 1 };
        let lane = self.lanes.get_mut(&key).expect("a ready lane exists");
        while let Some(index) = lane.head.filter(|_| lane.in_flight < most) {
            let entry = &mut self.entries[index];
            let sendable = entry.unsendable.is_none();
            if !fits(entry.bytes, taken, bytes_left) || !sendable && lane.in_flight > 0 {
                break;
            }
            taken.push(index);
            lane.in_flight += 1;
            lane.head = entry.next.take();
            if !sendable {
                break;
            }
        }
        if lane.head.is_none() {
            lane.tail = None;
        }
    }

    /// Removes an event that was taken.
    pub(super) fn finish(&mut self, index: usize) -> Entry<M> {
        self.entries.remove(index)
    }

    /// Ends a call for the events of one lane: `taken` of them were under way, and `held` go
    /// back to their place, in order.
    pub(super) fn put_back(&mut self, key: Option<u64>, taken: usize, held: &[usize]) {
        self.in_flight -= taken;
        let Some(key) = key else {
            self.ready.extend(held.iter().map(|index| Ready::Free(*index)));
            return;
        };
        let LaneEntry::Occupied(mut lane) = self.lanes.entry(key) else {
            unreachable!("a lane with events under way exists");
        };
        let ends = lane.get_mut();
        ends.in_flight = 0;
        for index in held.iter().rev() {
            self.entries[*index].next = ends.head;
            ends.head = Some(*index);
            ends.tail.get_or_insert(*index);
        }
        if ends.head.is_some() {
            self.ready.push_back(Ready::Lane(key));
        } else {
            lane.remove();
        }
    }

    /// Removes all events of a lane that are not under way, in order.
    pub(super) fn clear(&mut self, key: u64) -> Vec<Entry<M>> {
        let mut cleared = Vec::new();
        let Some(lane) = self.lanes.get_mut(&key) else { return cleared };
        let mut head = lane.head.take();
        lane.tail = None;
        if lane.in_flight == 0 {
            self.lanes.remove(&key);
            self.ready.retain(|ready| !matches!(ready, Ready::Lane(lane) if *lane == key));
        }
        while let Some(index) = head {
            let entry = self.entries.remove(index);
            head = entry.next;
            cleared.push(entry);
        }
        cleared
    }

    /// Removes every event that is not under way.
    pub(super) fn clear_all(&mut self) -> Vec<Entry<M>> {
        let mut cleared = Vec::new();
        for ready in std::mem::take(&mut self.ready) {
            if let Ready::Free(index) = ready {
                cleared.push(self.entries.remove(index));
            }
        }
        let mut keys: Vec<u64> = self.lanes.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            cleared.extend(self.clear(key));
        }
        cleared
    }
}

fn fits(bytes: usize, taken: &[usize], bytes_left: &mut usize) -> bool {
    if bytes > *bytes_left && !taken.is_empty() {
        return false;
    }
    *bytes_left = bytes_left.saturating_sub(bytes);
    true
}
