//! The comparison of what was written with what a broker keeps, event by event.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, SystemTime};

use postrider::Key;
use uuid::Uuid;

use crate::readback::Kept;

/// Most examples of a kind that are kept.
pub const EXAMPLES_MAX: usize = 100;

/// An event of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its id.
    pub id: Uuid,
    /// Its key. Events are given in the order of their keys.
    pub key: Key,
    /// Its place in the order does not matter: it was delayed on purpose, or set aside and
    /// published later.
    pub is_out_of_line: bool,
    /// When it was written.
    pub written_at: SystemTime,
}

/// Compares what was [expected](Self::expect) with what was [found](Self::find).
#[derive(Debug, Default)]
pub struct Comparison {
    rows: Vec<Row>,
    by_id: HashMap<Uuid, u32>,
    keys: HashMap<Key, u32>,
    /// The last row of each key that was found.
    last_of_key: HashMap<u32, u32>,
    unknown: HashMap<Uuid, Kept>,
    kept: u64,
    foreign: u64,
    older: u64,
    duplicated: Found,
    out_of_order: Found,
}

#[derive(Debug)]
struct Row {
    id: Uuid,
    key: u32,
    is_out_of_line: bool,
    state: State,
    written_at: SystemTime,
}

/// What became of an event of the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Missing,
    Found,
    Waiting,
    Discarded,
    /// Nobody has looked whether it waits.
    Unchecked,
}

/// How many there are, with some examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// All of them.
    pub count: u64,
    /// Some of them: the event's id, and where it stands in the broker if it does.
    pub examples: Vec<(Uuid, Option<String>)>,
}

/// What a comparison has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Events of the outbox that were looked at.
    pub expected: u64,
    /// Messages of the broker that were read.
    pub kept: u64,
    /// Published, and not there.
    pub lost: Found,
    /// There, and in no outbox.
    pub ghosts: Found,
    /// There more than once; each time after the first one counts.
    pub duplicated: Found,
    /// There for the first time after a later event of their key.
    pub out_of_order: Found,
    /// Not published yet, and not there.
    pub waiting: u64,
    /// Discarded by an operator, and not there.
    pub discarded: u64,
    /// Published, and older than what the broker still keeps.
    pub beyond_retention: u64,
    /// Not there, and nobody has looked whether they wait.
    pub unchecked: u64,
    /// There, and older than what the outbox still has.
    pub older: u64,
    /// Messages that are no relay's.
    pub foreign: u64,
}

impl Report {
    /// Whether nothing is wrong. Duplicates are what at least once means.
    pub fn is_clean(&self) -> bool {
        self.lost.count == 0 && self.ghosts.count == 0 && self.out_of_order.count == 0
    }
}

impl Found {
    fn add(&mut self, id: Uuid, place: Option<String>) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push((id, place));
        }
    }
}

impl Comparison {
    /// Notes an event of the outbox.
    pub fn expect(&mut self, expected: Expected) {
        let Expected { id, key, is_out_of_line, written_at } = expected;
        let count = index(self.keys.len());
        let key = *self.keys.entry(key).or_insert(count);
        let rank = index(self.rows.len());
        if self.by_id.insert(id, rank).is_none() {
            let state = State::Missing;
            self.rows.push(Row { id, key, is_out_of_line, state, written_at });
        }
    }

    /// Notes a message of the broker.
    pub fn find(&mut self, kept: Kept) {
        self.kept += 1;
        let Some(id) = kept.id else {
            self.foreign += 1;
            return;
        };
        let Some(rank) = self.by_id.get(&id).copied() else {
            match self.unknown.entry(id) {
                Entry::Occupied(_) => self.duplicated.add(id, Some(kept.place)),
                Entry::Vacant(place) => drop(place.insert(kept)),
            }
            return;
        };
        let row = &mut self.rows[rank as usize];
        if row.state == State::Found {
            self.duplicated.add(id, Some(kept.place));
            return;
        }
        row.state = State::Found;
        if row.is_out_of_line {
            return;
        }
        let last = self.last_of_key.entry(row.key).or_insert(rank);
        if rank < *last {
            self.out_of_order.add(id, Some(kept.place));
        } else {
            *last = rank;
        }
    }

    /// The events that were not found.
    pub fn missing(&self) -> Vec<Uuid> {
        let is_missing = |row: &&Row| row.state == State::Missing;
        self.rows.iter().filter(is_missing).map(|row| row.id).collect()
    }

    /// Notes that a missing event is not published yet.
    pub fn waits(&mut self, id: Uuid) {
        self.set(id, State::Waiting);
    }

    /// Notes that an operator has discarded a missing event.
    pub fn was_discarded(&mut self, id: Uuid) {
        self.set(id, State::Discarded);
    }

    /// Notes that nobody will look whether a missing event waits.
    pub fn leave_unchecked(&mut self, id: Uuid) {
        self.set(id, State::Unchecked);
    }

    /// Notes a message that is read for a second time, to find what is missing.
    pub fn find_again(&mut self, kept: &Kept) {
        if let Some(id) = kept.id {
            self.set(id, State::Found);
        }
    }

    fn set(&mut self, id: Uuid, state: State) {
        let rank = self.by_id.get(&id);
        let row = rank.map(|rank| &mut self.rows[*rank as usize]);
        if let Some(row) = row.filter(|row| row.state == State::Missing) {
            row.state = state;
        }
    }

    /// The ids that were found and are of no event that was expected.
    pub fn unknown(&self) -> Vec<Uuid> {
        let mut unknown: Vec<_> = self.unknown.keys().copied().collect();
        unknown.sort_unstable();
        unknown
    }

    /// Notes that the outbox has one of the unknown ones after all.
    pub fn known_after_all(&mut self, id: Uuid) {
        self.unknown.remove(&id);
    }

