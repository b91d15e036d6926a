//! How far a cursor may move: to the end of the settled rows that have no unsettled one before
//! them.
//!
//! Rows are handed out in order and settled in any order. What is settled beyond the first
//! unsettled row is written down beside the position, as stretches, so that it is not handed out
//! again after a restart. Both are bounded: the stretch from the first unsettled row to the last
//! one handed out, and the number of stretches that are written. (Should there ever be more, the
//! events of the rest would be repeated after a crash.)

use std::collections::VecDeque;
use std::fmt::Write as _;

/// The most rows between the first unsettled one and the last one handed out.
pub(super) const FRONTIER_ROWS_MAX: usize = 100_000;

/// The most stretches that are written down.
pub(super) const STRETCHES_MAX: usize = 1_000;

/// Rows that are all settled or passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) first: i64,
    pub(super) last: i64,
}

/// Reads what [`Frontier::beyond`] wrote. What cannot be read is left out: its events are
/// repeated.
pub(super) fn parse_beyond(text: &str) -> Vec<Stretch> {
    let stretch = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some(Stretch { first: first.parse().ok()?, last: last.parse().ok()? })
    };
    text.split(',').filter_map(stretch).collect()
}

/// Adds single rows to stretches.
pub(super) fn with_rows(mut stretches: Vec<Stretch>, rows: Vec<i64>) -> Vec<Stretch> {
    stretches.extend(rows.into_iter().map(|seq| Stretch { first: seq, last: seq }));
    stretches.sort_unstable_by_key(|stretch| stretch.first);
    let mut joined: Vec<Stretch> = Vec::with_capacity(stretches.len());
    for stretch in stretches {
        match joined.last_mut() {
            Some(before) if stretch.first <= before.last.saturating_add(1) => {
                before.last = before.last.max(stretch.last);
            }
            _ => joined.push(stretch),
        }
    }
    joined
}

#[derive(Debug)]
pub(super) struct Frontier {
    /// Everything up to here is settled or passed over.
    settled_to: i64,
    /// Everything up to here was handed out or passed over.
    read_to: i64,
    /// Rows after `settled_to` that were handed out, in order, and whether they are settled.
    rows: VecDeque<(i64, bool)>,
    /// What was settled beyond the position before the start, in order.
    before: Vec<Stretch>,
}

impl Frontier {
    pub(super) fn new(position: i64) -> Self {
        Self { settled_to: position, read_to: position, rows: VecDeque::new(), before: Vec::new() }
    }

    /// Takes in what was settled beyond the position before the start.
    pub(super) fn settled_before(&mut self, beyond: Vec<Stretch>) {
        self.before = beyond;
    }

    /// Whether a row was settled before the start.
    pub(super) fn was_settled(&self, seq: i64) -> bool {
        let index = self.before.partition_point(|stretch| stretch.last < seq);
        self.before.get(index).is_some_and(|stretch| stretch.first <= seq)
    }

    /// The stretches beyond the position that are settled, as text.
    pub(super) fn beyond(&self) -> String {
        let position = self.position();
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut last_settled = false;
        for (seq, settled) in self.rows.iter().filter(|(seq, _)| *seq > position) {
            match stretches.last_mut() {
                Some(stretch) if *settled && last_settled => stretch.last = *seq,
                _ if *settled => stretches.push(Stretch { first: *seq, last: *seq }),
                _ => {}
            }
            last_settled = *settled;
        }
        stretches.extend(self.before.iter().filter(|stretch| stretch.last > position));
        stretches.sort_unstable_by_key(|stretch| stretch.first);
        let mut text = String::new();
        for Stretch { first, last } in stretches.iter().take(STRETCHES_MAX) {
            let comma = if text.is_empty() { "" } else { "," };
            write!(text, "{comma}{first}-{last}").expect("a string takes everything");
        }
        text
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
        self.before.retain(|stretch| stretch.last > self.settled_to);
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
    fn what_is_settled_beyond_the_position_is_known_after_a_restart() {
        let mut frontier = Frontier::new(10);
        (11..=20).for_each(|seq| frontier.hand_out(seq));
        [12, 13, 14, 17, 20].into_iter().for_each(|seq| frontier.set_settled(seq, true));
        assert_eq!(frontier.beyond(), "12-14,17-17,20-20");
        let mut again = Frontier::new(frontier.position());
        again.settled_before(parse_beyond(&frontier.beyond()));
        let open: Vec<i64> = (11..=21).filter(|seq| !again.was_settled(*seq)).collect();
        assert_eq!(open, [11, 15, 16, 18, 19, 21]);
        open.iter().for_each(|seq| again.hand_out(*seq));
        again.set_settled(16, true);
        assert_eq!(again.beyond(), "12-14,16-16,17-17,20-20");
        [11, 15].into_iter().for_each(|seq| again.set_settled(seq, true));
        again.trim();
        assert_eq!((again.position(), again.beyond().as_str()), (17, "20-20"));
        assert_eq!(parse_beyond("nonsense,3-4,5-x"), [Stretch { first: 3, last: 4 }]);
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
