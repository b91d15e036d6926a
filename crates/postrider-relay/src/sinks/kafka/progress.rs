//! Which events were published last: the ids of each transaction, in a compacted topic.
//!
//! Each transaction writes one record, whose key is the producer's name and a *place*. A place is
//! used again once the transactions after it hold as many ids as the window, so what compaction
//! leaves is small: at most as many places as the window, for each shard of a pipeline.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::{Duration, Instant};

use uuid::Uuid;

/// What a batch takes besides the key and the value of its only record, and a bit more.
const BATCH_OVERHEAD: usize = 128;
/// The longest number of a place, with a slash.
const PLACE_BYTES: usize = 11;

/// What one transaction has noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
}

impl Note {
    /// How large the batch of a note is at most.
    pub(super) fn batch_bytes_max(name: &str, ids: usize) -> usize {
        BATCH_OVERHEAD + name.len() + PLACE_BYTES + 8 + 16 * ids
    }
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
    /// Goes on from what a topic holds, one record for each key. Also answers the ids that may
    /// come back: of the last transactions, as many as hold a window.
    pub(super) fn after(
        found: impl IntoIterator<Item = (String, Vec<u8>)>,
        window: usize,
    ) -> (Self, HashSet<Uuid>) {
        let mut places = BTreeMap::new();
        for (key, value) in found {
            let place = key.rsplit_once('/').and_then(|(_, place)| place.parse::<u32>().ok());
            let Some((place, (number, ids))) = place.zip(read(&value)) else { continue };
            places.insert(place, (number, ids));
        }
        let highest = places.last_key_value().map_or(0, |(place, _)| place.saturating_add(1));
        let mut by_number: Vec<_> =
            places.into_iter().map(|(place, (number, ids))| (number, place, ids)).collect();
        by_number.sort_unstable_by_key(|(number, ..)| *number);
        let number = by_number.last().map_or(0, |(number, ..)| *number);
        let (mut used, mut ids) = (VecDeque::new(), HashSet::new());
        // A place that is free keeps its ids in the topic until it is used again: they are old.
        for (_, place, of_place) in by_number.into_iter().rev() {
            if ids.len() >= window {
                break;
            }
            used.push_front((place, of_place.len()));
            ids.extend(of_place);
        }
        let taken: BTreeSet<_> = used.iter().map(|(place, _)| *place).collect();
        let free = (0..highest).filter(|place| !taken.contains(place)).collect();
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

/// What was published before a producer began. Of it comes back what was not settled; what was is
/// forgotten after a while, so that nobody is kept from publishing it anew.
#[derive(Debug)]
pub(super) struct Returning {
    ids: HashSet<Uuid>,
    /// As many newer ids have to be noted first: no more events are under way than those.
    newer: usize,
    /// And so long has to pass: what was set aside comes back at its time.
    horizon: Duration,
    since: Instant,
}

impl Returning {
    pub(super) fn new(
        ids: HashSet<Uuid>,
        window: usize,
        horizon: Duration,
        since: Instant,
    ) -> Self {
        Self { ids, newer: window, horizon, since }
    }

    pub(super) fn contains(&self, id: &Uuid) -> bool {
        self.ids.contains(id)
    }

    /// Takes in that one of them was answered.
    pub(super) fn answered(&mut self, id: &Uuid) {
        self.ids.remove(id);
    }

    /// Takes in that so many newer ids were noted.
    pub(super) fn noted(&mut self, ids: usize) {
        self.newer = self.newer.saturating_sub(ids);
    }

    /// Forgets all of them if it is time.
    pub(super) fn forget(&mut self, now: Instant) {
        if self.newer == 0 && now.saturating_duration_since(self.since) >= self.horizon {
            self.ids = HashSet::new();
        }
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
                assert!(known.len() < window + size as usize, "{size}: {}", known.len());
                // A relay may die at any moment, and another one goes on.
                if call % 5 == 0 {
                    progress = again;
                }
            }
            assert!(topic.0.len() <= window + 2, "{size}: {}", topic.0.len());
        }
    }

    /// Many small transactions, then a large one, again and again: ids stay in places that are
    /// free, and are none of the last.
    #[test]
    fn ids_of_places_that_are_free_do_not_come_back() {
        let (mut topic, mut progress) = (Topic::default(), Progress::after(vec![], 20).0);
        let mut next = 0;
        for small in [15, 9, 4, 0] {
            for size in std::iter::repeat_n(1, small).chain([30]) {
                topic.publish(&mut progress, &ids(next..next + size));
                next += size;
            }
        }
        let held: usize = topic.0.values().map(|value| value.len() / 16).sum();
        assert!(held > 60, "{held}");
        let (again, known) = Progress::after(topic.found(), 20);
        assert_eq!(known, ids(next - 30..next).into_iter().collect());
        assert_eq!(again.used.len() + again.free.len(), topic.0.len());
    }

    #[test]
    fn what_does_not_come_back_is_forgotten_after_a_window_and_a_while() {
        let (start, horizon) = (Instant::now(), Duration::from_secs(500));
        let (known, id) = (ids(0..3), Uuid::from_u128(1));
        let mut returning = Returning::new(known.into_iter().collect(), 10, horizon, start);
        returning.noted(9);
        returning.forget(start + horizon);
        assert!(returning.contains(&id), "one more may be under way");
        returning.noted(2);
        returning.forget(start + horizon / 2);
        assert!(returning.contains(&id), "it may be set aside");
        returning.answered(&Uuid::from_u128(2));
        assert!(!returning.contains(&Uuid::from_u128(2)));
        returning.forget(start + horizon);
        assert!(!returning.contains(&id));
    }

    #[test]
    fn no_note_is_larger_than_was_said() {
        let mut progress = Progress::after(vec![], 10).0;
        let note = progress.note("postrider/orders", &ids(0..4096));
        let most = Note::batch_bytes_max("postrider/orders", 4096);
        assert!(note.key.len() + note.value.len() + 61 + 41 <= most);
        assert_eq!(PLACE_BYTES, format!("/{}", u32::MAX).len());
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
