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

/// How far the search has come.
#[derive(Debug)]
pub(super) struct Company {
    /// Most suspect events in the next call.
    most: usize,
    /// A call of suspect events is under way, or of one event alone.
    pub(super) under_way: Option<Kind>,
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
        Self { most: usize::MAX, under_way: None }
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

    /// Nothing is suspect any more.
    pub(super) fn is_over(&mut self) {
        self.most = usize::MAX;
    }
}
