//! Which events were published last: the ids of each transaction, in a compacted topic.
//!
//! Each transaction writes one record, whose key is the producer's name and a *place*. A place is
//! used again once the transactions after it hold as many ids as the window, so the topic stays
//! small: about as many ids as the window for each shard of a pipeline.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use uuid::Uuid;

/// What one transaction has noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
}

/// The places that hold the last ids.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// From the oldest on: a place, and how many ids it holds.
    used: VecDeque<(u32, usize)>,
    free: BTreeSet<u32>,
    number: u64,
    window: usize,
    /// What the open transaction has noted.
    noted: Option<(u32, usize)>,
}

impl Progress {
    /// Goes on from what a topic holds. Also answers the ids that may come back.
    pub(super) fn after(found: Vec<(String, Vec<u8>)>, window: usize) -> (Self, HashSet<Uuid>) {
        let mut places = BTreeMap::new();
        for (key, value) in found {
            let place = key.rsplit_once('/').and_then(|(_, place)| place.parse::<u32>().ok());
            let Some((place, (number, ids))) = place.zip(read(&value)) else { continue };
            // The last record of a place is the one that counts.
            places.insert(place, (number, ids));
        }
        let mut by_number: Vec<_> =
            places.into_iter().map(|(place, (number, ids))| (number, place, ids)).collect();
        by_number.sort_unstable_by_key(|(number, ..)| *number);
        let number = by_number.last().map_or(0, |(number, ..)| *number);
        let used: VecDeque<_> =
            by_number.iter().map(|(_, place, ids)| (*place, ids.len())).collect();
        let highest = used.iter().map(|(place, _)| *place + 1).max().unwrap_or(0);
        let taken: BTreeSet<_> = used.iter().map(|(place, _)| *place).collect();
        let free = (0..highest).filter(|place| !taken.contains(place)).collect();
        let ids = by_number.into_iter().flat_map(|(_, _, ids)| ids).collect();
        (Self { used, free, number, window, noted: None }, ids)
    }

    /// The record for a transaction that publishes these events.
    pub(super) fn note(&mut self, name: &str, ids: &[Uuid]) -> Note {
        let place = self.place();
        self.number += 1;
        self.noted = Some((place, ids.len()));
        let mut value = Vec::with_capacity(8 + 16 * ids.len());
        value.extend_from_slice(&self.number.to_be_bytes());
        ids.iter().for_each(|id| value.extend_from_slice(id.as_bytes()));
        Note { key: format!("{name}/{place}"), value }
    }

    /// Takes in that the transaction was committed.
    pub(super) fn keep(&mut self) {
        if let Some((place, ids)) = self.noted.take() {
            self.free.remove(&place);
            self.used.push_back((place, ids));
        }
    }

    /// A place for the next transaction: it stays free until that is committed.
    fn place(&mut self) -> u32 {
        let mut held: usize = self.used.iter().map(|(_, ids)| ids).sum();
        while let Some((place, ids)) = self.used.front().copied() {
            // Without the oldest, the others still hold as many as may come back.
            if held - ids < self.window {
                break;
            }
            held -= ids;
            self.used.pop_front();
            self.free.insert(place);
        }
        let next = u32::try_from(self.used.len() + self.free.len()).unwrap_or(u32::MAX);
        self.free.first().copied().unwrap_or(next)
    }
}

fn read(value: &[u8]) -> Option<(u64, Vec<Uuid>)> {
    let (number, ids) = value.split_first_chunk::<8>()?;
    let (ids, []) = ids.as_chunks::<16>() else { return None };
    Some((u64::from_be_bytes(*number), ids.iter().map(|id| Uuid::from_bytes(*id)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: std::ops::Range<u128>) -> Vec<Uuid> {
        numbers.map(Uuid::from_u128).collect()
    }

    /// A topic that was compacted at once.
    #[derive(Default)]
    struct Topic(BTreeMap<String, Vec<u8>>);

    impl Topic {
        fn found(&self) -> Vec<(String, Vec<u8>)> {
            self.0.clone().into_iter().collect()
        }

        fn publish(&mut self, progress: &mut Progress, ids: &[Uuid]) {
            let note = progress.note("p", ids);
            self.0.insert(note.key, note.value);
            progress.keep();
        }
    }

    #[test]
    fn the_last_ids_are_kept_and_the_topic_stays_small() {
        for size in [1_u128, 3, 7, 40] {
            let window = 20;
            let (mut topic, mut progress) = (Topic::default(), Progress::after(vec![], window).0);
            for call in 0..200 {
                let published = ids(call * size..(call + 1) * size);
                topic.publish(&mut progress, &published);
                let all = (call + 1) * size;
                let (again, known) = Progress::after(topic.found(), window);
                let last = ids(all.saturating_sub(20)..all);
                assert!(last.iter().all(|id| known.contains(id)), "{size} at {call}");
                assert!(known.len() <= window + 2 * size as usize, "{size}: {}", known.len());
                // A relay may die at any moment, and another one goes on.
                if call % 5 == 0 {
                    progress = again;
                }
            }
            assert!(topic.0.len() <= window + 2, "{size}: {}", topic.0.len());
        }
    }

    #[test]
    fn what_was_not_committed_takes_no_place() {
        let mut progress = Progress::after(vec![], 10).0;
        let first = progress.note("p", &ids(0..5));
        let second = progress.note("p", &ids(0..5));
        assert_eq!(first.key, second.key);
        progress.keep();
        assert_ne!(progress.note("p", &ids(5..6)).key, first.key);
    }

    #[test]
    fn what_is_no_note_is_passed_over() {
        let found = vec![
            ("p/0".to_owned(), vec![0; 7]),
            ("p/x".to_owned(), vec![0; 24]),
            ("p".to_owned(), vec![0; 24]),
            ("p/1".to_owned(), vec![0; 25]),
        ];
        assert!(Progress::after(found, 10).1.is_empty());
    }
}
