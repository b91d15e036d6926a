//! The events of an outbox in memory that are set aside, and whose turn it is.
//!
//! Kept true between any two calls: *the first blocking row of a key is parked or due at some
//! time*. [`SetAsideRows::mend`] restores it after a change.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use postrider::{Event, Key};

use super::stream::Row;
use crate::failure::Failure;
use crate::source::{Undecodable, Verdict};

/// Why an event is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAsideState {
    /// It waits for an operator.
    Parked,
    /// It waits for a time to come.
    Deferred,
    /// It waits for what stands before it in its key.
    Queued,
}

/// An event that is set aside.
#[derive(Clone, Debug)]
pub struct SetAside {
    /// Its place in the outbox.
    pub seq: u64,
    /// The event, or what was wrong with its row.
    pub event: Result<Arc<Event>, Undecodable>,
    /// What it waits for.
    pub state: SetAsideState,
    /// Later events of its key wait behind it.
    pub blocks: bool,
    /// When it is handed out again, on the outbox's clock (time since the outbox was made).
    pub due: Option<Duration>,
    /// How often publishing it has failed.
    pub attempts: u32,
    /// The last failure.
    pub failure: Option<Failure>,
    /// When it was set aside, or parked.
    pub since: SystemTime,
}

impl SetAside {
    /// The key, if it can be read.
    pub fn key(&self) -> Option<&Key> {
        match &self.event {
            Ok(event) => Some(event.key()),
            Err(undecodable) => undecodable.key.as_ref(),
        }
    }
}

/// A moment, on the outbox's clock and as a date.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) elapsed: Duration,
    pub(super) date: SystemTime,
}

#[derive(Debug, Default)]
pub(super) struct SetAsideRows {
    rows: BTreeMap<u64, SetAside>,
    /// The blocking rows of each key.
    blocking: HashMap<Key, BTreeSet<u64>>,
    due: BTreeSet<(Duration, u64)>,
}

impl SetAsideRows {
    pub(super) fn iter(&self) -> impl Iterator<Item = &SetAside> {
        self.rows.values()
    }

    pub(super) fn get(&self, seq: u64) -> Option<&SetAside> {
        self.rows.get(&seq)
    }

    pub(super) fn blocked_keys(&self) -> impl ExactSizeIterator<Item = &Key> {
        self.blocking.keys()
    }

    /// When the next row comes due.
    pub(super) fn next_due(&self, now: Duration) -> Option<Duration> {
        self.due.range((now, u64::MAX)..).next().map(|(due, _)| *due)
    }

    /// Rows that come back by themselves, now or later.
    pub(super) fn returning(&self) -> impl Iterator<Item = &SetAside> {
        self.due.iter().map(|(_, seq)| &self.rows[seq]).filter(|row| self.is_first(row))
    }

    /// Rows whose turn it is, each followed by what is queued right behind it in its key.
    pub(super) fn due_rows(
        &self,
        now: Duration,
        under_way: &HashSet<u64>,
        events_max: usize,
    ) -> Vec<u64> {
        let mut due = Vec::new();
        for (_, seq) in self.due.range(..=(now, u64::MAX)) {
            if due.len() >= events_max {
                break;
            }
            let row = &self.rows[seq];
            if under_way.contains(seq) || !self.is_first(row) {
                continue;
            }
            due.push(*seq);
            if row.blocks {
                let behind = self.blocking_of(row).range(seq + 1..).copied();
                let may_follow = |seq: &u64| {
                    let row = &self.rows[seq];
                    let is_due = row.due.is_some_and(|due| due <= now);
                    !under_way.contains(seq) && (row.state == SetAsideState::Queued || is_due)
                };
                due.extend(behind.take_while(may_follow).take(events_max - due.len()));
            }
        }
        due
    }

    /// Whether no blocking row of its key stands before this one.
    fn is_first(&self, row: &SetAside) -> bool {
        !row.blocks || self.blocking_of(row).first() == Some(&row.seq)
    }

