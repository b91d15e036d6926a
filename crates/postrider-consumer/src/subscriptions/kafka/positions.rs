//! How far each partition is done with.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A topic and one of its partitions.
type Partition = (Arc<str>, i32);

/// The partitions that are read.
#[derive(Debug, Default)]
pub(super) struct Positions {
    partitions: HashMap<Partition, Position>,
    assignments: u64,
}

#[derive(Debug)]
struct Position {
    /// Which assignment it is.
    assignment: u64,
    /// Received and not done with.
    open: BTreeSet<i64>,
    /// The offset after the last one that was received.
    next: i64,
}

impl Positions {
    /// Takes in a record. One that stands before the last one begins a new assignment: the topic
    /// was made anew, or has lost its end to another leader.
    pub(super) fn received(
        &mut self,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> (Partition, u64) {
        let known = self.partitions.keys().find(|key| key.1 == partition && *key.0 == *topic);
        let key = known.cloned().unwrap_or_else(|| (Arc::from(topic), partition));
        let assignments = &mut self.assignments;
        let mut begin = || {
            *assignments += 1;
            Position { assignment: *assignments, open: BTreeSet::new(), next: offset }
        };
        let position = self.partitions.entry(key.clone()).or_insert_with(&mut begin);
        if offset < position.next {
            *position = begin();
        }
        position.open.insert(offset);
        position.next = offset + 1;
        (key, position.assignment)
    }

    /// Takes in what is done with; answers where each of these partitions would go on.
    pub(super) fn done<'h>(
        &mut self,
        handles: impl Iterator<Item = (&'h Partition, i64, u64)>,
    ) -> HashMap<Partition, i64> {
        let mut moved = HashMap::new();
        for (key, offset, assignment) in handles {
            let position = self.partitions.get_mut(key);
            let Some(position) = position.filter(|one| one.assignment == assignment) else {
                continue;
            };
            if position.open.remove(&offset) {
                let first_open = position.open.first().copied();
                moved.insert(key.clone(), first_open.unwrap_or(position.next));
            }
        }
        moved
    }

    pub(super) fn is_current(&self, key: &Partition, assignment: u64) -> bool {
        self.partitions.get(key).is_some_and(|position| position.assignment == assignment)
    }

    /// Forgets a partition that goes to another member.
    pub(super) fn revoked(&mut self, topic: &str, partition: i32) {
        self.partitions.retain(|key, _| !(key.1 == partition && *key.0 == *topic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(positions: &mut Positions, key: &Partition, offset: i64, assignment: u64) -> Vec<i64> {
        positions.done([(key, offset, assignment)].into_iter()).into_values().collect()
    }

    #[test]
    fn a_partition_moves_up_to_the_first_record_that_is_open() {
        let mut positions = Positions::default();
        let (key, assignment) = positions.received("orders", 3, 10);
        positions.received("orders", 3, 11);
        positions.received("orders", 3, 15);
        assert_eq!(done(&mut positions, &key, 15, assignment), [10], "10 is open");
        assert_eq!(done(&mut positions, &key, 10, assignment), [11]);
        assert_eq!(done(&mut positions, &key, 11, assignment), [16]);
        assert_eq!(done(&mut positions, &key, 11, assignment), [0; 0], "it was done before");
    }

    #[test]
    fn what_was_received_before_a_partition_came_back_counts_no_longer() {
        let mut positions = Positions::default();
        let (key, before) = positions.received("orders", 3, 10);
        positions.revoked("orders", 3);
        assert!(!positions.is_current(&key, before));
        let (_, after) = positions.received("orders", 3, 10);
        assert_ne!(before, after);
        assert_eq!(done(&mut positions, &key, 10, before), [0; 0]);
        assert_eq!(done(&mut positions, &key, 10, after), [11]);
    }

    #[test]
    fn what_comes_again_begins_anew() {
        let mut positions = Positions::default();
        let (key, before) = positions.received("orders", 3, 10);
        positions.received("orders", 3, 11);
        let (_, after) = positions.received("orders", 3, 10);
        assert!(!positions.is_current(&key, before));
        assert_eq!(done(&mut positions, &key, 11, before), [0; 0]);
        assert_eq!(done(&mut positions, &key, 10, after), [11]);
    }
}
