//! The pipeline's logic: a state machine without I/O, clock or randomness of its own.
//!
//! It is told what happened ([`read`](Engine::read), [`published`](Engine::published),
//! [`settled`](Engine::settled), with the time) and asked what to do next
//! ([`want`](Engine::want), [`next_call`](Engine::next_call),
//! [`next_settlements`](Engine::next_settlements)). The [pipeline](super) joins it to a real
//! source, sink and clock; the simulation joins it to fake ones and takes it through thousands
//! of faults.
//!
//! # Rules
//!
//! 1. An event goes to the sink only when no earlier event of its key is under way, set aside or
//!    waiting (in one call together, where the sink keeps their order).
//! 2. Every event that was read gets exactly one verdict, and `Delivered` only if the sink said
//!    so.
//! 3. An event that failed leaves memory: it is set aside in the source, and so is everything of
//!    its key that was read behind it. So one bad key never fills the window.
//! 4. A key stays blocked from the moment one of its events is set aside until the source says
//!    that the last one is gone *and* no verdict that sets another one aside is still on its way.
//!    An event is set aside only when it is the first of its lane: so whatever comes back of a
//!    blocked key has nothing before it that the source does not know of yet.
//! 5. Events that were refused in company keep their places, and nothing is counted against them
//!    (see [`company`](super::company)).
//! 6. While the sink as a whole is in trouble, nothing is counted against events, a few of them
//!    are tried, and no more are read than that takes.

mod answers;
mod exchange;
mod pauses;

use std::collections::HashSet;
use std::time::Duration;

use hashbrown::HashMap;

pub use self::exchange::{Call, Incoming, Policy, Progress, SettlementBatch};

use self::exchange::Note;
use super::breaker::{Breaker, PROBES_MAX};
use super::care::{Care, Turn};
use super::company::{Company, Kind};
use super::lanes::{Entry, Lanes, Room};
use super::options::{Ordering, Window};
use crate::failure::{Failure, FailureKind, SinkError};
use crate::source::{Handle, Settlement, Verdict};

/// Reading waits until so large a part of the window is free, so that batches stay large.
const READ_PART: usize = 4;

/// The pipeline's logic.
#[derive(Debug)]
pub struct Engine<M> {
    policy: Policy,
    lanes: Lanes<M>,
    breaker: Breaker,
    care: Care,
    company: Company,
    /// Lanes that an operator has stopped.
    paused: HashSet<u64>,
    /// Blocked keys, each with the number of verdicts on their way that set something aside.
    blocked: HashMap<u64, usize, foldhash::fast::FixedState>,
    calls: usize,
    bytes: usize,
    verdicts: SettlementBatch,
    /// Verdicts handed out and not confirmed.
    settling: usize,
    moved_at: Duration,
    /// When the sink last took an event.
    taken_at: Option<Duration>,
    stopping: bool,
    stopped_by: Option<SinkError>,
}

impl<M> Engine<M> {
    /// An engine that knows the blocked keys, after so many crashes.
    pub fn new(policy: Policy, blocked: impl IntoIterator<Item = u64>, crashes: u32) -> Self {
        Self {
            policy,
            lanes: Lanes::new(),
            breaker: Breaker::new(policy.seed, policy.outage_lanes),
            care: Care::after(crashes, policy.window.events_max),
            company: Company::new(),
            paused: HashSet::new(),
            blocked: blocked.into_iter().map(|key| (key, 0)).collect(),
            calls: 0,
            bytes: 0,
            verdicts: SettlementBatch::default(),
            settling: 0,
            moved_at: Duration::ZERO,
            taken_at: None,
            stopping: false,
            stopped_by: None,
        }
    }

    /// How many events and bytes to read, if any.
    pub fn want(&self) -> Option<(usize, usize)> {
        let Window { events_max, bytes_max } = self.policy.window;
        let events = events_max.saturating_sub(self.held());
        let bytes = bytes_max.saturating_sub(self.bytes);
        let enough = events >= events_max.div_ceil(READ_PART) && bytes >= bytes_max / READ_PART;
        let needed = self.breaker.is_closed() || self.lanes.len() < PROBES_MAX;
        (enough && needed && !self.stopping).then_some((events, bytes))
    }

    /// Takes in what was read. An empty batch says that there was nothing.
    pub fn read(&mut self, batch: impl IntoIterator<Item = Incoming<M>>, now: Duration) {
        if self.lanes.len() == 0 {
            self.moved_at = now;
        }
        let mut count = 0;
        for incoming in batch {
            count += 1;
            let early = self.care.admit();
            self.admit(incoming, early);
        }
        if count == 0 {
            self.care.read_everything();
        }
    }

