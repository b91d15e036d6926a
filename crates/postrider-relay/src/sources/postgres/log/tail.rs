//! What was read from the log, and how far it is settled.
//!
//! Transactions come in the order of their commits, and their rows are settled in any order. Two
//! things are written down about that (a [`Position`]), and each of them is enough to go on:
//!
//! - for the log, a position before which everything that was committed is settled;
//! - for the table, a snapshot (`base`) of which everything is settled that it sees.
//!
//! What is settled and behind one of them, but not behind both, is named by its numbers (`beyond`).
//!
//! The log does not say what a snapshot sees. But every settlement answers a snapshot and then the
//! end of the log (a [`Mark`]): whatever the snapshot sees was committed before that end. So once
//! the log was read up to there, and everything that was read is settled, the snapshot is the new
//! base.

use std::collections::VecDeque;

use postrider_replication::Lsn;

use super::LogPosition;
use crate::sources::postgres::frontier::Position;
use crate::sources::postgres::ranges::Ranges;
use crate::sources::postgres::snapshot::Snapshot;

/// The most rows between the first unsettled one and the last one read.
const ROWS_MAX: usize = 100_000;
/// The most ranges that are kept of what is settled of one transaction. What is left out is
/// repeated after a restart in the middle of it.
const RANGES_MAX: usize = 100_000;
/// How many transactions are put together that are settled and wait for a new base.
const CHUNK: usize = 1_000;

/// Where a row was found in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Place {
    transaction: u64,
    row: u64,
}

/// A snapshot, and an end of the log before which everything was committed that it sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Mark {
    pub(in super::super) snapshot: Snapshot,
    pub(in super::super) lsn: Lsn,
}

/// A mark of this run, and before which transaction the log had been read up to it.
#[derive(Debug)]
struct Asked {
    mark: Mark,
    passed_at: Option<u64>,
}

#[derive(Debug)]
struct Transaction {
    /// Where its commit record starts: no other one has that.
    commit: Lsn,
    /// Where it ends, once it is here as a whole. Later, how far the log was read before the next
    /// one.
    end: Option<Lsn>,
    /// Its number, as its rows in the table have it.
    xid: Option<u64>,
    /// How many rows of it have come, with those that are not for this pipeline.
    received: u64,
    /// Settled rows before the first of `rows`.
    done: Ranges,
    /// The number of the first of `rows`.
    first: u64,
    rows: VecDeque<(i64, bool)>,
}

impl Transaction {
    fn is_done(&self) -> bool {
        self.end.is_some() && self.rows.iter().all(|(_, settled)| *settled)
    }

    fn settled(&self) -> Ranges {
        let rows = self.rows.iter().filter(|(_, settled)| *settled);
        Ranges::of(rows.map(|(seq, _)| *seq).collect()).union(&self.done)
    }
}

/// Transactions that are settled, of which the base does not see all.
#[derive(Debug, Default)]
struct Chunk {
    xids: Vec<u64>,
    numbers: Ranges,
}

impl Chunk {
    fn is_seen_by(&self, base: &Snapshot) -> bool {
        self.xids.iter().all(|xid| base.sees(*xid))
    }
}

/// What is known of numbers that were settled before the log was read.
#[derive(Debug)]
struct Before {
    numbers: Ranges,
    /// They were all committed before this.
    end: Lsn,
    /// Whatever sees this transaction sees all of theirs.
    xid: u64,
}

/// From where the log is read.
#[derive(Debug)]
pub(in super::super) struct Start {
    /// Everything is settled that it sees.
    pub(in super::super) base: Snapshot,
    /// Of what this sees, `passed_over` is settled.
    pub(in super::super) seen: Snapshot,
    pub(in super::super) lsn: Lsn,
    /// Transactions before this one stay in the past, whatever happens to the server.
    pub(in super::super) lasting: u64,
    /// Numbers that are not to be handed out, of transactions that were committed before `end`
    /// and are seen by whoever sees `xid`.
    pub(in super::super) passed_over: Ranges,
    pub(in super::super) end: Lsn,
    pub(in super::super) xid: u64,
}

