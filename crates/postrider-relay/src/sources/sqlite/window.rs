//! What a source has handed out and not seen settled, in memory.
//!
//! A row is named by a handle that is used once: settling it a second time, or after it was
//! released and handed out again, finds nothing. Fresh rows are read in the order of `seq` and
//! never twice, because reading goes on behind `position`; those that were released are read
//! again one by one. Rows that were set aside are found by a query, which is told here which of
//! them are under way.

use std::collections::{BTreeSet, HashSet};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::frontier::Frontier;
use super::row::Decoded;
use crate::source::{Handle, Settlement, Verdict};

/// A row that was handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) seq: i64,
    /// It was set aside.
    pub(super) returned: bool,
    /// Its key can be read.
    pub(super) keyed: bool,
}

#[derive(Debug)]
pub(super) struct Window {
    /// Fresh rows up to here were read.
    pub(super) position: i64,
    /// Progress of a cursor; idle if progress is kept in the rows.
    pub(super) frontier: Frontier,
    /// Fresh rows to be handed out again.
    pub(super) released: BTreeSet<i64>,
    under_way: HashMap<u64, UnderWay, FixedState>,
    /// Rows that were set aside and are under way.
    returned: HashSet<i64>,
    last_handle: u64,
}

impl Window {
    pub(super) fn new(position: i64) -> Self {
        Self {
            position,
            frontier: Frontier::new(position),
            released: BTreeSet::new(),
            under_way: HashMap::with_hasher(FixedState::default()),
            returned: HashSet::new(),
            last_handle: 0,
        }
    }

    /// Goes on as a cursor from here. Only rows that were set aside may be under way.
    pub(super) fn start_cursor(&mut self, position: i64) {
        self.position = position;
        self.frontier = Frontier::new(position);
    }

    /// Whether a row that was set aside is under way.
    pub(super) fn has_returned(&self, seq: i64) -> bool {
        self.returned.contains(&seq)
    }

    /// How many rows that were set aside are under way.
    pub(super) fn returned(&self) -> usize {
        self.returned.len()
    }

    /// Whether no fresh row is under way or to be handed out again.
    pub(super) fn is_quiet(&self) -> bool {
        self.released.is_empty() && self.under_way.len() == self.returned.len()
    }

    /// Gives a row its handle.
    pub(super) fn hand_out(&mut self, row: &Decoded, returned: bool) -> Handle {
        let keyed = row.event.as_ref().map_or_else(|bad| bad.key.is_some(), |_| true);
        self.last_handle += 1;
        self.under_way.insert(self.last_handle, UnderWay { seq: row.seq, returned, keyed });
        if returned {
            self.returned.insert(row.seq);
        }
        Handle(self.last_handle)
    }

    /// Takes the rows that are being settled out of what is under way.
    pub(super) fn take<'s>(&mut self, settlements: &'s [Settlement]) -> Vec<Settling<'s>> {
        let mut settling = Vec::with_capacity(settlements.len());
        for Settlement { handle, verdict } in settlements {
            let Some(row) = self.under_way.remove(&handle.0) else {
                continue;
            };
            let leaves_stream = verdict != &Verdict::Released && !row.returned;
            if leaves_stream {
                self.frontier.set_settled(row.seq, true);
            }
            if let Verdict::Attempting { .. } = verdict {
                // It is still under way, from now on as a row that is set aside.
                self.under_way.insert(handle.0, UnderWay { returned: true, ..row });
                self.returned.insert(row.seq);
            }
            settling.push(Settling { handle: *handle, row, verdict });
        }
        settling
    }

    /// The settlements are written.
    pub(super) fn settled(&mut self, settling: Vec<Settling<'_>>) {
        for Settling { row, verdict, .. } in settling {
            match verdict {
                Verdict::Attempting { .. } => {}
                Verdict::Released if !row.returned => drop(self.released.insert(row.seq)),
                _ => drop(self.returned.remove(&row.seq)),
            }
        }
        self.frontier.trim();
    }

    /// The settlements could not be written: everything is under way as before.
    pub(super) fn put_back(&mut self, settling: Vec<Settling<'_>>) {
        // Backwards, for a row that has two of them.
        for Settling { handle, row, .. } in settling.into_iter().rev() {
            self.under_way.insert(handle.0, row);
            if row.returned {
                self.returned.insert(row.seq);
            } else {
                self.returned.remove(&row.seq);
                self.frontier.set_settled(row.seq, false);
            }
        }
    }
}

/// A row that is being settled.
#[derive(Debug)]
pub(super) struct Settling<'s> {
    handle: Handle,
    pub(super) row: UnderWay,
    pub(super) verdict: &'s Verdict,
}
