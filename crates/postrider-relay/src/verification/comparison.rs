//! The comparison of what was written with what a broker keeps, event by event.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::{Duration, SystemTime};

use postrider::Key;
use uuid::Uuid;

use crate::events::Fate;
use crate::readback::{Kept, Unreadable};
use crate::sink::SinkError;

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
    /// Where the pipeline publishes it.
    pub topic: String,
    /// What had become of it in the pipeline before the broker was read.
    pub fate: Fate,
    /// When it was written.
    pub written_at: SystemTime,
}

/// Compares what was [expected](Self::expect) with what was [found](Self::find).
#[derive(Debug, Default)]
pub struct Comparison {
    rows: Vec<Row>,
    by_id: HashMap<Uuid, u32>,
    keys: HashMap<Key, u32>,
    topics: HashMap<String, u32>,
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
    topic: u32,
    is_out_of_line: bool,
    is_found: bool,
    fate: Fate,
    written_at: SystemTime,
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
    /// Published, to topics that could not be read.
    pub unreadable: Vec<NotRead>,
    /// Not published yet, and not there.
    pub waiting: u64,
    /// Discarded by an operator, and not there.
    pub discarded: u64,
    /// Not published by this pipeline, and not there: another pipeline published them, or they were
    /// there before it began, or it did not match their type.
    pub not_its_own: u64,
    /// Published, and older than what the broker still keeps.
    pub beyond_retention: u64,
    /// There, and older than what the outbox still has.
    pub older: u64,
    /// Messages that are no relay's.
    pub foreign: u64,
}

/// Events that could not be looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotRead {
    /// Their topic.
    pub topic: String,
    /// How many there are.
    pub events: u64,
    /// Why it could not be read.
    pub error: SinkError,
}

impl Report {
    /// Whether everything could be looked for and nothing is wrong. Duplicates are what at least
    /// once means.
    pub fn is_clean(&self) -> bool {
        !self.differs() && self.unreadable.is_empty()
    }