#[derive(Debug)]
pub(in super::super) struct Tail {
    /// In the order of their commits; those that are settled stay until that is written.
    transactions: VecDeque<Transaction>,
    /// The number of the first of them.
    first: u64,
    /// Rows of all of them.
    rows: usize,
    behind: VecDeque<Chunk>,
    before: Option<Before>,
    /// Everything is settled that it sees.
    base: Snapshot,
    /// Of what this sees, `beyond` is settled.
    seen: Snapshot,
    /// Everything is settled that was committed before it.
    lsn: Lsn,
    /// Everything was read that was committed before it.
    read_to: Lsn,
    asked: Option<Asked>,
    /// Transactions of rows that are not for this pipeline and that the base does not see, up to
    /// a number of them.
    others: Vec<u64>,
    lasting: u64,
}

/// A transaction comes whose beginning was never here.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct Torn;

impl Tail {
    pub(in super::super) fn new(start: Start) -> Self {
        let Start { base, seen, lsn, lasting, passed_over, end, xid } = start;
        let before = Before { numbers: passed_over, end, xid };
        Self {
            transactions: VecDeque::new(),
            first: 0,
            rows: 0,
            behind: VecDeque::new(),
            before: Some(before).filter(|before| !before.numbers.is_empty()),
            base,
            seen,
            lsn,
            read_to: lsn,
            asked: None,
            others: Vec::new(),
            lasting,
        }
    }

    /// Where to go on reading, should the stream be begun anew.
    pub(in super::super) fn read_to(&self) -> Lsn {
        self.read_to
    }

    /// A transaction begins. Answers how many rows of it are here already, or `None` if all are.
    pub(in super::super) fn begin(&mut self, commit: Lsn) -> Result<Option<u64>, Torn> {
        if let Some(open) = self.receiving() {
            return if open.commit == commit { Ok(Some(open.received)) } else { Err(Torn) };
        }
        if commit < self.read_to {
            return Ok(None);
        }
        match self.transactions.back_mut() {
            Some(last) => last.end = Some(self.read_to),
            None => self.lsn = self.read_to,
        }
        self.transactions.push_back(Transaction {
            commit,
            end: None,
            xid: None,
            received: 0,
            done: Ranges::default(),
            first: 0,
            rows: VecDeque::new(),
        });
        Ok(Some(0))
    }

    /// The transaction that a row says it is of, unless that is still to come: then the row was not
    /// written here, and counts as one of the transaction that brought it.
    pub(in super::super) fn known(&self, xid: u64, current: u32) -> u64 {
        // The log has numbers without their epoch; this one is near the last that is known.
        let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        let ahead = current.wrapping_sub(low(self.lasting)).cast_signed();
        xid.min(self.lasting.saturating_add_signed(i64::from(ahead)))
    }

    /// A row of the transaction. `None` if it was settled before. One that is in the table has the
    /// number of the transaction.
    pub(in super::super) fn row(&mut self, seq: i64, xid: Option<u64>) -> Option<Place> {
        self.lasting = self.lasting.max(xid.map_or(0, |xid| xid.saturating_add(1)));
        let number = self.first + self.transactions.len() as u64 - 1;
        let transaction = self.transactions.back_mut().expect("a row is part of a transaction");
        transaction.received += 1;
        // Should the numbering have been reset since, it is another row.
        let was_settled = self
            .before
            .as_ref()
            .is_some_and(|before| transaction.commit < before.end && before.numbers.contains(seq));
        if was_settled {
            return None;
        }
        transaction.xid = transaction.xid.max(xid);
        transaction.rows.push_back((seq, false));
        self.rows += 1;
        let row = transaction.first + transaction.rows.len() as u64 - 1;
        Some(Place { transaction: number, row })
    }