    /// Passes over unknown ones that were written before this time, as far as can be told.
    pub fn forget_unknown_before(&mut self, time: SystemTime) {
        let before = self.unknown.len();
        self.unknown
            .retain(|id, kept| written_at(*id).or(kept.sent_at).is_none_or(|at| at >= time));
        self.older += (before - self.unknown.len()) as u64;
    }

    /// What was found, if the broker keeps everything since this time.
    pub fn into_report(self, kept_since: Option<SystemTime>) -> Report {
        let mut report = Report {
            expected: self.rows.len() as u64,
            kept: self.kept,
            lost: Found::default(),
            ghosts: Found::default(),
            duplicated: self.duplicated,
            out_of_order: self.out_of_order,
            waiting: 0,
            discarded: 0,
            beyond_retention: 0,
            unchecked: 0,
            older: self.older,
            foreign: self.foreign,
        };
        for row in &self.rows {
            match row.state {
                State::Found => {}
                State::Waiting => report.waiting += 1,
                State::Discarded => report.discarded += 1,
                State::Unchecked => report.unchecked += 1,
                State::Missing if kept_since.is_some_and(|since| row.written_at < since) => {
                    report.beyond_retention += 1;
                }
                State::Missing => report.lost.add(row.id, None),
            }
        }
        let mut ghosts: Vec<_> = self.unknown.into_iter().collect();
        ghosts.sort_unstable_by_key(|(id, _)| *id);
        for (id, kept) in ghosts {
            report.ghosts.add(id, Some(format!("{} {}", kept.topic, kept.place)));
        }
        report
    }
}

/// When an event was made, if its id says so.
fn written_at(id: Uuid) -> Option<SystemTime> {
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    Some(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos))
}

/// There is memory for fewer.
fn index(count: usize) -> u32 {
    u32::try_from(count).expect("four billion events do not fit into memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn expected(number: u128, key: &str) -> Expected {
        Expected {
            id: id(number),
            key: Key { aggregate_type: "Order".into(), aggregate_id: key.into() },
            is_out_of_line: false,
            written_at: SystemTime::UNIX_EPOCH + Duration::from_secs(100),
        }
    }

    fn kept(number: u128, place: &str) -> Kept {
        let (id, topic, place) = (Some(id(number)), "orders".into(), place.into());
        Kept { id, topic, place, sent_at: None, is_replay: false }
    }

    #[test]
    fn a_faultless_broker_has_each_event_once_and_in_order() {
        let mut comparison = Comparison::default();
        for number in 1..=4 {
            comparison.expect(expected(number, if number % 2 == 0 { "a" } else { "b" }));
        }
        // Keys have no order between them.
        for number in [2, 4, 1, 3] {
            comparison.find(kept(number, "0@1"));
        }
        let report = comparison.into_report(None);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.expected, report.kept, report.duplicated.count), (4, 4, 0));
    }

    #[test]
    fn each_fault_is_found_with_its_place() {
        let mut comparison = Comparison::default();
        for number in 1..=5 {
            comparison.expect(expected(number, "a"));
        }
        comparison.expect(expected(6, "a"));
        for (number, place) in [(1, "0@0"), (3, "0@1"), (2, "0@2"), (3, "0@3"), (5, "0@4")] {
            comparison.find(kept(number, place));
        }
        comparison.find(kept(77, "0@5"));
        comparison.find(kept(78, "0@6"));
        comparison.find(Kept { id: None, ..kept(0, "0@7") });
        assert_eq!(comparison.unknown(), [id(77), id(78)]);
        assert_eq!(comparison.missing(), [id(4), id(6)]);
        comparison.waits(id(6));
        comparison.known_after_all(id(78));
        let report = comparison.into_report(None);
        assert!(!report.is_clean());
        let found = |number, place: Option<&str>| Found {
            count: 1,
            examples: vec![(id(number), place.map(str::to_owned))],
        };
        assert_eq!(report.lost, found(4, None));
        assert_eq!(report.ghosts, found(77, Some("orders 0@5")));
        assert_eq!(report.duplicated, found(3, Some("0@3")));
        assert_eq!(report.out_of_order, found(2, Some("0@2")));
        assert_eq!((report.waiting, report.foreign, report.kept), (1, 1, 8));
    }

    #[test]
    fn what_the_broker_no_longer_keeps_is_not_lost() {
        let mut comparison = Comparison::default();
        comparison.expect(expected(1, "a"));
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(101);
        let report = comparison.into_report(Some(later));
        assert!(report.is_clean());
        assert_eq!(report.beyond_retention, 1);
    }

    #[test]
    fn what_was_set_aside_may_come_later() {
        let mut comparison = Comparison::default();
        comparison.expect(Expected { is_out_of_line: true, ..expected(1, "a") });
        comparison.expect(expected(2, "a"));
        for number in [2, 1] {
            comparison.find(kept(number, "0@1"));
        }
        assert!(comparison.into_report(None).is_clean());
    }

    #[test]
    fn what_came_while_it_was_looked_at_is_neither_lost_nor_a_ghost() {
        let mut comparison = Comparison::default();
        comparison.expect(expected(1, "a"));
        comparison.expect(expected(2, "a"));
        comparison.leave_unchecked(id(2));
        comparison.find_again(&kept(1, "0@1"));
        let old = Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 50, 0));
        let young = Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 150, 0));
        for id in [old, young] {
            comparison.find(Kept { id: Some(id), ..kept(0, "0@2") });
        }
        comparison.forget_unknown_before(SystemTime::UNIX_EPOCH + Duration::from_secs(100));
        assert_eq!(comparison.unknown(), [young]);
        comparison.known_after_all(young);
        let report = comparison.into_report(None);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.unchecked, report.older), (1, 1));
    }
}
