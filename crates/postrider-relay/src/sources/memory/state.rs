//! What an outbox in memory knows, and how it changes. No locks, no waiting, no clock.

use std::collections::{BTreeSet, HashSet};
use std::time::SystemTime;

use hashbrown::HashMap;
use postrider::Key;

use super::set_aside::{Moment, SetAsideRows};
use super::stream::{Row, Stream};
use crate::admin::SinkTrouble;
use crate::source::{BatchLimit, Handle, Record, Resume, Settled, Settlement, Verdict};
use crate::sources::room::Room;

/// A row that was handed out.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    seq: u64,
    returned: bool,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) stream: Stream,
    pub(super) set_aside: SetAsideRows,
    pub(super) settled_at: Option<SystemTime>,
    pub(super) trouble: Option<SinkTrouble>,
    /// Everything up to here was handed out at least once.
    position: u64,
    /// Rows up to `position` to be handed out again.
    released: BTreeSet<u64>,
    under_way: HashMap<u64, UnderWay, foldhash::fast::FixedState>,
    /// Rows set aside that are under way.
    returned: HashSet<u64>,
    last_handle: u64,
    generation: u64,
    crashes: u32,
    /// The start is counted.
    is_started: bool,
}

impl State {
    pub(super) fn new(stream: Stream) -> Self {
        Self {
            stream,
            set_aside: SetAsideRows::default(),
            settled_at: None,
            trouble: None,
            position: 0,
            released: BTreeSet::new(),
            under_way: HashMap::with_hasher(foldhash::fast::FixedState::default()),
            returned: HashSet::new(),
            last_handle: 0,
            generation: 0,
            crashes: 0,
            is_started: false,
        }
    }

    /// Takes back whatever is under way, for a new source. Answers its generation.
    pub(super) fn connect(&mut self) -> u64 {
        for (_, row) in self.under_way.drain() {
            if !row.returned {
                self.released.insert(row.seq);
            }
        }
        self.returned.clear();
        self.is_started = false;
        self.generation += 1;
        self.generation
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) fn resume(&mut self) -> Resume {
        let crashes = self.crashes;
        self.crashes += 1;
        self.is_started = true;
        let mut blocked_keys: Vec<Key> = self.set_aside.blocked_keys().cloned().collect();
        blocked_keys.sort_unstable();
        Resume { blocked_keys, crashes, is_troubled: self.trouble.is_some() }
    }

    /// Takes back that the start was counted, if it was.
    pub(super) fn not_started(&mut self) {
        if std::mem::take(&mut self.is_started) {
            self.crashes = self.crashes.saturating_sub(1);
        }
    }

    pub(super) fn note_trouble(&mut self, trouble: Option<&str>, now: SystemTime) {
        let since = self.trouble.as_ref().map_or(now, |noted| noted.since);
        self.trouble = trouble.map(|why| SinkTrouble { why: why.to_owned(), since });
    }

    pub(super) fn survived(&mut self) {
        self.crashes = 0;
    }

    pub(super) fn pending(&self, now: SystemTime) -> bool {
        let has_come = |row: &Row| {
            let deliver_after = row.as_ref().ok().and_then(|event| event.deliver_after());
            deliver_after.is_none_or(|time| time <= now)
        };
        self.stream.any_unsettled(has_come)
            || self.set_aside.returning().any(|row| has_come(&row.event))
    }

    pub(super) fn read(&mut self, limit: BatchLimit, now: Moment) -> Vec<Record> {
        let mut room = Room::new(limit);
        let mut batch = Vec::new();
        for seq in self.set_aside.due_rows(now.elapsed, &self.returned, room.events()) {
            let Some(row) = self.set_aside.get(seq) else {
                continue;
            };
            let (event, attempts) = (row.event.clone(), row.attempts);
            if !self.hand_out(&mut batch, &mut room, (seq, event), Some(attempts), now) {
                return batch;
            }
        }
        while let Some(seq) = self.released.first().copied() {
            if let Some(row) = self.stream.get(seq)
                && !self.hand_out(&mut batch, &mut room, (seq, row), None, now)
            {
                return batch;
            }
            self.released.remove(&seq);
        }
        while !room.is_full()
            && let Some((seq, row)) = self.stream.after(self.position)
            && self.hand_out(&mut batch, &mut room, (seq, row), None, now)
        {
            self.position = seq;
        }
        batch
    }

    /// Adds a row to the batch; false if there is no room. `attempts` is given for a row that
    /// was set aside.
    fn hand_out(
        &mut self,
        batch: &mut Vec<Record>,
        room: &mut Room,
        (seq, event): (u64, Row),
        attempts: Option<u32>,
        now: Moment,
    ) -> bool {
        let deliver_after = event.as_ref().ok().and_then(|event| event.deliver_after());
        let delay = deliver_after.and_then(|time| time.duration_since(now.date).ok());
        let returned = attempts.is_some();
        let record = Record {
            handle: Handle(self.last_handle + 1),
            event,
            attempts: attempts.unwrap_or(0),
            returned,
            delay: delay.filter(|delay| !delay.is_zero()),
        };
        if !room.take(record.size_bytes()) {
            return false;
        }
        self.last_handle += 1;
        self.under_way.insert(self.last_handle, UnderWay { seq, returned });
        if returned {
            self.returned.insert(seq);
        }
        batch.push(record);
        true
    }

    pub(super) fn settle(&mut self, settlements: &[Settlement], now: Moment) -> Settled {
        let mut touched = BTreeSet::new();
        for settlement in settlements {
            let Some(row) = self.under_way.remove(&settlement.handle.0) else {
                continue;
            };
            match settlement.verdict {
                // It is still under way, from now on as a row that is set aside.
                Verdict::Attempting { .. } => {
                    let handle = settlement.handle.0;
                    self.under_way.insert(handle, UnderWay { returned: true, ..row });
                    self.returned.insert(row.seq);
                }
                _ => drop(self.returned.remove(&row.seq)),
            }
            match &settlement.verdict {
                Verdict::Delivered if row.returned => {
                    touched.extend(self.set_aside.remove(row.seq))
                }
                Verdict::Delivered => self.stream.delivered(row.seq),
                Verdict::Released if row.returned => {}
                Verdict::Released => drop(self.released.insert(row.seq)),
                verdict => {
                    let event = match row.returned {
                        true => self.set_aside.get(row.seq).map(|row| row.event.clone()),
                        false => self.stream.remove(row.seq),
                    };
                    let Some(event) = event else { continue };
                    touched.extend(self.set_aside.put(row.seq, event, verdict, now));
                }
            }
        }
        if settlements.iter().any(|it| it.verdict == Verdict::Delivered) {
            self.settled_at = Some(now.date);
        }
        Settled { unblocked: self.set_aside.mend(touched, now.elapsed) }
    }
}
