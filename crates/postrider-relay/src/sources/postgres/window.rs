//! What a source has read and not seen settled, in memory.
//!
//! A row is named by a handle that is used once: settling it a second time, or after it was
//! released and handed out again, finds nothing. Each fresh row is read once, in its tick
//! ([`frontier`](super::frontier)); those that were released are read again by their number. What
//! comes from the log ([`Tail`]) may be in no table, so it is kept until it is settled. Rows that
//! were set aside are found by a query, which is told which of them are under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use postrider::{Event, Key};

use super::frontier::{Frontier, Position, TickNumber};
use super::log::{LogPosition, Place, Stored, Tail};
use super::ranges::Ranges;
use super::row::Decoded;
use crate::source::{Handle, Record, Settlement, Undecodable, Verdict};

/// A row that was handed out.
#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    pub(super) seq: i64,
    /// See [`Decoded`].
    id: Option<Box<str>>,
    pub(super) event: Result<Arc<Event>, Undecodable>,
    /// See [`Decoded`].
    pub(super) raw: Option<Box<Stored>>,
    /// See [`Record`].
    delay: Option<Duration>,
    pub(super) origin: Origin,
}

/// Where a row was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// In the outbox.
    Fresh(TickNumber),
    /// In the log, and by which transaction if it is in the outbox, too.
    Logged { place: Place, xid: Option<u64> },
    /// Among the rows set aside, and whether others of its key wait behind it.
    SetAside { blocks: bool },
}

impl UnderWay {
    /// Its key, if that can be read.
    pub(super) fn key(&self) -> Option<&Key> {
        match &self.event {
            Ok(event) => Some(event.key()),
            Err(bad) => bad.key.as_ref(),
        }
    }

    /// What the row has as its id. A number alone may have been given again: after a crash, or by
    /// somebody who has reset the numbering.
    pub(super) fn id(&self) -> Option<String> {
        let of_event = || self.event.as_ref().ok().map(|event| event.id().to_string());
        self.id.as_ref().map(|id| id.to_string()).or_else(of_event)
    }

    pub(super) fn was_set_aside(&self) -> bool {
        matches!(self.origin, Origin::SetAside { .. })
    }
}

/// A row that is being settled, with the last that was said about it.
#[derive(Clone, Debug)]
pub(super) struct Settling {
    handle: Handle,
    /// The row as it was before.
    pub(super) row: UnderWay,
    pub(super) verdict: Verdict,
    /// It was [`Verdict::Attempting`] and released then.
    released: bool,
}

#[derive(Debug)]
pub(super) struct Window {
    pub(super) frontier: Frontier,
    /// What was read from the log, once that is read.
    pub(super) tail: Option<Tail>,
    /// Where the slot begins, as long as the table is not settled up to there.
    pub(super) made: Option<LogPosition>,
    /// Numbers that the log may bring once more.
    pub(super) passed_over: Ranges,
    /// Fresh rows to be handed out again, in the order of their numbers, with their ticks.
    pub(super) released: BTreeMap<i64, TickNumber>,
    /// The same of the log, which come after those.
    given_back: BTreeMap<Place, UnderWay>,
    under_way: HashMap<u64, UnderWay, FixedState>,
    /// Rows that were set aside and are under way.
    set_aside: BTreeSet<i64>,
    /// Rows that are being set aside just now.
    going: BTreeSet<i64>,
    last_handle: u64,
}

impl Window {
    /// Goes on from a position: in the log, or in the table.
    pub(super) fn new(position: Position, tail: Option<Tail>) -> Self {
        let made = position.log.clone();
        let since = made.as_ref().and_then(|made| made.since.as_ref());
        let (position, passed_over) = match (&tail, since) {
            (Some(_), _) => (Position::at(position.base), Ranges::default()),
            (None, None) => (position, Ranges::default()),
            // What is behind the slot comes from the log, among events that only the log has.
            (None, Some(since)) => {
                let (seen, passed_over) =
                    (position.tick.clone().union(since), position.beyond.clone());
                (Position { seen, ..position }, passed_over)
            }
        };
        Self {
            tail,
            made,
            passed_over,
            given_back: BTreeMap::new(),
            frontier: Frontier::new(position),
            released: BTreeMap::new(),
            under_way: HashMap::with_hasher(FixedState::default()),
            set_aside: BTreeSet::new(),
            going: BTreeSet::new(),
            last_handle: 0,
        }
    }

