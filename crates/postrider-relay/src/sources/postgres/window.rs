//! What a source has read and not seen settled, in memory.
//!
//! A row is named by a handle that is used once: settling it a second time, or after it was
//! released and handed out again, finds nothing. Each fresh row is read once, in its tick
//! ([`frontier`](super::frontier)); those that were released are read again by their number. Rows
//! that were set aside are found by a query, which is told which of them are under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use postrider::{Event, Key};

use super::frontier::{Frontier, Position, TickNumber};
use super::row::Decoded;
use crate::source::{Handle, Record, Settlement, Undecodable, Verdict};

/// A row that was handed out.
#[derive(Clone, Debug)]
pub(super) struct UnderWay {
    pub(super) seq: i64,
    pub(super) event: Result<Arc<Event>, Undecodable>,
    pub(super) origin: Origin,
}

/// Where a row was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// In the outbox.
    Fresh(TickNumber),
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
    /// Fresh rows to be handed out again, in the order of their numbers, with their ticks.
    pub(super) released: BTreeMap<i64, TickNumber>,
    under_way: HashMap<u64, UnderWay, FixedState>,
    /// Rows that were set aside and are under way.
    set_aside: BTreeSet<i64>,
    /// Rows that are being set aside just now.
    going: BTreeSet<i64>,
    last_handle: u64,
}

impl Window {
    pub(super) fn new(position: Position) -> Self {
        Self {
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
        let Some((&first, _)) = self.released.first_key_value() else { return };
        kept.retain(|record| {
            let row = self.under_way.get(&record.handle.0).map(|row| (row.seq, row.origin));
            let Some((seq, Origin::Fresh(tick))) = row else { return true };
            let is_before = seq < first || tick == TickNumber::NONE;
            if !is_before {
                self.under_way.remove(&record.handle.0);
                self.released.insert(seq, tick);
            }
            is_before
        });
    }

    /// Whether no fresh row is under way, being settled or to be handed out again.
    pub(super) fn is_quiet(&self) -> bool {
        self.released.is_empty()
            && self.going.is_empty()
            && self.under_way.len() == self.set_aside.len()
    }

    /// Forgets what was read, so that it is read again. Only rows set aside may be under way.
    pub(super) fn start_over(&mut self) {
        self.frontier = Frontier::new(Position::start());
    }

    /// Gives a row its handle.
    pub(super) fn hand_out(&mut self, row: &Decoded, origin: Origin) -> Handle {
        self.last_handle += 1;
        if let Origin::SetAside { .. } = origin {
            self.set_aside.insert(row.seq);
        }
        let row = UnderWay { seq: row.seq, event: row.event.clone(), origin };
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
            if let (Origin::Fresh(tick), true) = (row.origin, verdict != &Verdict::Released) {
                self.frontier.set_settled(tick, row.seq, true);
                self.going.insert(row.seq);
            }
        }
        settling
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
                (_, Origin::SetAside { .. }) => {
                    self.set_aside.remove(&row.seq);
                }
                (_, Origin::Fresh(_)) => {}
            }
        }
        self.frontier.trim();
    }

    /// The settlements could not be written: everything is under way as before.
    pub(super) fn put_back(&mut self, settling: Vec<Settling>) {
        for Settling { handle, row, .. } in settling {
            if let Origin::Fresh(tick) = row.origin {
                self.frontier.set_settled(tick, row.seq, false);
                self.going.remove(&row.seq);
            }
            self.under_way.insert(handle.0, row);
        }
    }
}
