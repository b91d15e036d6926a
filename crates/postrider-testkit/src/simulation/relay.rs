//! The relay's process in the simulation: the real engine, and whatever is lost when it dies.

use std::time::Duration;

use postrider_relay::failure::SinkError;
use postrider_relay::pipeline::engine::{Call, Engine, Incoming, SettlementBatch};
use postrider_relay::source::{Settlement, Verdict};

use super::outbox::{Nature, Session};
use super::plan::FAULTS_UNTIL;
use super::sink::Surroundings;
use super::{Sabotage, World};

/// A relay that died is started again after at most this time.
const RESTART_WITHIN_MS: u64 = 2000;

/// The relay's process: all of this is gone when it dies.
pub(super) struct Relay {
    pub(super) engine: Engine<u64>,
    session: Session,
    started: Duration,
    reading: Option<Reading>,
    pub(super) calls: Vec<(Duration, Call<u64>)>,
    pub(super) settling: Option<(Duration, SettlementBatch)>,
}

struct Reading {
    ends: Duration,
    events: usize,
    /// What was found, if the database answered long before the answer arrives.
    early: Option<Vec<Incoming<u64>>>,
}

impl World<'_> {
    /// When something happens by itself.
    pub(super) fn next_happening(&self) -> Option<Duration> {
        let Some(relay) = &self.relay else { return Some(self.restart_at) };
        let read = relay.reading.as_ref().map(|reading| reading.ends);
        let call = relay.calls.iter().map(|(at, _)| *at).min();
        let settle = relay.settling.as_ref().map(|(at, _)| *at);
        let wake = relay.engine.wake_at().map(|at| at + relay.started);
        [read, call, settle, wake].into_iter().flatten().min()
    }

    /// Does one thing that is due now. False if there is none.
    pub(super) fn work(&mut self) -> bool {
        let Some(mut relay) = self.relay.take() else { return false };
        let worked = self.work_with(&mut relay);
        match worked {
            Worked::Nothing | Worked::Something => self.relay = Some(relay),
            Worked::Died => self.die(relay),
            Worked::Stopped => {
                self.outbox.crashes = 0;
                self.restart_later();
            }
        }
        !matches!(worked, Worked::Nothing)
    }

    fn work_with(&mut self, relay: &mut Relay) -> Worked {
        let now = self.now.saturating_sub(relay.started);
        if relay.engine.is_finished() {
            return Worked::Stopped;
        }
        if relay.engine.take_survived() {
            self.outbox.crashes = 0;
        }
        if relay.reading.is_none()
            && let Some((events, _)) = relay.engine.want()
        {
            let early = self.rng.bool();
            let early = early.then(|| self.outbox.next_batch(&mut relay.session, events, self.now));
            relay.reading = Some(Reading { ends: self.now + self.latency(None), events, early });
            return Worked::Something;
        }
        if let Some(call) = relay.engine.next_call(now) {
            return self.send(relay, call);
        }
        if let Some(batch) = relay.engine.next_settlements() {
            let batch = self.sabotaged(batch);
            relay.settling = Some((self.now + self.latency(None), batch));
            return Worked::Something;
        }
        if let Some(reading) = relay.reading.take_if(|reading| reading.ends <= self.now) {
            let Reading { events, early, .. } = reading;
            let find = || self.outbox.next_batch(&mut relay.session, events, self.now);
            let batch = early.unwrap_or_else(find);
            // An empty read waits until there may be something.
            if batch.is_empty() {
                let due = self.outbox.next_due().filter(|due| *due > self.now);
                let poll = self.now + Duration::from_millis(500);
                let ends = due.map_or(poll, |due| due.min(poll));
                relay.reading = Some(Reading { ends, events, early: None });
            }
            self.note(|| {
                format!("read {:?}", batch.iter().map(|i| i.handle.0).collect::<Vec<_>>())
            });
            relay.engine.read(batch, now);
            return Worked::Something;
        }
        if let Some(due) = relay.calls.iter().position(|(at, _)| *at <= self.now) {
            let (_, call) = relay.calls.swap_remove(due);
            let results = self.publish(&call.messages);
            self.note(|| format!("published {:?}: {results:?}", call.messages));
            relay.engine.published(call, results, now);
            return Worked::Something;
        }
        if let Some((_, batch)) = relay.settling.take_if(|(at, _)| *at <= self.now) {
            self.note_parked(&batch.settlements);
            let unblocked = self.outbox.settle(&mut relay.session, &batch.settlements, self.now);
            self.note(|| format!("settled {:?}, unblocked {unblocked:?}", batch.settlements));
            relay.engine.settled(batch, unblocked);
            return Worked::Something;
        }
        Worked::Nothing
    }

    fn send(&mut self, relay: &mut Relay, mut call: Call<u64>) -> Worked {
        self.summary.calls += 1;
        let deadly = |event: &u64| self.outbox.row(*event).nature == Nature::Deadly;
        if call.messages.iter().any(deadly) {
            return Worked::Died;
        }
        if self.sabotage == Sabotage::Ordering && self.rng.u8(..8) == 0 {
            // The last shall be first.
            call.messages.reverse();
        }
        let slowest = call.messages.iter().map(|event| self.outbox.row(*event).key);
        let key = slowest.max_by_key(|key| Some(*key) == self.plan.slow_key);
        let at = self.now + self.latency(key);
        relay.calls.push((at, call));
        Worked::Something
    }

    fn publish(&mut self, messages: &[u64]) -> Vec<Result<(), SinkError>> {
        let mut surroundings = Surroundings {
            rng: &mut self.rng,
            plan: self.plan,
            outbox: &self.outbox,
            history: &mut self.history,
            now: self.now,
            healed: self.now >= FAULTS_UNTIL,
        };
        let mut results = self.sink.publish(messages, &mut surroundings);
        if self.sabotage == Sabotage::Settlement {
            results.iter_mut().for_each(|result| *result = Ok(()));
        }
        if self.sabotage == Sabotage::Company {
            let own = |error: SinkError| error.with_company(false);
            results = results.into_iter().map(|result| result.map_err(own)).collect();
        }
        results
    }

    fn sabotaged(&self, mut batch: SettlementBatch) -> SettlementBatch {
        if self.sabotage == Sabotage::Parking {
            for settlement in &mut batch.settlements {
                if settlement.verdict == Verdict::Queued {
                    settlement.verdict = Verdict::Released;
                }
            }
        }
        batch
    }

    fn note_parked(&mut self, settlements: &[Settlement]) {
        for settlement in settlements {
            if let Verdict::Parked { .. } = settlement.verdict {
                self.ever_parked.push(settlement.handle.0 / 2);
            }
        }
    }

    fn latency(&mut self, key: Option<u64>) -> Duration {
        let most = self.plan.latency_max.as_micros() as u64;
        let slow = key.is_some() && key == self.plan.slow_key;
        Duration::from_micros(self.rng.u64(..=most) * if slow { 20 } else { 1 })
    }

    pub(super) fn start(&mut self) {
        let crashes = self.outbox.crashes;
        self.note(|| format!("start after {crashes} crashes"));
        self.outbox.crashes += 1;
        self.summary.starts += 1;
        self.relay = Some(Relay {
            engine: Engine::new(self.plan.policy, self.outbox.blocked_keys(), crashes),
            session: Session::default(),
            started: self.now,
            reading: None,
            calls: Vec::new(),
            settling: None,
        });
    }

    /// The process dies. What was on its way to the sink or the database may still get there.
    pub(super) fn die(&mut self, mut relay: Relay) {
        self.note(|| format!("died with {:?}, {:?}", relay.calls, relay.settling));
        while let Some((_, call)) = relay.calls.pop() {
            let reached = self.rng.usize(..=call.messages.len());
            self.history.duplicates_allowed += reached;
            self.publish(&call.messages[..reached]);
        }
        let settling = relay.settling.take().map(|(_, batch)| batch);
        if let Some(batch) = settling {
            if self.rng.bool() {
                self.note_parked(&batch.settlements);
                self.outbox.settle(&mut relay.session, &batch.settlements, self.now);
            } else {
                self.history.duplicates_allowed += delivered(&batch);
            }
        }
        while let Some(batch) = relay.engine.next_settlements() {
            self.history.duplicates_allowed += delivered(&batch);
            relay.engine.settled(batch, []);
        }
        // Verdicts behind a batch that was under way.
        relay.engine.settled(SettlementBatch::default(), []);
        if let Some(batch) = relay.engine.next_settlements() {
            self.history.duplicates_allowed += delivered(&batch);
        }
        self.restart_later();
    }

    fn restart_later(&mut self) {
        self.restart_at = self.now + Duration::from_millis(self.rng.u64(..RESTART_WITHIN_MS));
    }
}

fn delivered(batch: &SettlementBatch) -> usize {
    let delivered = |settlement: &&Settlement| settlement.verdict == Verdict::Delivered;
    batch.settlements.iter().filter(delivered).count()
}

enum Worked {
    Nothing,
    Something,
    Died,
    Stopped,
}
