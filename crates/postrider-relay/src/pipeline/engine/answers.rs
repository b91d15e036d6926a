//! What the sink's answers mean for events, lanes and the breaker.

use std::time::Duration;

use super::exchange::Note;
use super::{Call, Engine, sets_aside};
use crate::failure::{Failure, FailureKind, SinkError};
use crate::pipeline::company::Kind;
use crate::pipeline::decision::{Action, SinkIs, decide};
use crate::pipeline::lanes::Entry;
use crate::pipeline::options::OnDead;
use crate::source::Verdict;

impl<M> Engine<M> {
    /// Takes in the sink's answer to a call: one result per message.
    pub fn published(&mut self, call: Call<M>, results: Vec<Result<(), SinkError>>, now: Duration) {
        assert_eq!(results.len(), call.entries.len(), "a sink answers for every message");
        self.calls -= 1;
        if call.written_down {
            self.take_back(&call, &results);
        }
        let alive = results.iter().any(Result::is_ok);
        if alive {
            self.breaker.answered(now);
            self.moved_at = now;
            self.taken_at = Some(now);
        }
        let events = call.entries.len();
        let mut in_company = 0;
        let mut messages = call.messages.into_iter();
        let mut results = results.into_iter();
        let mut entries = call.entries.as_slice();
        while let Some(first) = entries.first() {
            let key = self.lanes.entry(*first).key;
            let together = match key {
                None => 1,
                Some(_) => {
                    entries.iter().take_while(|index| self.lanes.entry(**index).key == key).count()
                }
            };
            let (lane, rest) = entries.split_at(together);
            entries = rest;
            let answers = messages.by_ref().zip(results.by_ref()).take(together);
            in_company += self.published_lane(key, lane, answers, (call.kind, alive), now);
        }
        self.company.answered(call.kind, events, in_company);
        if in_company > 0 && !alive && !self.breaker.is_closed() {
            // The probes were refused together: whyever that is, the outage is not over.
            self.breaker.unavailable(now);
        }
        if self.company.under_way.is_none() && !self.lanes.has_suspects() {
            self.company.is_over();
        }
        if self.stopping {
            self.release();
        }
    }

    /// An attempt that was written down has an answer. If that answer is no fault of the event,
    /// neither is the attempt.
    fn take_back(&mut self, call: &Call<M>, results: &[Result<(), SinkError>]) {
        for (index, result) in call.entries.iter().zip(results) {
            if result.is_err() {
                let entry = self.lanes.entry(*index);
                let (handle, attempts, blocks) =
                    (entry.handle, entry.attempts, entry.key.is_some());
                self.verdict(handle, Verdict::Attempting { attempts, blocks }, Note::default());
            }
        }
    }

    /// Answers how many events were refused in company.
    fn published_lane(
        &mut self,
        key: Option<u64>,
        lane: &[usize],
        answers: impl Iterator<Item = (M, Result<(), SinkError>)>,
        (kind, alive): (Kind, bool),
        now: Duration,
    ) -> usize {
        let mut held = Vec::new();
        let mut in_company = false;
        let mut lane_is = Lane::Whole;
        for (index, (message, result)) in lane.iter().zip(answers) {
            let reaction = match (result, lane_is) {
                (Ok(()), _) => Reaction::Settle(Verdict::Delivered),
                // Nothing else was under way: so it is to blame by itself.
                (Err(error), Lane::Whole) if error.in_company && kind != Kind::Alone => {
                    in_company = true;
                    Reaction::Hold
                }
                (Err(error), Lane::Whole) => self.failed(*index, error, alive, now),
                // It failed because of the one before it: that says nothing about itself.
                (Err(_), Lane::Held) => Reaction::Hold,
                (Err(_), Lane::Blocked) => Reaction::Settle(Verdict::Queued),
            };
            match reaction {
                Reaction::Hold => {
                    self.lanes.entry(*index).message = Some(message);
                    held.push(*index);
                    lane_is = Lane::Held;
                }
                Reaction::Settle(verdict) => {
                    if verdict != Verdict::Delivered {
                        lane_is = if sets_aside(&verdict) { Lane::Blocked } else { Lane::Held };
                    }
                    self.conclude(*index, verdict);
                }
            }
        }
        self.lanes.put_back(key, lane.len(), &held, in_company);
        if in_company { held.len() } else { 0 }
    }