    /// A row of the transaction that is not for this pipeline.
    pub(in super::super) fn pass_over(&mut self, xid: Option<u64>) {
        if let Some(transaction) = self.transactions.back_mut() {
            transaction.received += 1;
        }
        let Some(xid) = xid.filter(|xid| !self.base.sees(*xid)) else { return };
        self.lasting = self.lasting.max(xid.saturating_add(1));
        if self.others.len() < CHUNK && self.others.last() != Some(&xid) {
            self.others.push(xid);
        }
    }

    /// Whether there are rows for others that the base should see: as long as it does not, they
    /// look as if they were to be delivered.
    pub(in super::super) fn is_base_old(&self) -> bool {
        !self.others.is_empty()
    }

    /// The transaction is here as a whole; its commit record ends there.
    pub(in super::super) fn commit(&mut self, end: Lsn) {
        let Some(transaction) = self.transactions.back_mut() else { return };
        transaction.end = Some(end);
        if transaction.rows.is_empty() && transaction.done.is_empty() {
            self.transactions.pop_back();
        }
        self.read_up_to(end);
    }

    /// The server has read the log up to there and sent everything.
    pub(in super::super) fn idle(&mut self, wal_end: Lsn) {
        if self.receiving().is_none() {
            self.read_up_to(wal_end);
        }
    }

    fn receiving(&self) -> Option<&Transaction> {
        self.transactions.back().filter(|transaction| transaction.end.is_none())
    }

    fn read_up_to(&mut self, lsn: Lsn) {
        self.read_to = self.read_to.max(lsn);
        let next = self.first + self.transactions.len() as u64;
        if let Some(asked) = &mut self.asked
            && asked.passed_at.is_none()
            && asked.mark.lsn <= self.read_to
        {
            asked.passed_at = Some(next);
            asked.mark.snapshot = asked.mark.snapshot.clone().up_to(self.lasting);
        }
    }

    /// A settlement has answered with this. As long as nothing has come it says nothing new.
    pub(in super::super) fn note(&mut self, mark: Mark) {
        self.seen = mark.snapshot.clone().up_to(self.lasting);
        let has_come = !self.transactions.is_empty()
            || !self.behind.is_empty()
            || self.before.is_some()
            || self.is_base_old();
        // One that was asked for before the base is no step ahead.
        let is_ahead = mark.snapshot.sees_all_of(&self.base);
        if self.asked.is_none() && has_come && is_ahead {
            self.asked = Some(Asked { mark, passed_at: None });
            if self.receiving().is_none() {
                self.read_up_to(self.read_to);
            }
        }
    }

    /// How many more rows may be read.
    pub(in super::super) fn room(&self) -> usize {
        ROWS_MAX.saturating_sub(self.rows)
    }

    /// How many rows are read and not settled.
    pub(in super::super) fn unsettled(&self) -> usize {
        let rows = self.transactions.iter().flat_map(|transaction| &transaction.rows);
        rows.filter(|(_, settled)| !settled).count()
    }

    /// Notes that a row is settled, or (if that could not be written) that it is not.
    pub(in super::super) fn set_settled(&mut self, place: Place, settled: bool) {
        let index = |number: u64, first: u64| {
            number.checked_sub(first).and_then(|index| usize::try_from(index).ok())
        };
        let transaction =
            index(place.transaction, self.first).and_then(|index| self.transactions.get_mut(index));
        let Some(transaction) = transaction else { return };
        if let Some(row) =
            index(place.row, transaction.first).and_then(|index| transaction.rows.get_mut(index))
        {
            row.1 = settled;
        }
    }