    fn admit(&mut self, incoming: Incoming<M>, early: bool) {
        let Incoming { handle, id, bytes, attempts, returned, delay, message, .. } = incoming;
        let key = incoming.key.filter(|_| self.policy.ordering == Ordering::Key);
        if self.stopping {
            return self.settle(handle, key, early, Verdict::Released);
        }
        if let Some(delay) = delay.filter(|delay| !delay.is_zero()) {
            let verdict = Verdict::Deferred { delay, failure: None, blocks: false };
            return self.settle(handle, key, early, verdict);
        }
        if !returned && key.is_some_and(|key| self.blocked.contains_key(&key)) {
            return self.settle(handle, key, early, Verdict::Queued);
        }
        let mut entry = Entry::new(handle, key, id, message);
        entry.bytes = bytes;
        entry.attempts = attempts;
        entry.early = early;
        entry.returned = returned;
        self.bytes += bytes;
        if returned && self.company.singles_out(id) {
            self.lanes.push_suspect(entry);
        } else {
            self.lanes.push(entry);
        }
    }

    /// The next events to publish, if any may be sent now.
    pub fn next_call(&mut self, now: Duration) -> Option<Call<M>> {
        if self.stopping || self.calls >= self.policy.calls_max {
            return None;
        }
        let in_flight = self.lanes.in_flight();
        let events = self.breaker.allowance(now, in_flight).min(self.policy.batch_events_max);
        if self.care.is_careful() {
            return self.next_careful_call(events);
        }
        if self.company.under_way == Some(Kind::Alone) {
            return None;
        }
        let room = Room {
            events,
            bytes: self.policy.batch_bytes_max,
            whole_lanes: self.policy.ordered_by_key,
        };
        // What a connection died of is no probe, unless there is no other.
        let may_probe = self.breaker.is_closed() || !self.lanes.has_ready();
        if self.lanes.has_suspects() && self.company.under_way.is_none() && may_probe {
            let events = events.min(self.company.most());
            // What is refused alone was refused because of itself.
            let kind = if events == 1 { Kind::Alone } else { Kind::Suspects };
            if kind == Kind::Alone && self.calls > 0 {
                return None;
            }
            if let Some(entries) =
                self.sendable(|lanes| lanes.take_suspects(Room { events, ..room }))
            {
                self.company.under_way = Some(kind);
                return Some(self.call(entries, kind));
            }
        }
        let entries = self.sendable(|lanes| lanes.take(room))?;
        Some(self.call(entries, Kind::Ordinary))
    }

    /// Takes events until there are some that may be sent, or none are left.
    fn sendable(&mut self, take: impl Fn(&mut Lanes<M>) -> Vec<usize>) -> Option<Vec<usize>> {
        loop {
            let entries = take(&mut self.lanes);
            if entries.is_empty() {
                return None;
            }
            let mut entries = self.without_paused(entries);
            entries.retain(|index| !self.park_unsendable(*index));
            if !entries.is_empty() {
                return Some(entries);
            }
        }
    }

    /// Parks an event that can never be sent. That waits until it is its turn: set aside before
    /// an earlier event of its key has its verdict, it could overtake that one later.
    fn park_unsendable(&mut self, index: usize) -> bool {
        let entry = self.lanes.entry(index);
        let Some(message) = entry.unsendable.take() else { return false };
        let (key, attempts) = (entry.key, entry.attempts.saturating_add(1));
        let failure = Failure { kind: FailureKind::Rejected, message, attempts };
        self.conclude(index, Verdict::Parked { failure, blocks: self.parked_blocks(key) });
        self.lanes.put_back(key, 1, &[], false);
        true
    }

    /// After crashes: sends one event at a time, after its attempt was written down, and parks an
    /// event that brought the relay down too often.
    fn next_careful_call(&mut self, allowed: usize) -> Option<Call<M>> {
        if let Some(turn) = self.care.turn.take_if(|turn| turn.written) {
            let mut call = self.call(vec![turn.entry], Kind::Alone);
            call.written_down = true;
            return Some(call);
        }
        let room = Room { events: 1, bytes: usize::MAX, whole_lanes: false };
        while allowed > 0 && self.lanes.in_flight() == 0 {
            let taken = self.lanes.take(room);
            if taken.is_empty() {
                return None;
            }
            let Some(&index) = self.without_paused(taken).first() else { continue };
            if self.park_unsendable(index) {
                continue;
            }
            let entry = self.lanes.entry(index);
            let (handle, key, attempts) = (entry.handle, entry.key, entry.attempts);
            if attempts < self.policy.retry.attempts {
                let (attempts, blocks) = (attempts + 1, key.is_some());
                self.care.turn = Some(Turn { entry: index, written: false });
                let note = Note { begins_turn: true, ..Note::default() };
                self.verdict(handle, Verdict::Attempting { attempts, blocks }, note);
                break;
            }
            let message = format!("the relay stopped {attempts} times while publishing this event");
            let failure = Failure { kind: FailureKind::Failed, message, attempts };
            self.conclude(index, Verdict::Parked { failure, blocks: self.parked_blocks(key) });
            self.lanes.put_back(key, 1, &[], false);
        }
        None
    }

    fn call(&mut self, entries: Vec<usize>, kind: Kind) -> Call<M> {
        let messages = entries
            .iter()
            .map(|index| self.lanes.entry(*index).message.take())
            .map(|message| message.expect("an event that is not under way has its message"))
            .collect();
        self.calls += 1;
        Call { entries, messages, kind, written_down: false }
    }