    fn blocking_of(&self, row: &SetAside) -> &BTreeSet<u64> {
        static NONE: BTreeSet<u64> = BTreeSet::new();
        row.key().and_then(|key| self.blocking.get(key)).unwrap_or(&NONE)
    }

    /// Sets a row aside, or changes why it is. Answers its key if it was blocking or is now.
    pub(super) fn put(
        &mut self,
        seq: u64,
        event: Row,
        verdict: &Verdict,
        now: Moment,
    ) -> Option<Key> {
        let before = self.rows.get(&seq).cloned();
        let was_blocking = self.remove(seq);
        let (state, blocks, due, failure) = match verdict {
            Verdict::Parked { failure, blocks } => {
                (SetAsideState::Parked, *blocks, None, Some(failure))
            }
            Verdict::Deferred { delay, failure, blocks } => {
                let due = now.elapsed.saturating_add(*delay);
                (SetAsideState::Deferred, *blocks, Some(due), failure.as_ref())
            }
            Verdict::Attempting { blocks, .. } => {
                (SetAsideState::Deferred, *blocks, Some(now.elapsed), None)
            }
            Verdict::Queued | Verdict::Delivered | Verdict::Released => {
                (SetAsideState::Queued, true, None, None)
            }
        };
        let mut row = SetAside {
            seq,
            event,
            state,
            blocks,
            due,
            attempts: failure.map_or(0, |failure| failure.attempts),
            failure: failure.cloned(),
            since: now.date,
        };
        if let Some(before) = before {
            row.attempts = failure.map_or(before.attempts, |failure| failure.attempts);
            row.failure = row.failure.or(before.failure);
            if state != SetAsideState::Parked {
                row.since = before.since;
            }
        }
        if let Verdict::Attempting { attempts, .. } = verdict {
            row.attempts = *attempts;
        }
        // What has no key blocks nothing and waits for nothing.
        row.blocks &= row.key().is_some();
        if !row.blocks && state == SetAsideState::Queued {
            row.due = Some(now.elapsed);
        }
        let is_blocking = row.key().filter(|_| row.blocks).cloned();
        if let Some(key) = &is_blocking {
            self.blocking.entry(key.clone()).or_default().insert(seq);
        }
        self.due.extend(row.due.map(|due| (due, seq)));
        self.rows.insert(seq, row);
        is_blocking.or(was_blocking)
    }

    /// Removes a row. Answers its key if it was blocking.
    pub(super) fn remove(&mut self, seq: u64) -> Option<Key> {
        let row = self.rows.remove(&seq)?;
        if let Some(due) = row.due {
            self.due.remove(&(due, seq));
        }
        let key = row.key().filter(|_| row.blocks)?.clone();
        if let Some(rows) = self.blocking.get_mut(&key) {
            rows.remove(&seq);
            if rows.is_empty() {
                self.blocking.remove(&key);
            }
        }
        Some(key)
    }

    /// Gives a parked row a fresh set of attempts, now.
    pub(super) fn retry(&mut self, seq: u64, now: Duration) {
        if let Some(row) = self.rows.get_mut(&seq) {
            row.state = SetAsideState::Deferred;
            row.attempts = 0;
        }
        self.make_due(seq, now);
    }

    fn make_due(&mut self, seq: u64, due: Duration) {
        if let Some(row) = self.rows.get_mut(&seq) {
            if let Some(before) = row.due.replace(due) {
                self.due.remove(&(before, seq));
            }
            self.due.insert((due, seq));
        }
    }

    /// Sees to it that the first blocking row of each key is parked or due. Answers the keys
    /// that have none.
    pub(super) fn mend(&mut self, keys: BTreeSet<Key>, now: Duration) -> Vec<Key> {
        let mut unblocked = Vec::new();
        for key in keys {
            let Some(first) = self.blocking.get(&key).and_then(|rows| rows.first().copied()) else {
                unblocked.push(key);
                continue;
            };
            let row = &self.rows[&first];
            if row.state == SetAsideState::Queued && row.due.is_none() {
                self.make_due(first, now);
            }
        }
        unblocked
    }
}