    /// What may be written down.
    pub(in super::super) fn position(&self) -> Position {
        let done = self.done();
        let (base, is_new) = self.base_after(done);
        let lsn = self.lsn_after(done);
        let mut settled: Vec<Ranges> = Vec::new();
        for (index, transaction) in self.transactions.iter().enumerate() {
            let is_seen = transaction.xid.is_none_or(|xid| base.sees(xid));
            if index >= done || !is_seen {
                settled.push(transaction.settled());
            }
        }
        let behind = self.behind.iter().filter(|chunk| !is_new || !chunk.is_seen_by(base));
        let before = self.before.iter().filter(|before| !before.is_passed(base, lsn));
        let numbers = behind.map(|chunk| &chunk.numbers);
        let numbers = numbers.chain(before.map(|before| &before.numbers)).chain(&settled);
        let beyond = Ranges::all(numbers);
        let mut position = Position::at(base.clone());
        if !beyond.is_empty() {
            // The base can be newer than what was seen when the mark was noted.
            position.seen = self.seen.clone().union(base);
        }
        Position { beyond, log: Some(LogPosition { lsn, since: None }), ..position }
    }

    /// Numbers of the log that are settled. Those that were passed over are not among them: they
    /// may be under way, read from the table.
    pub(in super::super) fn settled(&self) -> Ranges {
        let transactions: Vec<Ranges> =
            self.transactions.iter().map(Transaction::settled).collect();
        let numbers = self.behind.iter().map(|chunk| &chunk.numbers);
        Ranges::all(numbers.chain(&transactions))
    }

    /// Of what this sees, the numbers that are settled are known.
    pub(in super::super) fn seen(&self) -> &Snapshot {
        &self.seen
    }

    /// Forgets what is behind the position, once that is written.
    pub(in super::super) fn trim(&mut self) {
        let done = self.done();
        self.lsn = self.lsn_after(done);
        let (base, is_new) = self.base_after(done);
        if is_new {
            self.base = base.clone();
            self.asked = None;
            self.behind.retain(|chunk| !chunk.is_seen_by(&self.base));
            self.others.retain(|xid| !self.base.sees(*xid));
        }
        for transaction in self.transactions.drain(..done) {
            self.first += 1;
            self.rows -= transaction.rows.len();
            let Some(xid) = transaction.xid.filter(|xid| !self.base.sees(*xid)) else { continue };
            if self.behind.back().is_none_or(|chunk| chunk.xids.len() >= CHUNK) {
                self.behind.push_back(Chunk::default());
            }
            let Some(chunk) = self.behind.back_mut() else { continue };
            chunk.xids.push(xid);
            match (transaction.done.is_empty(), transaction.rows.len()) {
                (true, 1) => chunk.numbers.insert(transaction.rows[0].0),
                _ => chunk.numbers = Ranges::all([&chunk.numbers, &transaction.settled()]),
            }
        }
        if let Some(first) = self.transactions.front_mut() {
            while let Some((seq, _)) = first.rows.pop_front_if(|(_, settled)| *settled) {
                first.first += 1;
                self.rows -= 1;
                if first.done.len() < RANGES_MAX {
                    first.done.insert(seq);
                }
            }
        }
        let Self { base, lsn, .. } = self;
        self.before.take_if(|before| before.is_passed(base, *lsn));
    }

    /// How many transactions from the first are settled.
    fn done(&self) -> usize {
        self.transactions.iter().take_while(|transaction| transaction.is_done()).count()
    }

    fn lsn_after(&self, done: usize) -> Lsn {
        if done == self.transactions.len() {
            return self.read_to;
        }
        let last = done.checked_sub(1).and_then(|index| self.transactions[index].end);
        last.unwrap_or(self.lsn)
    }

    /// The base once so many transactions are settled, and whether it is another one.
    fn base_after(&self, done: usize) -> (&Snapshot, bool) {
        let settled = self.first + done as u64;
        match &self.asked {
            Some(Asked { mark, passed_at: Some(at) }) if *at <= settled => (&mark.snapshot, true),
            _ => (&self.base, false),
        }
    }
}

