//! How far a cursor may move.
//!
//! Rows are read in ticks. A tick is what became visible between two snapshots, in the order of
//! `seq`; a large one is read in pages. Rows are settled in any order. What may be written down
//! (a [`Position`]) is the first tick with an unsettled row, up to which number it is settled,
//! where the last tick ends, and the numbers that are settled beyond. After a restart the first
//! tick is read again from there on, then the others as one; nothing that is settled is handed
//! out again.
//!
//! Numbers beyond are kept one by one, as ranges only where they follow each other: a number
//! between two settled ones may belong to a transaction that has not committed yet. They say
//! nothing about rows that became visible later: should the numbering of the table have been
//! reset, those are others.

use std::collections::VecDeque;

use super::log::LogPosition;
use super::ranges::Ranges;
use super::snapshot::Snapshot;

/// The most rows between the first unsettled one and the last one read.
const ROWS_MAX: usize = 100_000;

/// How far a pipeline has come, as its checkpoint says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// Everything that it sees is settled.
    pub(super) base: Snapshot,
    /// Of what it sees, everything up to `seq` is settled.
    pub(super) tick: Snapshot,
    pub(super) seq: i64,
    /// Of what it sees, these are settled besides.
    pub(super) seen: Snapshot,
    pub(super) beyond: Ranges,
    /// Where to go on in the log, if there is a slot.
    pub(super) log: Option<LogPosition>,
}

impl Position {
    /// Where everything is still to be read.
    pub(super) fn start() -> Self {
        Self::at(Snapshot::nothing())
    }

    /// Where everything is settled that a snapshot sees, and nothing else.
    pub(super) fn at(base: Snapshot) -> Self {
        let [tick, seen] = [base.clone(), base.clone()];
        Self { base, tick, seq: 0, seen, beyond: Ranges::default(), log: None }
    }

    /// What is settled according to both, of different keys.
    pub(super) fn merge(self, other: Self) -> Self {
        let base = self.base.intersection(&other.base);
        Self {
            tick: base.clone(),
            base,
            seq: i64::MIN,
            seen: self.seen.union(&other.seen),
            beyond: self.beyond.union(&other.beyond),
            log: None,
        }
    }
}

/// A tick that has unsettled rows, or is not read to its end.
#[derive(Debug)]
struct Tick {
    from: Snapshot,
    to: Snapshot,
    /// Read up to here; everything before the first of `rows` is settled or passed over.
    read_to: i64,
    /// There is no more to read of it.
    is_read: bool,
    /// Rows in order, and whether they are settled.
    rows: VecDeque<(i64, bool)>,
}

impl Tick {
    fn is_done(&self) -> bool {
        self.is_read && self.rows.iter().all(|(_, settled)| *settled)
    }

    /// How far it is settled without a gap.
    fn settled_to(&self) -> i64 {
        let unsettled = self.rows.iter().find(|(_, settled)| !settled);
        unsettled.map_or(self.read_to, |(seq, _)| seq - 1)
    }
}

/// Which tick a row belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TickNumber(u64);

impl TickNumber {
    /// Of a row that was not found in a tick.
    pub(super) const NONE: Self = Self(u64::MAX);
}

#[derive(Debug)]
pub(super) struct Frontier {
    ticks: VecDeque<Tick>,
    /// The number of the first of `ticks`.
    first: u64,
    /// Everything that it sees was read.
    seen: Snapshot,
    /// Where the last tick ended before the start, as long as that was not reached again.
    seen_before: Option<Snapshot>,
    /// Numbers that were settled before the start, up to there.
    before: Ranges,
    rows: usize,
}

impl Frontier {
    /// Goes on from a position.
    pub(super) fn new(position: Position) -> Self {
        let Position { base, tick, seq, seen, beyond, .. } = position;
        let mut frontier = Self {
            ticks: VecDeque::new(),
            first: 0,
            seen: base.clone(),
            seen_before: Some(seen),
            before: beyond,
            rows: 0,
        };
        if base == tick {
            frontier.go_on();
        } else {
            frontier.open(tick, seq);
        }
        frontier
    }

