//! Which records of a call may be under way together.
//!
//! A broker takes or refuses a batch as one, and may take the next batch after it has refused one.
//! So several records of one key go together only if they are sure to be in one batch: they have
//! one place, and all records of their topic that go with them fit into a batch. Those that do
//! not go with this *wave* go with the next one, once this one is durable.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use postrider::Key;

/// What librdkafka writes before the records of a batch, and counts as a part of it.
const REQUEST_OVERHEAD: usize = 1024;
/// Smaller batches are not filled by several records of a key.
const BATCH_BYTES_MIN: usize = 2 * REQUEST_OVERHEAD;

/// A record, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// Records with the same one keep their order.
    pub(super) lane: &'a Key,
    pub(super) place: Place<'a>,
    pub(super) bytes: usize,
}

/// What decides about the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) topic: &'a str,
    pub(super) key: &'a str,
    pub(super) partition: Option<i32>,
}

/// How many bytes all records of a topic may have in a wave in which several are of one key;
/// `None` if batches are too small for that.
pub(super) fn room(batch_bytes: usize) -> Option<usize> {
    (batch_bytes >= BATCH_BYTES_MIN).then(|| batch_bytes - REQUEST_OVERHEAD)
}

/// Takes the next wave out of the records that are left, by their places among all records.
/// `room` is the [room](room) of a topic; without one, there is one record of each key.
pub(super) fn next_wave<'a>(
    items: &[Option<Item<'a>>],
    left: &mut Vec<usize>,
    room: impl Fn(&str) -> Option<usize>,
) -> Vec<usize> {
    let mut places: HashMap<&Key, Option<Place<'a>>> = HashMap::new();
    let mut rooms: HashMap<&str, Option<usize>> = HashMap::new();
    let mut wave = Vec::with_capacity(left.len());
    left.retain(|index| {
        let Some(item) = &items[*index] else { return false };
        let topic = item.place.topic;
        let is_first_of_topic = !rooms.contains_key(topic);
        let left = rooms.entry(topic).or_insert_with(|| room(topic));
        let goes = match (places.entry(item.lane), left) {
            (Entry::Vacant(_), _) if is_first_of_topic => true,
            (Entry::Vacant(_), None) => true,
            (Entry::Vacant(_), Some(left)) => item.bytes <= *left,
            (Entry::Occupied(_), None) => false,
            (Entry::Occupied(place), Some(left)) => {
                *place.get() == Some(item.place) && item.bytes <= *left
            }
        };
        if goes {
            if let Some(Some(left)) = rooms.get_mut(topic) {
                *left = left.saturating_sub(item.bytes);
            }
            wave.push(*index);
        }
        // What is behind a record that does not go, does not go either.
        places.insert(item.lane, goes.then_some(item.place));
        !goes
    });
    wave
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waves(records: &[(&str, &str, usize)], room: Option<usize>) -> Vec<Vec<usize>> {
        let keys: Vec<Key> = records
            .iter()
            .map(|(key, ..)| {
                let event = postrider::Event::builder("Order", *key, "OrderPaid");
                event.payload("x", "text/plain").build().unwrap().key().clone()
            })
            .collect();
        let items: Vec<_> = records
            .iter()
            .zip(&keys)
            .map(|((key, topic, bytes), lane)| {
                let place = Place { topic, key, partition: None };
                Some(Item { lane, place, bytes: *bytes })
            })
            .collect();
        let mut left: Vec<usize> = (0..items.len()).collect();
        let mut waves = Vec::new();
        while !left.is_empty() {
            waves.push(next_wave(&items, &mut left, |_| room));
            assert!(!waves.last().unwrap().is_empty(), "there is an end");
        }
        waves
    }

    #[test]
    fn records_of_a_key_go_together_as_far_as_a_batch_holds_them() {
        let key = ("a", "t", 10);
        assert_eq!(waves(&[key; 5], Some(50)), [[0, 1, 2, 3, 4]]);
        assert_eq!(waves(&[key; 5], Some(25)), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(waves(&[key; 3], None), [[0], [1], [2]], "no batch is sure to hold two");
        assert_eq!(waves(&[key; 3], Some(1)), [[0], [1], [2]], "one goes whatever its size");
    }

    #[test]
    fn nothing_overtakes_a_record_of_its_key() {
        // The large one does not fit, and so neither may go what is behind it.
        let records = [("a", "t", 10), ("a", "t", 90), ("a", "t", 10), ("b", "t", 10)];
        assert_eq!(waves(&records, Some(50)), [vec![0, 3], vec![1], vec![2]]);
        // Another topic is another batch.
        let records = [("a", "t", 10), ("a", "u", 10), ("a", "t", 10), ("b", "u", 10)];
        assert_eq!(waves(&records, Some(50)), [vec![0, 3], vec![1], vec![2]]);
    }

    #[test]
    fn a_topic_shares_its_room_among_all_keys() {
        let records = [("a", "t", 30), ("b", "t", 30), ("a", "t", 20), ("c", "u", 50)];
        assert_eq!(waves(&records, Some(50)), [vec![0, 2, 3], vec![1]]);
    }

    #[test]
    fn small_batches_hold_one_record() {
        assert_eq!(room(1), None);
        assert_eq!(room(2047), None);
        assert_eq!(room(1_000_000), Some(998_976));
    }
}