    /// Whether the broker does not have what it should.
    pub fn differs(&self) -> bool {
        self.lost.count > 0 || self.ghosts.count > 0 || self.out_of_order.count > 0
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
        let Expected { id, key, is_out_of_line, topic, fate, written_at } = expected;
        let count = index(self.keys.len());
        let key = *self.keys.entry(key).or_insert(count);
        let count = index(self.topics.len());
        let topic = *self.topics.entry(topic).or_insert(count);
        let rank = index(self.rows.len());
        if self.by_id.insert(id, rank).is_none() {
            let is_found = false;
            self.rows.push(Row { id, key, topic, is_out_of_line, is_found, fate, written_at });
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
        if row.is_found {
            self.duplicated.add(id, Some(kept.place));
            return;
        }
        row.is_found = true;
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

    /// Whether anything is missing that was published.
    pub fn is_any_missing(&self) -> bool {
        self.rows.iter().any(|row| !row.is_found && row.fate == Fate::Published)
    }

    /// Notes a message that is read for a second time, to find what is missing.
    pub fn find_again(&mut self, kept: &Kept) {
        if let Some(rank) = kept.id.and_then(|id| self.by_id.get(&id)) {
            self.rows[*rank as usize].is_found = true;
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

    /// What was found, if the broker keeps everything since this time and these topics could not be
    /// read.
    pub fn into_report(self, kept_since: Option<SystemTime>, unreadable: &[Unreadable]) -> Report {
        let mut report = Report {
            expected: self.rows.len() as u64,
            kept: self.kept,
            lost: Found::default(),
            ghosts: Found::default(),
            duplicated: self.duplicated,
            out_of_order: self.out_of_order,
            unreadable: Vec::new(),
            waiting: 0,
            discarded: 0,
            not_its_own: 0,
            beyond_retention: 0,
            older: self.older,
            foreign: self.foreign,
        };
        let of_topic = |it: &Unreadable| Some((*self.topics.get(&it.topic)?, 0));
        let mut not_read: HashMap<u32, u64> = unreadable.iter().filter_map(of_topic).collect();
        for row in self.rows.iter().filter(|row| !row.is_found) {
            match row.fate {
                Fate::Waiting | Fate::SetAside => report.waiting += 1,
                Fate::Discarded => report.discarded += 1,
                Fate::NotItsOwn => report.not_its_own += 1,
                Fate::Published => match not_read.get_mut(&row.topic) {
                    Some(events) => *events += 1,
                    None if kept_since.is_some_and(|since| row.written_at < since) => {
                        report.beyond_retention += 1;
                    }
                    None => report.lost.add(row.id, None),
                },
            }
        }
        report.unreadable = unreadable
            .iter()
            .map(|Unreadable { topic, error }| {
                let events = self.topics.get(topic).and_then(|index| not_read.get(index));
                let events = events.copied().unwrap_or(0);
                NotRead { topic: topic.clone(), events, error: error.clone() }
            })
            .collect();
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
            topic: "orders".into(),
            fate: Fate::Published,
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
        let report = comparison.into_report(None, &[]);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.expected, report.kept, report.duplicated.count), (4, 4, 0));
    }

    #[test]
    fn each_fault_is_found_with_its_place() {
        let mut comparison = Comparison::default();
        for number in 1..=5 {
            comparison.expect(expected(number, "a"));
        }
        comparison.expect(Expected { fate: Fate::Waiting, ..expected(6, "a") });
        for (number, place) in [(1, "0@0"), (3, "0@1"), (2, "0@2"), (3, "0@3"), (5, "0@4")] {
            comparison.find(kept(number, place));
        }
        comparison.find(kept(77, "0@5"));
        comparison.find(kept(78, "0@6"));
        comparison.find(Kept { id: None, ..kept(0, "0@7") });
        assert_eq!(comparison.unknown(), [id(77), id(78)]);
        assert!(comparison.is_any_missing());
        comparison.known_after_all(id(78));
        let report = comparison.into_report(None, &[]);
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
        let report = comparison.into_report(Some(later), &[]);
        assert!(report.is_clean());
        assert_eq!(report.beyond_retention, 1);
    }

    #[test]
    fn what_the_pipeline_never_published_is_not_lost() {
        let mut comparison = Comparison::default();
        let fates = [Fate::NotItsOwn, Fate::Discarded, Fate::Waiting, Fate::NotItsOwn];
        for (number, fate) in (1..).zip(fates) {
            comparison.expect(Expected { fate, ..expected(number, "a") });
        }
        // Another pipeline has published it, to the same topic.
        comparison.find(kept(4, "0@0"));
        assert!(!comparison.is_any_missing());
        let report = comparison.into_report(None, &[]);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.not_its_own, report.discarded, report.waiting), (1, 1, 1));
    }

    #[test]
    fn what_could_not_be_looked_for_is_neither_lost_nor_clean() {
        let mut comparison = Comparison::default();
        comparison.expect(expected(1, "a"));
        comparison.expect(Expected { topic: "closed".into(), ..expected(2, "b") });
        comparison.find(kept(1, "0@0"));
        let error = SinkError::of_topic("there is no topic closed");
        let unreadable = Unreadable { topic: "closed".into(), error: error.clone() };
        let report = comparison.into_report(None, &[unreadable]);
        assert!(!report.differs() && !report.is_clean(), "{report:?}");
        assert_eq!(report.unreadable, [NotRead { topic: "closed".into(), events: 1, error }]);
    }

    #[test]
    fn what_was_set_aside_may_come_later() {
        let mut comparison = Comparison::default();
        comparison.expect(Expected { is_out_of_line: true, ..expected(1, "a") });
        comparison.expect(expected(2, "a"));
        for number in [2, 1] {
            comparison.find(kept(number, "0@1"));
        }
        assert!(comparison.into_report(None, &[]).is_clean());
    }

    #[test]
    fn what_came_while_it_was_looked_at_is_neither_lost_nor_a_ghost() {
        let mut comparison = Comparison::default();
        comparison.expect(expected(1, "a"));
        comparison.expect(Expected { fate: Fate::SetAside, ..expected(2, "a") });
        comparison.find_again(&kept(1, "0@1"));
        assert!(!comparison.is_any_missing());
        let old = Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 50, 0));
        let young = Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, 150, 0));
        for id in [old, young] {
            comparison.find(Kept { id: Some(id), ..kept(0, "0@2") });
        }
        comparison.forget_unknown_before(SystemTime::UNIX_EPOCH + Duration::from_secs(100));
        assert_eq!(comparison.unknown(), [young]);
        comparison.known_after_all(young);
        let report = comparison.into_report(None, &[]);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.waiting, report.older), (1, 1));
    }
}
