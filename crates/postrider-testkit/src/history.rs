//! The history of a run, and what was wrong with it.
//!
//! Writers note what was committed, sinks note every arrival, and the end of the run notes what
//! is left with the operator. [`History::check`] then decides: nothing lost (G-01), no ghost
//! (G-02), the order of first arrivals per key (G-03), the number of duplicates (G-04).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What happened in a run. Events are named by numbers of the caller's choosing.
#[derive(Clone, Debug, Default)]
pub struct History {
    committed: BTreeMap<u64, Place>,
    arrivals: Vec<u64>,
    with_operator: BTreeSet<u64>,
    /// How many arrivals may have been repeated by the faults of the run.
    pub duplicates_allowed: usize,
}

/// Where an event stands in the order of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The key.
    pub key: u64,
    /// The event's number within the key; `None` if it has left the order.
    pub number: Option<u64>,
}

impl History {
    /// Notes that a transaction with this event was committed.
    pub fn committed(&mut self, event: u64, place: Place) {
        self.committed.insert(event, place);
    }

    /// Notes that the sink received the event.
    pub fn arrived(&mut self, event: u64) {
        self.arrivals.push(event);
    }

    /// Notes that the event stands in the dead letters, waits behind one, or was discarded.
    pub fn left_with_operator(&mut self, event: u64) {
        self.with_operator.insert(event);
    }

    /// Takes an event out of the order of its key.
    pub fn left_the_order(&mut self, event: u64) {
        if let Some(place) = self.committed.get_mut(&event) {
            place.number = None;
        }
    }

    /// Whether the event has arrived.
    pub fn has_arrived(&self, event: u64) -> bool {
        self.arrivals.contains(&event)
    }

    /// Everything that was wrong.
    pub fn check(&self) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        let mut duplicates = 0;
        let mut last: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for event in &self.arrivals {
            let Some(place) = self.committed.get(event) else {
                wrong.push(Wrong::Ghost { event: *event });
                continue;
            };
            if !seen.insert(*event) {
                duplicates += 1;
                continue;
            }
            let Some(number) = place.number else { continue };
            if let Some((before, number_before)) = last.insert(place.key, (*event, number))
                && number_before > number
            {
                wrong.push(Wrong::OutOfOrder { event: *event, before, key: place.key });
            }
        }
        for event in self.committed.keys() {
            if !seen.contains(event) && !self.with_operator.contains(event) {
                wrong.push(Wrong::Lost { event: *event });
            }
        }
        if duplicates > self.duplicates_allowed {
            let allowed = self.duplicates_allowed;
            wrong.push(Wrong::TooManyDuplicates { duplicates, allowed });
        }
        wrong
    }
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A committed event never arrived, and no operator knows of it.
    Lost {
        /// The event.
        event: u64,
    },
    /// An event arrived that was never committed.
    Ghost {
        /// The event.
        event: u64,
    },
    /// An event arrived first after a later one of its key.
    OutOfOrder {
        /// The event that came too late.
        event: u64,
        /// The one that came before it.
        before: u64,
        /// Their key.
        key: u64,
    },
    /// Events arrived again more often than the faults explain.
    TooManyDuplicates {
        /// How often.
        duplicates: usize,
        /// How many the faults explain.
        allowed: usize,
    },
    /// Something else.
    Broken(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { event } => write!(f, "event {event} was lost"),
            Self::Ghost { event } => write!(f, "event {event} arrived and was never committed"),
            Self::OutOfOrder { event, before, key } => {
                write!(f, "event {event} of key {key} arrived after {before}, a later one")
            }
            Self::TooManyDuplicates { duplicates, allowed } => {
                write!(f, "{duplicates} duplicates, the faults explain {allowed}")
            }
            Self::Broken(what) => f.write_str(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(arrivals: &[u64]) -> History {
        let mut history = History::default();
        for event in 1..=3 {
            history.committed(event, Place { key: 7, number: Some(event) });
        }
        arrivals.iter().for_each(|event| history.arrived(*event));
        history
    }

    #[test]
    fn a_clean_history_has_nothing_wrong() {
        assert_eq!(history(&[1, 2, 3]).check(), []);
    }

    #[test]
    fn each_wrong_is_found() {
        assert_eq!(history(&[1, 3]).check(), [Wrong::Lost { event: 2 }]);
        assert_eq!(history(&[1, 2, 3, 4]).check(), [Wrong::Ghost { event: 4 }]);
        assert_eq!(
            history(&[2, 1, 3]).check(),
            [Wrong::OutOfOrder { event: 1, before: 2, key: 7 }]
        );
        assert_eq!(
            history(&[1, 2, 1, 3]).check(),
            [Wrong::TooManyDuplicates { duplicates: 1, allowed: 0 }]
        );
    }

    #[test]
    fn a_dead_letter_is_not_lost_and_a_repeated_first_event_is_in_order() {
        let mut history = history(&[1, 2, 1, 2]);
        history.left_with_operator(3);
        history.duplicates_allowed = 2;
        assert_eq!(history.check(), []);
    }
}