    /// Looks at an event's failure.
    fn failed(&mut self, index: usize, error: SinkError, alive: bool, now: Duration) -> Reaction {
        let entry = self.lanes.entry(index);
        let (lane, key, id, attempts) =
            (entry.lane(), entry.key, entry.id, entry.attempts.saturating_add(1));
        let mut held_at = entry.held_at;
        if error.in_company && error.kind == FailureKind::Unavailable {
            held_at = self.company.died(id, now).max(held_at);
        }
        let took_others = held_at.is_some_and(|held| self.taken_at > Some(held));
        let sink = match error.kind {
            FailureKind::Unavailable | FailureKind::Throttled if took_others => SinkIs::Well,
            FailureKind::Failed | FailureKind::Refused
                if !alive && self.breaker.failed(lane, now) =>
            {
                SinkIs::Down
            }
            FailureKind::Rejected
                if error.by_target && !alive && self.breaker.failed(lane, now) =>
            {
                SinkIs::Down
            }
            _ => SinkIs::Unknown,
        };
        match error.kind {
            FailureKind::Rejected if !error.by_target => self.breaker.rejected(now),
            FailureKind::Unavailable if sink == SinkIs::Unknown => self.breaker.unavailable(now),
            FailureKind::Throttled if sink == SinkIs::Unknown => {
                self.breaker.throttled(now, error.retry_after);
            }
            _ => {}
        }
        let jitter = id.wrapping_add(attempts.into());
        let action = decide(&error, attempts, &self.policy.retry, sink, jitter);
        let SinkError { kind, message, .. } = error;
        let verdict = match action {
            Action::Hold => {
                self.lanes.entry(index).held_at = Some(now);
                return Reaction::Hold;
            }
            Action::Stop => {
                self.stopping = true;
                self.stopped_by.get_or_insert(SinkError::new(kind, message));
                return Reaction::Hold;
            }
            Action::Park => {
                let failure = Failure { kind, message, attempts };
                Verdict::Parked { failure, blocks: self.parked_blocks(key) }
            }
            Action::Postpone(delay) => {
                let failure = Some(Failure { kind, message, attempts: attempts - 1 });
                Verdict::Deferred { delay, failure, blocks: key.is_some() }
            }
            Action::Retry(delay) => {
                let failure = Some(Failure { kind, message, attempts });
                Verdict::Deferred { delay, failure, blocks: key.is_some() }
            }
        };
        Reaction::Settle(verdict)
    }

    pub(super) fn parked_blocks(&self, key: Option<u64>) -> bool {
        key.is_some() && self.policy.on_dead == OnDead::Park
    }

    /// Settles an event that was under way. If that blocks its key, everything behind it is
    /// queued.
    pub(super) fn conclude(&mut self, index: usize, verdict: Verdict) {
        let entry = self.remove(index);
        if matches!(verdict, Verdict::Delivered | Verdict::Parked { .. }) {
            self.company.forget(entry.id);
        }
        let blocked = entry.key.filter(|_| sets_aside(&verdict));
        self.settle(entry.handle, entry.key, entry.early, verdict);
        let Some(key) = blocked else { return };
        for behind in self.lanes.clear(key) {
            self.bytes -= behind.bytes;
            self.settle(behind.handle, Some(key), behind.early, Verdict::Queued);
        }
    }

    pub(super) fn remove(&mut self, index: usize) -> Entry<M> {
        let entry = self.lanes.finish(index);
        self.bytes -= entry.bytes;
        entry
    }
}

/// What a result means for its event.
enum Reaction {
    /// It keeps its place.
    Hold,
    /// It has its verdict.
    Settle(Verdict),
}

/// What the results so far mean for the later events of a lane in the same call.
#[derive(Clone, Copy)]
enum Lane {
    /// No event has failed.
    Whole,
    /// One has failed; those after it keep their place.
    Held,
    /// One was set aside; those after it queue behind it.
    Blocked,
}