impl Before {
    fn is_passed(&self, base: &Snapshot, lsn: Lsn) -> bool {
        self.end <= lsn && base.sees(self.xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    fn tail() -> Tail {
        Tail::new(Start {
            base: snapshot("100:100:"),
            seen: snapshot("101:101:"),
            lsn: Lsn(1000),
            lasting: 100,
            passed_over: Ranges::of(vec![7, 8]),
            end: Lsn(1100),
            xid: 99,
        })
    }

    /// A transaction whose commit record is ten bytes long.
    fn transaction(tail: &mut Tail, commit: u64, xid: u64, rows: &[i64]) -> Vec<Option<Place>> {
        assert_eq!(tail.begin(Lsn(commit)), Ok(Some(0)));
        let places = rows.iter().map(|seq| tail.row(*seq, Some(xid))).collect();
        tail.commit(Lsn(commit + 10));
        places
    }

    fn at(tail: &Tail) -> (u64, String, String) {
        let position = tail.position();
        let lsn = position.log.map_or(0, |log| log.lsn.0);
        (lsn, position.base.to_string(), position.beyond.to_text())
    }

    fn settle(tail: &mut Tail, place: Option<Place>) {
        tail.set_settled(place.unwrap(), true);
    }

    #[test]
    fn a_row_of_a_transaction_to_come_counts_as_one_of_the_transaction_that_brought_it() {
        const EPOCH: u64 = 1 << 32;
        let mut tail = tail();
        assert_eq!([tail.known(105, 105), tail.known(90, 105), tail.known(95, 95)], [105, 90, 95]);
        assert_eq!(tail.known(1 << 40, 105), 105);
        tail.lasting = EPOCH - 2;
        assert_eq!([tail.known(1 << 40, 7), tail.known(EPOCH + 7, 7)], [EPOCH + 7; 2]);
        tail.lasting = EPOCH + 7;
        assert_eq!(tail.known(1 << 40, u32::MAX), EPOCH - 1);
    }

    #[test]
    fn it_stops_at_the_end_of_the_commit_before_the_first_unsettled_row() {
        let mut tail = tail();
        let one = transaction(&mut tail, 1200, 105, &[11, 12]);
        let two = transaction(&mut tail, 1300, 103, &[10]);
        assert_eq!(at(&tail).0, 1000);
        settle(&mut tail, two[0]);
        settle(&mut tail, one[0]);
        assert_eq!(at(&tail), (1000, "100:100:".to_owned(), "{[7,9),[10,12)}".to_owned()));
        settle(&mut tail, one[1]);
        assert_eq!(at(&tail).0, 1310);
        tail.trim();
        assert_eq!(at(&tail).0, 1310);
        tail.idle(Lsn(1500));
        assert_eq!(at(&tail).0, 1500);
    }

    #[test]
    fn it_never_goes_back() {
        let mut tail = tail();
        let one = transaction(&mut tail, 1200, 105, &[11]);
        settle(&mut tail, one[0]);
        tail.idle(Lsn(1400));
        assert_eq!(at(&tail).0, 1400);
        transaction(&mut tail, 1500, 106, &[12]);
        assert_eq!(at(&tail).0, 1400, "the one before it is settled up to where it was read");
        tail.trim();
        assert_eq!(at(&tail).0, 1400);
    }

    #[test]
    fn a_snapshot_becomes_the_base_once_all_it_sees_is_read_and_settled() {
        let mut tail = tail();
        let one = transaction(&mut tail, 1200, 105, &[11]);
        tail.note(Mark { snapshot: snapshot("106:110:106"), lsn: Lsn(1350) });
        let two = transaction(&mut tail, 1300, 107, &[12]);
        settle(&mut tail, one[0]);
        settle(&mut tail, two[0]);
        assert_eq!(at(&tail).1, "100:100:", "the log may have more that it sees");
        let three = transaction(&mut tail, 1360, 106, &[13]);
        assert_eq!(at(&tail).1, "100:100:", "what was read by then is not settled");
        settle(&mut tail, three[0]);
        let late = transaction(&mut tail, 1400, 112, &[14]);
        settle(&mut tail, late[0]);
        let expected = (1410, "106:108:106".to_owned(), "{[13,15)}".to_owned());
        assert_eq!(at(&tail), expected, "no further than the last that was read by then");
        tail.trim();
        assert_eq!(at(&tail), expected);
        tail.note(Mark { snapshot: snapshot("113:113:"), lsn: Lsn(1410) });
        assert_eq!(at(&tail), (1410, "113:113:".to_owned(), "{}".to_owned()));
    }

    #[test]
    fn once_all_is_settled_nothing_moves_but_the_log() {
        let mut tail = tail();
        let one = transaction(&mut tail, 1200, 105, &[11]);
        settle(&mut tail, one[0]);
        tail.trim();
        tail.note(Mark { snapshot: snapshot("110:110:"), lsn: Lsn(1250) });
        tail.idle(Lsn(1300));
        let position = tail.position();
        assert_eq!((position.base.to_string().as_str(), position.beyond.len()), ("106:106:", 0));
        tail.trim();
        tail.note(Mark { snapshot: snapshot("120:120:"), lsn: Lsn(1290) });
        assert_eq!(tail.position(), position);
        assert_eq!(tail.begin(Lsn(1400)), Ok(Some(0)));
        tail.pass_over(None);
        tail.commit(Lsn(1410));
        tail.note(Mark { snapshot: snapshot("130:130:"), lsn: Lsn(1405) });
        assert_eq!(at(&tail), (1410, "106:106:".to_owned(), "{}".to_owned()));
    }

    #[test]
    fn what_was_settled_before_is_passed_over() {
        let mut tail = tail();
        let rows = transaction(&mut tail, 1050, 98, &[7, 9]);
        assert_eq!(rows[0], None);
        assert_eq!(at(&tail), (1000, "100:100:".to_owned(), "{[7,9)}".to_owned()));
        settle(&mut tail, rows[1]);
        tail.trim();
        assert_eq!(at(&tail).2, "{[7,9)}", "the log could bring 8");
        tail.idle(Lsn(1100));
        assert_eq!(at(&tail).2, "{}");
    }

    #[test]
    fn what_is_passed_over_may_still_be_under_way() {
        let mut tail = tail();
        assert!(tail.settled().is_empty(), "it is for the table to say");
        let rows = transaction(&mut tail, 1200, 105, &[11]);
        settle(&mut tail, rows[0]);
        assert_eq!(tail.settled().to_text(), "{[11,12)}");
    }

    #[test]
    fn a_number_that_is_given_again_is_another_row() {
        let mut tail = tail();
        assert!(transaction(&mut tail, 1099, 101, &[7])[0].is_none());
        assert!(transaction(&mut tail, 1110, 102, &[7, 8]).iter().all(Option::is_some));
    }

    #[test]
    fn a_transaction_that_was_cut_off_goes_on() {
        let mut tail = tail();
        assert_eq!(tail.begin(Lsn(1200)), Ok(Some(0)));
        let place = tail.row(11, Some(105));
        tail.pass_over(None);
        tail.idle(Lsn(9999));
        settle(&mut tail, place);
        tail.trim();
        assert_eq!(at(&tail), (1000, "100:100:".to_owned(), "{[7,9),[11,12)}".to_owned()));
        assert_eq!(tail.read_to(), Lsn(1000));
        assert_eq!(tail.begin(Lsn(1200)), Ok(Some(2)));
        let place = tail.row(12, Some(105));
        tail.commit(Lsn(1210));
        settle(&mut tail, place);
        assert_eq!(at(&tail).0, 1210);
        assert_eq!(tail.begin(Lsn(1200)), Ok(None), "all of it is here");
        assert_eq!(tail.begin(Lsn(1210)), Ok(Some(0)), "its commit record is the next one");
        assert_eq!(tail.begin(Lsn(1300)), Err(Torn));
    }

    #[test]
    fn what_could_not_be_written_is_not_settled() {
        let mut tail = tail();
        let one = transaction(&mut tail, 1200, 105, &[11]);
        settle(&mut tail, one[0]);
        tail.set_settled(one[0].unwrap(), false);
        assert_eq!(tail.unsettled(), 1);
        assert_eq!(at(&tail).0, 1000);
    }
}
