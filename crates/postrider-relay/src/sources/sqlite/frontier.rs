//! How far a cursor may move: to the end of the settled rows that have no unsettled one before
//! them.
//!
//! Rows are handed out in order and settled in any order. What is settled beyond the first
//! unsettled row is known only here, in memory: after a crash it is handed out again. So the
//! stretch from the first unsettled row to the last one handed out is bounded, and with it both
//! the memory and the number of duplicates.

use std::collections::VecDeque;

/// The most rows between the first unsettled one and the last one handed out.
pub(super) const FRONTIER_ROWS_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct Frontier {
    /// Everything up to here is settled or passed over.
    settled_to: i64,
    /// Everything up to here was handed out or passed over.
    read_to: i64,
    /// Rows after `settled_to` that were handed out, in order, and whether they are settled.
    rows: VecDeque<(i64, bool)>,
}

impl Frontier {
    pub(super) fn new(position: i64) -> Self {
        Self {
            settled_to: position,
            read_to: position,
            rows: VecDeque::new(),
        }
    }

    /// How many more rows may be handed out.
    pub(super) fn room(&self) -> usize {
        FRONTIER_ROWS_MAX.saturating_sub(self.rows.len())
    }

    /// Whether a row is handed out and not settled.
    pub(super) fn has_unsettled(&self) -> bool {
        !self.rows.is_empty()
    }

    /// A row is handed out; rows before it were passed over.
    pub(super) fn hand_out(&mut self, seq: i64) {
        debug_assert!(seq > self.read_to, "rows are handed out in order");
        self.rows.push_back((seq, false));
        self.read_to = seq;
    }

    /// Rows up to here are not for this pipeline.
    pub(super) fn pass(&mut self, seq: i64) {
        self.read_to = self.read_to.max(seq);
        self.trim();
    }

    /// Notes that a row is settled, or (if that could not be written) that it is not.
    pub(super) fn set_settled(&mut self, seq: i64, settled: bool) {
        if let Ok(index) = self.rows.binary_search_by_key(&seq, |(seq, _)| *seq) {
            self.rows[index].1 = settled;
        }
    }

    /// The position that may be written.
    pub(super) fn position(&self) -> i64 {
        match self.rows.iter().find(|(_, settled)| !settled) {
            // Rows before it that were passed over are done with as well.
            Some((first_unsettled, _)) => first_unsettled - 1,
            None => self.read_to,
        }
        .max(self.settled_to)
    }

    /// Forgets what is behind the position, once that is written.
    pub(super) fn trim(&mut self) {
        while self.rows.front().is_some_and(|(_, settled)| *settled) {
            self.rows.pop_front();
        }
        self.settled_to = self.position();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_stops_before_the_first_unsettled_row() {
        let mut frontier = Frontier::new(10);
        for seq in [12, 15, 20] {
            frontier.hand_out(seq);
        }
        assert_eq!(frontier.position(), 11);
        frontier.set_settled(15, true);
        frontier.trim();
        assert_eq!(frontier.position(), 11);
        frontier.set_settled(12, true);
        assert_eq!(frontier.position(), 19);
        frontier.trim();
        frontier.set_settled(20, true);
        frontier.trim();
        assert_eq!(frontier.position(), 20);
        assert!(!frontier.has_unsettled());
        frontier.pass(30);
        assert_eq!(frontier.position(), 30);
    }

    #[test]
    fn a_settlement_that_was_not_written_is_taken_back() {
        let mut frontier = Frontier::new(0);
        frontier.hand_out(1);
        frontier.hand_out(2);
        frontier.set_settled(1, true);
        assert_eq!(frontier.position(), 1);
        frontier.set_settled(1, false);
        frontier.trim();
        assert_eq!(frontier.position(), 0);
    }

    #[test]
    fn settling_what_is_unknown_changes_nothing() {
        let mut frontier = Frontier::new(0);
        frontier.hand_out(1);
        frontier.set_settled(7, true);
        frontier.trim();
        assert_eq!(frontier.position(), 0);
        assert_eq!(frontier.room(), FRONTIER_ROWS_MAX - 1);
    }
}