    /// Rows that were set aside and are under way.
    pub(super) fn set_aside(&self) -> Vec<i64> {
        self.set_aside.iter().copied().collect()
    }

    /// Whether a row that is set aside may not be handed out now. A query that was begun before
    /// the row was written can find it before it is known here that it was.
    pub(super) fn is_busy(&self, seq: i64) -> bool {
        self.set_aside.contains(&seq) || self.going.contains(&seq)
    }

    /// Fresh rows that are under way, being settled or to be handed out again.
    pub(super) fn fresh(&self) -> Vec<i64> {
        let under_way = self.under_way.values().filter(|row| !row.was_set_aside());
        let under_way = under_way.map(|row| row.seq).chain(self.going.iter().copied());
        under_way.chain(self.released.keys().copied()).collect()
    }

    /// Takes back what stands behind a row that was released: it comes again after that one.
    pub(super) fn take_back(&mut self, kept: &mut VecDeque<Record>) {
        let first = self.released.first_key_value().map(|(seq, _)| *seq);
        let first_place = self.given_back.first_key_value().map(|(place, _)| *place);
        if first.is_none() && first_place.is_none() {
            return;
        }
        kept.retain(|record| {
            let handle = record.handle.0;
            let row = self.under_way.get(&handle).map(|row| (row.seq, row.origin));
            match row {
                Some((seq, Origin::Fresh(tick)))
                    if tick != TickNumber::NONE && first.is_some_and(|first| seq >= first) =>
                {
                    self.under_way.remove(&handle);
                    self.released.insert(seq, tick);
                    false
                }
                Some((_, Origin::Logged { place, .. }))
                    if first.is_some() || first_place.is_some_and(|first| place > first) =>
                {
                    self.given_back.extend(self.under_way.remove(&handle).map(|row| (place, row)));
                    false
                }
                _ => true,
            }
        });
    }

    /// Forgets rows that were set aside and are not handed out now: they stand behind others of
    /// their key, which may fail once more. When it is their turn they are found again. Answers
    /// whether there were any.
    pub(super) fn forget_returned(&mut self, kept: &mut VecDeque<Record>) -> bool {
        let before = kept.len();
        kept.retain(|record| {
            if record.returned
                && let Some(row) = self.under_way.remove(&record.handle.0)
            {
                self.set_aside.remove(&row.seq);
            }
            !record.returned
        });
        kept.len() < before
    }

    /// Hands out what was given back of the log.
    pub(super) fn hand_out_again(&mut self, rows: usize, bytes: usize) -> Vec<Record> {
        let mut records = Vec::new();
        let mut room = bytes;
        while records.len() < rows
            && (records.is_empty() || room > 0)
            && let Some((_, row)) = self.given_back.pop_first()
        {
            self.last_handle += 1;
            let record = Record {
                handle: Handle(self.last_handle),
                event: row.event.clone(),
                attempts: 0,
                returned: false,
                delay: row.delay,
            };
            room = room.saturating_sub(record.size_bytes());
            records.push(record);
            self.under_way.insert(self.last_handle, row);
        }
        records
    }

    /// What may be written down.
    pub(super) fn position(&self) -> Position {
        match &self.tail {
            Some(tail) if self.frontier.is_done() => tail.position(),
            tail => {
                let mut position = self.frontier.position();
                position.log = self.made.clone();
                position.beyond = position.beyond.union(&self.passed_over);
                if let Some(tail) = tail {
                    position.beyond = position.beyond.union(&tail.settled());
                    position.seen = tail.seen().clone();
                }
                position
            }
        }
    }

    /// How many fresh rows are read and not settled.
    pub(super) fn unsettled(&self) -> usize {
        self.frontier.unsettled() + self.tail.as_ref().map_or(0, Tail::unsettled)
    }

    /// How many fresh rows are under way, being settled or to be handed out again.
    pub(super) fn under_way(&self) -> usize {
        let handed_out = self.under_way.values().filter(|row| !row.was_set_aside()).count();
        handed_out + self.going.len() + self.released.len() + self.given_back.len()
    }