    /// What was read already: a new tick begins there.
    pub(super) fn seen(&self) -> &Snapshot {
        &self.seen
    }

    /// The tick that is not read to its end: from, to, and after which number to go on.
    pub(super) fn reading(&self) -> Option<(&Snapshot, &Snapshot, i64)> {
        let tick = self.ticks.back().filter(|tick| !tick.is_read)?;
        Some((&tick.from, &tick.to, tick.read_to))
    }

    /// Begins a tick up to a snapshot, after a number.
    pub(super) fn open(&mut self, to: Snapshot, after: i64) {
        debug_assert!(self.reading().is_none(), "one tick is read at a time");
        let from = std::mem::replace(&mut self.seen, to.clone());
        self.ticks.push_back(Tick {
            from,
            to,
            read_to: after,
            is_read: false,
            rows: VecDeque::new(),
        });
    }

    /// A row of the tick that is being read. `None` if it was settled before the start.
    pub(super) fn row(&mut self, seq: i64) -> Option<TickNumber> {
        let settled = self.before.contains(seq);
        let number = TickNumber(self.first + self.ticks.len() as u64 - 1);
        let tick = self.ticks.back_mut().expect("a row belongs to an open tick");
        debug_assert!(seq > tick.read_to, "rows of a tick are read in order");
        tick.rows.push_back((seq, settled));
        tick.read_to = seq;
        self.rows += 1;
        (!settled).then_some(number)
    }

    /// The tick that is being read has no more rows.
    pub(super) fn end_tick(&mut self) {
        let Some(tick) = self.ticks.back_mut() else { return };
        tick.is_read = true;
        // Rows stay until their settlement is written; without any there is nothing to keep.
        if tick.rows.is_empty() {
            self.ticks.pop_back();
        }
        self.go_on();
    }

    /// Goes on to where the last tick ended before the start.
    fn go_on(&mut self) {
        match self.seen_before.take() {
            Some(seen) if seen != self.seen => {
                self.open(seen.clone(), i64::MIN);
                self.seen_before = Some(seen);
            }
            _ => self.before = Ranges::default(),
        }
    }

    /// How many more rows may be read.
    pub(super) fn room(&self) -> usize {
        ROWS_MAX.saturating_sub(self.rows)
    }

    /// How many rows are read and not settled.
    pub(super) fn unsettled(&self) -> usize {
        let rows = self.ticks.iter().flat_map(|tick| &tick.rows);
        rows.filter(|(_, settled)| !settled).count()
    }

    /// Whether everything that was begun is read and settled.
    pub(super) fn is_done(&self) -> bool {
        self.ticks.iter().all(Tick::is_done)
    }

    /// Notes that a row is settled, or (if that could not be written) that it is not.
    pub(super) fn set_settled(&mut self, tick: TickNumber, seq: i64, settled: bool) {
        let index = tick.0.checked_sub(self.first).and_then(|index| usize::try_from(index).ok());
        let Some(tick) = index.and_then(|index| self.ticks.get_mut(index)) else {
            return;
        };
        if let Ok(index) = tick.rows.binary_search_by_key(&seq, |(seq, _)| *seq) {
            tick.rows[index].1 = settled;
        }
    }

    /// What may be written down.
    pub(super) fn position(&self) -> Position {
        let mut open = self.ticks.iter().skip_while(|tick| tick.is_done());
        let Some(first) = open.next() else {
            return Position::at(self.seen.clone());
        };
        let seq = first.settled_to();
        let behind = first.rows.iter().filter(|(row, _)| *row > seq);
        let rows = behind.chain(open.flat_map(|tick| &tick.rows));
        let settled = rows.filter(|(_, settled)| *settled).map(|(row, _)| *row);
        let mut beyond = Ranges::of(settled.collect());
        if !self.before.is_empty() {
            beyond = beyond.union(&self.before);
        }
        let seen = self.seen_before.as_ref().unwrap_or(&self.seen).clone();
        let (base, tick) = (first.from.clone(), first.to.clone());
        Position { base, tick, seq, seen, beyond, log: None }
    }

