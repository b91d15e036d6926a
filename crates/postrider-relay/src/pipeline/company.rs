//! Finds the one among several messages that were refused together.
//!
//! A broker may refuse a whole batch because of one record, and a connection may die of one
//! message while others are under way. The sink then answers *in company*
//! ([`SinkError::in_company`](crate::failure::SinkError::in_company)) and nothing is counted
//! against these events. They keep their places, their lanes become suspect, and go in calls of
//! their own, one at a time: half as many events after each refusal, twice as many after each
//! success. A call of one event is made while nothing else is under way: what is answered then
//! is that event's own answer. So the one to blame is found after about twice the logarithm of
//! their number of calls, and the others arrive.
//!
//! # Connections that die
//!
//! A connection that the server closes while messages are under way is such a refusal, of the kind
//! *unavailable*. It may be because of one of them, or because the server ends. So an event on which
//! a connection died while it was alone is *deadly* only as far as others prove the server well:
//!
//! - The first time it is an outage: nothing is counted, and the breaker opens.
//! - While the breaker is not closed, other events are tried first, if there are any.
//! - If the server took another event since, and the connection dies again on this one alone, an
//!   attempt is counted, as for any event that finds the sink away while it takes others.
//! - It is remembered: when it comes back it goes alone at once, and takes no others along.
//!
//! In an outage nothing is taken, so nothing is counted however many connections die.

use std::collections::HashMap;
use std::time::Duration;

/// So many deadly events are remembered, the latest ones. Others are found again.
const DEADLY_MAX: usize = 1024;

/// How far the search has come.
#[derive(Debug)]
pub(super) struct Company {
    /// Most suspect events in the next call.
    most: usize,
    /// A call of suspect events is under way, or of one event alone.
    pub(super) under_way: Option<Kind>,
    /// Events that were alone when a connection died, by the hash of their id, with the last time.
    deadly: HashMap<u64, Duration>,
}

/// What kind of call it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any events.
    #[default]
    Ordinary,
    /// Events that were refused in company.
    Suspects,
    /// One event, while nothing else is under way.
    Alone,
}

impl Company {
    pub(super) fn new() -> Self {
        Self { most: usize::MAX, under_way: None, deadly: HashMap::new() }
    }

    /// Most suspect events in the next call.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// A call has its answer: so many of its events were refused in company.
    pub(super) fn answered(&mut self, kind: Kind, events: usize, refused: usize) {
        if kind != Kind::Ordinary {
            self.under_way = None;
        }
        if refused > 0 {
            self.most = self.most.min((refused / 2).max(1));
        } else if kind != Kind::Ordinary && events >= self.most {
            self.most = self.most.saturating_mul(2);
        }
    }

    /// A connection died on an event that was alone. Answers when one did before.
    pub(super) fn died(&mut self, event: u64, now: Duration) -> Option<Duration> {
        if self.deadly.len() >= DEADLY_MAX && !self.deadly.contains_key(&event) {
            let oldest = self.deadly.iter().min_by_key(|(_, at)| **at).map(|(event, _)| *event);
            oldest.map(|oldest| self.deadly.remove(&oldest));
        }
        self.deadly.insert(event, now)
    }

    /// An event has arrived, or will not come back by itself.
    pub(super) fn forget(&mut self, event: u64) {
        if !self.deadly.is_empty() {
            self.deadly.remove(&event);
        }
    }

    /// Whether a connection died on an event when it was last tried. Then it goes alone.
    pub(super) fn singles_out(&mut self, event: u64) -> bool {
        let is_deadly = !self.deadly.is_empty() && self.deadly.contains_key(&event);
        if is_deadly {
            self.most = 1;
        }
        is_deadly
    }

    /// Nothing is suspect any more.
    pub(super) fn is_over(&mut self) {
        self.most = usize::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_connection_died_of_is_remembered_until_it_is_settled() {
        let mut company = Company::new();
        let at = Duration::from_secs;
        assert_eq!(company.died(7, at(1)), None);
        assert_eq!(company.died(7, at(2)), Some(at(1)));
        assert!(company.singles_out(7) && !company.singles_out(8));
        assert_eq!(company.most(), 1);
        company.forget(7);
        assert!(!company.singles_out(7));
    }

    #[test]
    fn as_many_are_remembered_as_there_is_room_for() {
        let mut company = Company::new();
        for event in 0..DEADLY_MAX as u64 + 1 {
            company.died(event, Duration::from_secs(event));
        }
        assert_eq!(company.deadly.len(), DEADLY_MAX);
        assert!(!company.singles_out(0) && company.singles_out(1));
    }
}