    /// Whether no fresh row is under way, being settled or to be handed out again.
    pub(super) fn is_quiet(&self) -> bool {
        self.under_way() == 0
    }

    /// Forgets what was read, so that it is read again. Only rows set aside may be under way.
    pub(super) fn start_over(&mut self) {
        self.frontier = Frontier::new(Position::start());
    }

    /// Gives a row its handle.
    pub(super) fn hand_out(
        &mut self,
        row: &mut Decoded,
        delay: Option<Duration>,
        origin: Origin,
    ) -> Handle {
        self.last_handle += 1;
        if let Origin::SetAside { .. } = origin {
            self.set_aside.insert(row.seq);
        }
        let (id, event, raw) = (row.id.take(), row.event.clone(), row.raw.take());
        let row = UnderWay { seq: row.seq, id, event, raw, delay, origin };
        self.under_way.insert(self.last_handle, row);
        Handle(self.last_handle)
    }

    /// Takes the rows that are being settled out of what is under way. What is said about a row
    /// twice counts the second time.
    pub(super) fn take(&mut self, settlements: &[Settlement]) -> Vec<Settling> {
        let mut settling: Vec<Settling> = Vec::with_capacity(settlements.len());
        let mut attempting: HashMap<u64, usize, FixedState> = HashMap::default();
        for Settlement { handle, verdict } in settlements {
            if let Some(index) = attempting.get(&handle.0) {
                let before = &mut settling[*index];
                match verdict {
                    Verdict::Released => before.released = true,
                    verdict => before.verdict = verdict.clone(),
                }
                continue;
            }
            let Some(row) = self.under_way.remove(&handle.0) else {
                continue;
            };
            if let Verdict::Attempting { .. } = verdict {
                attempting.insert(handle.0, settling.len());
            }
            let verdict = verdict.clone();
            settling.push(Settling { handle: *handle, row, verdict, released: false });
        }
        for Settling { row, verdict, .. } in &settling {
            if verdict != &Verdict::Released && !row.was_set_aside() {
                self.set_settled(row, true);
                self.going.insert(row.seq);
            }
        }
        settling
    }

    fn set_settled(&mut self, row: &UnderWay, settled: bool) {
        match (row.origin, &mut self.tail) {
            (Origin::Fresh(tick), _) => self.frontier.set_settled(tick, row.seq, settled),
            (Origin::Logged { place, .. }, Some(tail)) => tail.set_settled(place, settled),
            (Origin::Logged { .. } | Origin::SetAside { .. }, _) => {}
        }
    }

    /// The settlements are written.
    pub(super) fn settled(&mut self, settling: Vec<Settling>) {
        for Settling { handle, row, verdict, released } in settling {
            self.going.remove(&row.seq);
            match (&verdict, row.origin) {
                (Verdict::Attempting { blocks, .. }, _) if !released => {
                    // It is still under way, from now on as a row that is set aside.
                    let blocks = *blocks && row.key().is_some();
                    self.set_aside.insert(row.seq);
                    let origin = Origin::SetAside { blocks };
                    self.under_way.insert(handle.0, UnderWay { origin, ..row });
                }
                // What was not found in a tick is found again by itself.
                (Verdict::Released, Origin::Fresh(tick)) if tick != TickNumber::NONE => {
                    self.released.insert(row.seq, tick);
                }
                (Verdict::Released, Origin::Logged { place, .. }) => {
                    self.given_back.insert(place, row);
                }
                (_, Origin::SetAside { .. }) => {
                    self.set_aside.remove(&row.seq);
                }
                (_, Origin::Fresh(_) | Origin::Logged { .. }) => {}
            }
        }
        self.trim();
    }

    /// Forgets what is behind the position, once that is written. Of the log that is nothing as
    /// long as the position is that of the table.
    pub(super) fn trim(&mut self) {
        self.frontier.trim();
        if let Some(tail) = self.tail.as_mut().filter(|_| self.frontier.is_done()) {
            tail.trim();
        }
    }

    /// The settlements could not be written: everything is under way as before.
    pub(super) fn put_back(&mut self, settling: Vec<Settling>) {
        for Settling { handle, row, .. } in settling {
            if !row.was_set_aside() {
                self.set_settled(&row, false);
                self.going.remove(&row.seq);
            }
            self.under_way.insert(handle.0, row);
        }
    }
}
