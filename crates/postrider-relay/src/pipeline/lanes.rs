//! Lanes: the events in memory, one queue per key.
//!
//! A lane is *ready* when it has events and none of them is under way. A ready lane gives its
//! first event to a call, or several where the sink keeps their order; it becomes ready again
//! when the call is over. So two events of one key are never under way in two calls at a time.
//!
//! A lane with events that were refused in company (see [`company`](super::company)) is *suspect*
//! instead of ready, until these events have gone.
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
    /// Events that are not under way.
    waiting: usize,
    in_flight: usize,
    /// So many of its first events were refused in company.
    suspects: usize,
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
    /// What was refused in company and is not under way.
    suspect: VecDeque<Ready>,
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
            suspect: VecDeque::new(),
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
        lane.waiting += 1;
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

    /// Adds an event that is suspect from the beginning. Behind others of its lane it is not: then
    /// it is found again.
    pub(super) fn push_suspect(&mut self, entry: Entry<M>) {
        let before = self.ready.len();
        self.push(entry);
        if self.ready.len() == before {
            return;
        }
        if let Some(first) = self.ready.pop_back() {
            if let Ready::Lane(key) = first {
                self.lanes.entry(key).or_default().suspects = 1;
            }
            self.suspect.push_back(first);
        }
    }

    /// Takes as many events as fit from ready lanes: one of each, and more of each where there
    /// are fewer lanes than room. Those of one lane stand together and in order, and one that can
    /// never be sent comes alone of its lane.
    pub(super) fn take(&mut self, room: Room) -> Vec<usize> {
        let depth = match room.whole_lanes {
            true => self.depth(room.events),
            false => 1,
        };
        let mut ready = std::mem::take(&mut self.ready);
        let taken = self.take_from(&mut ready, room, |_| depth);
        self.ready = ready;
        taken
    }

    /// Takes as many as fit of the events that were refused in company, and no others.
    pub(super) fn take_suspects(&mut self, room: Room) -> Vec<usize> {
        let mut suspect = std::mem::take(&mut self.suspect);
        let most = |lane: &Lane| if room.whole_lanes { lane.suspects } else { 1 };
        let taken = self.take_from(&mut suspect, room, most);
        self.suspect = suspect;
        taken
    }

    /// Whether others wait.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether events that were refused in company wait.
    pub(super) fn has_suspects(&self) -> bool {
        !self.suspect.is_empty()
    }

    /// How many events each ready lane may give, so that so many are shared out evenly: a long
    /// lane takes only what shorter ones leave.
    fn depth(&self, events: usize) -> usize {
        if self.ready.len() >= events {
            return 1;
        }
        let waiting = |ready: &Ready| match ready {
            Ready::Free(_) => 1,
            Ready::Lane(key) => self.lanes[key].waiting,
        };
        let mut lengths: Vec<usize> = self.ready.iter().map(waiting).collect();
        lengths.sort_unstable();
        let mut left = events;
        for (index, length) in lengths.iter().enumerate() {
            let share = left / (lengths.len() - index);
            if *length > share {
                return share;
            }
            left -= length;
        }
        usize::MAX
    }

    fn take_from(
        &mut self,
        queue: &mut VecDeque<Ready>,
        room: Room,
        most_of: impl Fn(&Lane) -> usize,
    ) -> Vec<usize> {
        let mut taken = Vec::with_capacity(room.events.min(queue.len()));
        let mut bytes_left = room.bytes;
        while taken.len() < room.events {
            let Some(ready) = queue.pop_front() else { break };
            let before = taken.len();
            match ready {
                Ready::Free(index) => {
                    if fits(self.entries[index].bytes, &taken, &mut bytes_left) {
                        taken.push(index);
                    }
                }
                Ready::Lane(key) => {
                    let most = most_of(&self.lanes[&key]).min(room.events - taken.len());
                    self.take_lane(key, most, &mut bytes_left, &mut taken);
                }
            }
            if taken.len() == before {
                queue.push_front(ready);
                break;
            }
        }
        self.in_flight += taken.len();
        taken
    }

    fn take_lane(&mut self, key: u64, most: usize, bytes_left: &mut usize, taken: &mut Vec<usize>) {
        let lane = self.lanes.get_mut(&key).expect("a ready lane exists");
        while let Some(index) = lane.head.filter(|_| lane.in_flight < most) {
            let entry = &mut self.entries[index];
            let sendable = entry.unsendable.is_none();
            if !fits(entry.bytes, taken, bytes_left) || !sendable && lane.in_flight > 0 {
                break;
            }
            taken.push(index);
            lane.in_flight += 1;
            lane.waiting -= 1;
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
    /// back to their place, in order; `in_company` if it is because they were refused so.
    pub(super) fn put_back(
        &mut self,
        key: Option<u64>,
        taken: usize,
        held: &[usize],
        in_company: bool,
    ) {
        self.in_flight -= taken;
        let Some(key) = key else {
            let queue = if in_company { &mut self.suspect } else { &mut self.ready };
            queue.extend(held.iter().map(|index| Ready::Free(*index)));
            return;
        };
        let LaneEntry::Occupied(mut lane) = self.lanes.entry(key) else {
            unreachable!("a lane with events under way exists");
        };
        let ends = lane.get_mut();
        ends.in_flight = 0;
        ends.waiting += held.len();
        ends.suspects = ends.suspects.saturating_sub(taken - held.len());
        if in_company {
            ends.suspects = ends.suspects.max(held.len());
        }
        for index in held.iter().rev() {
            self.entries[*index].next = ends.head;
            ends.head = Some(*index);
            ends.tail.get_or_insert(*index);
        }
        if ends.head.is_none() {
            lane.remove();
        } else if ends.suspects > 0 {
            self.suspect.push_back(Ready::Lane(key));
        } else {
            self.ready.push_back(Ready::Lane(key));
        }
    }

    /// Removes all events of a lane that are not under way, in order.
    pub(super) fn clear(&mut self, key: u64) -> Vec<Entry<M>> {
        let mut cleared = Vec::new();
        let Some(lane) = self.lanes.get_mut(&key) else { return cleared };
        let mut head = lane.head.take();
        lane.tail = None;
        lane.waiting = 0;
        if lane.in_flight == 0 {
            self.lanes.remove(&key);
            let is_other = |ready: &Ready| !matches!(ready, Ready::Lane(lane) if *lane == key);
            self.ready.retain(is_other);
            self.suspect.retain(is_other);
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
        let suspect = std::mem::take(&mut self.suspect);
        for ready in std::mem::take(&mut self.ready).into_iter().chain(suspect) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes with so many events each.
    fn lanes(lengths: &[usize]) -> Lanes<()> {
        let mut lanes = Lanes::new();
        for (key, length) in lengths.iter().enumerate() {
            for _ in 0..*length {
                let key = key as u64;
                lanes.push(Entry::new(Handle(key), Some(key), 0, Ok(())));
            }
        }
        lanes
    }

    /// How many events a call has of each lane, which stand together.
    fn shares(lanes: &mut Lanes<()>, events: usize) -> Vec<(u64, usize)> {
        let room = Room { events, bytes: usize::MAX, whole_lanes: true };
        let mut shares: Vec<(u64, usize)> = Vec::new();
        for index in lanes.take(room) {
            let key = lanes.entry(index).key.expect("each has a key");
            match shares.last_mut().filter(|(last, _)| *last == key) {
                Some((_, count)) => *count += 1,
                None => shares.push((key, 1)),
            }
        }
        shares
    }

    #[test]
    fn a_hot_lane_takes_what_others_leave() {
        assert_eq!(shares(&mut lanes(&[100]), 10), [(0, 10)]);
        assert_eq!(shares(&mut lanes(&[100, 1, 1]), 10), [(0, 8), (1, 1), (2, 1)]);
        assert_eq!(shares(&mut lanes(&[100, 3, 100]), 11), [(0, 4), (1, 3), (2, 4)]);
        assert_eq!(shares(&mut lanes(&[2, 3]), 10), [(0, 2), (1, 3)]);
        let many = shares(&mut lanes(&[100; 20]), 10);
        assert_eq!(many, (0..10).map(|key| (key, 1)).collect::<Vec<_>>());
    }

    #[test]
    fn what_was_refused_in_company_waits_by_itself() {
        let mut lanes = lanes(&[5, 1]);
        let room = Room { events: 3, bytes: usize::MAX, whole_lanes: true };
        let taken = lanes.take(room);
        assert_eq!(taken, [0, 1, 5]);
        lanes.put_back(Some(0), 2, &taken[..2], true);
        lanes.finish(5);
        lanes.put_back(Some(1), 1, &[], false);
        assert!(lanes.take(room).is_empty(), "the rest of its lane waits behind it");
        assert_eq!(lanes.take_suspects(Room { events: 1, ..room }), [0]);
        lanes.finish(0);
        lanes.put_back(Some(0), 1, &[], false);
        assert_eq!(lanes.take_suspects(room), [1], "what was not refused is no suspect");
        lanes.finish(1);
        lanes.put_back(Some(0), 1, &[], false);
        assert!(!lanes.has_suspects());
        assert_eq!(lanes.take(room), [2, 3, 4]);
    }
}