    fn settle(&mut self, handle: Handle, key: Option<u64>, early: bool, verdict: Verdict) {
        let sets_aside = key.filter(|_| sets_aside(&verdict));
        if let Some(key) = sets_aside {
            *self.blocked.entry(key).or_default() += 1;
        }
        self.verdict(handle, verdict, Note { sets_aside, early, begins_turn: false });
    }

    fn verdict(&mut self, handle: Handle, verdict: Verdict, note: Note) {
        self.verdicts.settlements.push(Settlement { handle, verdict });
        self.verdicts.notes.push(note);
    }

    /// The next verdicts to settle. One batch at a time: the next one comes after
    /// [`settled`](Self::settled).
    pub fn next_settlements(&mut self) -> Option<SettlementBatch> {
        if self.settling > 0 || self.verdicts.settlements.is_empty() {
            return None;
        }
        let batch = std::mem::take(&mut self.verdicts);
        self.settling = batch.settlements.len();
        Some(batch)
    }

    /// Takes in that verdicts are durable, and which keys have nothing set aside any more.
    pub fn settled(&mut self, batch: SettlementBatch, unblocked: impl IntoIterator<Item = u64>) {
        self.settling = 0;
        for note in batch.notes {
            if note.begins_turn {
                self.care.written_down();
            }
            if let Some(on_their_way) = note.sets_aside.and_then(|key| self.blocked.get_mut(&key)) {
                *on_their_way -= 1;
            }
            if note.early {
                self.care.settled_one();
            }
        }
        for key in unblocked {
            if self.blocked.get(&key) == Some(&0) {
                self.blocked.remove(&key);
            }
        }
    }

    /// True once: the events that were under way at an earlier crash are settled.
    pub fn take_survived(&mut self) -> bool {
        self.care.take_survived()
    }

    /// Begins to stop: reads and sends nothing more and gives back what is not under way.
    pub fn stop(&mut self) {
        self.stopping = true;
        if let Some(turn) = self.care.turn.take() {
            // It was not tried after all.
            let entry = self.remove(turn.entry);
            let (attempts, blocks) = (entry.attempts, entry.key.is_some());
            let taken_back = Verdict::Attempting { attempts, blocks };
            self.verdict(entry.handle, taken_back, Note::default());
            self.settle(entry.handle, entry.key, entry.early, Verdict::Released);
            self.lanes.put_back(entry.key, 1, &[], false);
        }
        self.release();
    }

    /// Gives up the calls under way. Their outcome stays unknown and their events unsettled, so
    /// they come back at the next start.
    pub fn abandon(&mut self) {
        self.stop();
        self.calls = 0;
        self.bytes = 0;
        self.lanes = Lanes::new();
    }

    fn release(&mut self) {
        for entry in self.lanes.clear_all() {
            self.bytes -= entry.bytes;
            self.settle(entry.handle, entry.key, entry.early, Verdict::Released);
        }
    }

    /// Whether a stop was begun.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Whether a stop has come to its end: nothing under way, everything settled.
    pub fn is_finished(&self) -> bool {
        self.stopping && self.calls == 0 && self.unsettled() == 0
    }

    /// The error that stopped the pipeline.
    pub fn stopped_by(&self) -> Option<&SinkError> {
        self.stopped_by.as_ref()
    }

    /// Whether nothing is in memory.
    pub fn is_empty(&self) -> bool {
        self.lanes.len() == 0 && self.unsettled() == 0
    }

    /// When something may be sent again without anything happening before.
    pub fn wake_at(&self) -> Option<Duration> {
        let may_send = !self.stopping
            && self.calls < self.policy.calls_max
            && self.lanes.len() > self.lanes.in_flight();
        self.breaker.opens_at().filter(|_| may_send)
    }

    /// How the pipeline gets on.
    pub fn progress(&self, now: Duration, stall_after: Duration) -> Progress {
        let all_postponed = !self.breaker.is_closed() && !self.blocked.is_empty();
        if self.lanes.len() == 0 {
            if all_postponed { Progress::Outage } else { Progress::Idle }
        } else if now.saturating_sub(self.moved_at) >= stall_after {
            Progress::Stalled { since: self.moved_at }
        } else if self.breaker.is_closed() {
            Progress::Moving
        } else {
            Progress::Outage
        }
    }

    /// Whether the sink as a whole is in trouble.
    pub fn is_circuit_open(&self) -> bool {
        !self.breaker.is_closed()
    }

    /// Number of events that were read and are not settled.
    pub fn held(&self) -> usize {
        self.lanes.len() + self.unsettled()
    }

    /// Number of blocked keys.
    pub fn blocked_keys(&self) -> usize {
        self.blocked.len()
    }

    fn unsettled(&self) -> usize {
        self.settling + self.verdicts.settlements.len()
    }
}

fn sets_aside(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Parked { blocks, .. } | Verdict::Deferred { blocks, .. } => *blocks,
        Verdict::Queued => true,
        Verdict::Attempting { .. } | Verdict::Delivered | Verdict::Released => false,
    }
}