    /// Forgets what is behind the position, once that is written.
    pub(super) fn trim(&mut self) {
        while let Some(tick) = self.ticks.pop_front_if(|tick| tick.is_done()) {
            self.rows -= tick.rows.len();
            self.first += 1;
        }
        if let Some(tick) = self.ticks.front_mut() {
            while tick.rows.pop_front_if(|(_, settled)| *settled).is_some() {
                self.rows -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(xmax: u64) -> Snapshot {
        format!("{xmax}:{xmax}:").parse().unwrap()
    }

    fn tick(frontier: &mut Frontier, to: u64, rows: &[i64]) -> Vec<Option<TickNumber>> {
        frontier.open(snapshot(to), 0);
        let rows = rows.iter().map(|seq| frontier.row(*seq)).collect();
        frontier.end_tick();
        rows
    }

    #[test]
    fn it_stops_before_the_first_unsettled_row() {
        let mut frontier = Frontier::new(Position::start());
        let one = tick(&mut frontier, 10, &[3, 5, 8]);
        let two = tick(&mut frontier, 20, &[4, 9, 10]);
        frontier.set_settled(one[0].unwrap(), 3, true);
        frontier.set_settled(two[1].unwrap(), 9, true);
        frontier.set_settled(two[2].unwrap(), 10, true);
        let position = frontier.position();
        assert_eq!((position.base, position.tick), (Snapshot::nothing(), snapshot(10)));
        assert_eq!((position.seq, position.beyond.to_text().as_str()), (4, "{[9,11)}"));
        frontier.trim();
        frontier.set_settled(one[1].unwrap(), 5, true);
        frontier.set_settled(one[2].unwrap(), 8, true);
        let position = frontier.position();
        assert_eq!((position.base, position.tick), (snapshot(10), snapshot(20)));
        assert_eq!((position.seq, position.beyond.to_text().as_str()), (3, "{[9,11)}"));
        frontier.set_settled(two[0].unwrap(), 4, true);
        frontier.trim();
        let position = frontier.position();
        assert_eq!((position.base, position.tick), (snapshot(20), snapshot(20)));
        assert!(frontier.unsettled() == 0 && frontier.room() == ROWS_MAX);
    }

    #[test]
    fn a_page_of_a_tick_moves_the_position_within_it() {
        let mut frontier = Frontier::new(Position::start());
        frontier.open(snapshot(10), 0);
        let rows: Vec<_> = (1..=4).map(|seq| frontier.row(seq).unwrap()).collect();
        for (seq, row) in (1..=4).zip(&rows) {
            frontier.set_settled(*row, seq, true);
        }
        let position = frontier.position();
        assert_eq!((position.seq, position.tick.clone()), (4, snapshot(10)));
        frontier.trim();
        assert_eq!(frontier.position(), position);
        assert_eq!(frontier.reading(), Some((&Snapshot::nothing(), &snapshot(10), 4)));
    }

    /// A number between two settled ones may be that of a transaction that is still open.
    #[test]
    fn gaps_are_never_taken_for_settled() {
        let mut frontier = Frontier::new(Position::start());
        let rows = tick(&mut frontier, 10, &[1, 5, 7]);
        frontier.set_settled(rows[1].unwrap(), 5, true);
        frontier.set_settled(rows[2].unwrap(), 7, true);
        assert_eq!(frontier.position().beyond.to_text(), "{[5,6),[7,8)}");
    }

    #[test]
    fn what_was_settled_beyond_is_not_read_again_after_a_restart() {
        let mut frontier = Frontier::new(Position::start());
        let one = tick(&mut frontier, 10, &[1, 2, 3, 4]);
        let two = tick(&mut frontier, 20, &[7, 8]);
        frontier.set_settled(one[0].unwrap(), 1, true);
        frontier.set_settled(one[2].unwrap(), 3, true);
        frontier.set_settled(two[0].unwrap(), 7, true);
        let position = frontier.position();
        let mut again = Frontier::new(position.clone());
        assert_eq!(again.position(), position, "nothing was read yet");
        assert_eq!(again.reading(), Some((&Snapshot::nothing(), &snapshot(10), 1)));
        assert!(again.row(2).is_some());
        assert!(again.row(3).is_none(), "it was settled");
        assert!(again.row(4).is_some());
        again.end_tick();
        assert_eq!(again.position().beyond.to_text(), "{[3,4),[7,8)}");
        assert_eq!(again.reading(), Some((&snapshot(10), &snapshot(20), i64::MIN)));
        assert!(again.row(7).is_none(), "it was settled");
        assert!(again.row(8).is_some());
        again.end_tick();
        assert_eq!(again.position().beyond.to_text(), "{[3,4),[7,8)}");
        let numbered_anew = tick(&mut again, 30, &[3, 7]);
        assert!(numbered_anew.iter().all(Option::is_some), "these are others");
    }

    #[test]
    fn a_restart_between_ticks_knows_what_was_settled_beyond() {
        let (base, tick_end, seen) = (snapshot(10), snapshot(10), snapshot(20));
        let beyond = Ranges::of(vec![7]);
        let position = Position { base, tick: tick_end, seq: i64::MIN, seen, beyond, log: None };
        let mut again = Frontier::new(position);
        assert!(again.row(7).is_none(), "it was settled");
        again.end_tick();
        assert!(tick(&mut again, 30, &[7])[0].is_some(), "this is another");
    }

    /// A row of a later tick can have a smaller number. It takes nothing back.
    #[test]
    fn a_late_commit_with_a_small_number_takes_nothing_back() {
        let mut frontier = Frontier::new(Position::start());
        let one = tick(&mut frontier, 10, &[5, 6, 7]);
        frontier.set_settled(one[0].unwrap(), 5, true);
        frontier.set_settled(one[1].unwrap(), 6, true);
        frontier.trim();
        let two = tick(&mut frontier, 20, &[2]);
        let three = tick(&mut frontier, 30, &[8]);
        frontier.set_settled(three[0].unwrap(), 8, true);
        let position = frontier.position();
        assert_eq!((position.base, position.tick), (Snapshot::nothing(), snapshot(10)));
        assert_eq!((position.seq, position.beyond.to_text().as_str()), (6, "{[8,9)}"));
        frontier.set_settled(one[2].unwrap(), 7, true);
        frontier.trim();
        let position = frontier.position();
        assert_eq!((position.base, position.tick), (snapshot(10), snapshot(20)));
        assert_eq!((position.seq, position.beyond.to_text().as_str()), (1, "{[8,9)}"));
        frontier.set_settled(two[0].unwrap(), 2, true);
        frontier.trim();
        let position = frontier.position();
        assert_eq!((position.base, position.tick), (snapshot(30), snapshot(30)));
    }

    #[test]
    fn a_settlement_that_was_not_written_is_taken_back() {
        let mut frontier = Frontier::new(Position::start());
        let rows = tick(&mut frontier, 10, &[1]);
        frontier.set_settled(rows[0].unwrap(), 1, true);
        assert_eq!(frontier.position().base, snapshot(10));
        frontier.set_settled(rows[0].unwrap(), 1, false);
        frontier.trim();
        assert_eq!(frontier.position().base, Snapshot::nothing());
    }

    #[test]
    fn ranges_are_written_as_postgresql_writes_them() {
        for text in ["{}", "{[1,4)}", "{[1,2),[5,9)}"] {
            assert_eq!(Ranges::from_text(text).unwrap().to_text(), text);
        }
        assert_eq!(Ranges::from_text("{(1,2]}"), None);
        let union = Ranges::of(vec![5, 3, 4]).union(&Ranges::of(vec![1, 6, 9]));
        assert_eq!(union.to_text(), "{[1,2),[3,7),[9,10)}");
    }
}
