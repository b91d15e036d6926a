//! A deterministic simulation of the pipeline: the real engine between a fake outbox and a fake
//! sink, on a clock of its own, under faults that a seed decides.
//!
//! A run has two parts. For a minute of simulated time there is traffic and trouble: crashes at
//! any point, orderly stops, outages, throttling, lost acknowledgements, partial answers, bad
//! events, slow keys, operators. Then everything heals, and the run must come to rest: every
//! committed event has arrived or is in the operator's hands. At the end the
//! [history](crate::history) is checked.
//!
//! The same seed gives the same run. A failure prints the seed; [`Trace::Print`] prints all that
//! happens in it.

mod outbox;
mod plan;
mod sink;

use std::time::Duration;

use fastrand::Rng;
use postrider_relay::failure::SinkError;
use postrider_relay::pipeline::OnDead;
use postrider_relay::pipeline::engine::{Call, Engine, Incoming, SettlementBatch};
use postrider_relay::source::{Settlement, Verdict};

use self::outbox::{Nature, Outbox, Row, Session};
use self::plan::{FAULTS_UNTIL, Plan, Step, choose};
use self::sink::{Sink, Surroundings};
use crate::history::{History, Place, Wrong};

/// Everything must be at rest by then.
const REST_BY: Duration = Duration::from_secs(24 * 3600);
/// So many happenings are more than any run needs.
const HAPPENINGS_MAX: usize = 2_000_000;
/// A relay that died is started again after at most this time.
const RESTART_WITHIN_MS: u64 = 2000;

/// A bug to plant between the engine and the world, to see that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// None.
    No,
    /// Ordering: a call under way is forgotten now and then, so that its lane seems free.
    Ordering,
    /// Settlement: a failed publication is taken for a good one.
    Settlement,
    /// Parking: the events behind one that was set aside are not queued but let go.
    Parking,
}

/// Whether to print what happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// Print nothing.
    Off,
    /// Print every happening to standard error.
    Print,
}

/// What a run was like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Events committed.
    pub committed: usize,
    /// Relays that were started.
    pub starts: usize,
    /// Calls of the sink.
    pub calls: usize,
    /// Events that were parked at some time.
    pub parked: usize,
}

/// Runs one seed. Everything that was wrong comes back as an error.
pub fn run(seed: u64, sabotage: Sabotage, trace: Trace) -> Result<Summary, Vec<Wrong>> {
    let mut rng = Rng::with_seed(seed);
    let plan = Plan::draw(&mut rng);
    let mut world = World {
        rng,
        plan: &plan,
        sabotage,
        trace,
        now: Duration::ZERO,
        outbox: Outbox::default(),
        sink: Sink::default(),
        history: History::default(),
        relay: None,
        restart_at: Duration::ZERO,
        next_seq: 1,
        ever_parked: Vec::new(),
        summary: Summary::default(),
    };
    world.live()?;
    let wrong = world.finish();
    if wrong.is_empty() { Ok(world.summary) } else { Err(wrong) }
}

struct World<'p> {
    rng: Rng,
    plan: &'p Plan,
    sabotage: Sabotage,
    trace: Trace,
    now: Duration,
    outbox: Outbox,
    sink: Sink,
    history: History,
    relay: Option<Relay>,
    restart_at: Duration,
    next_seq: u64,
    ever_parked: Vec<u64>,
    summary: Summary,
}

/// The relay's process: all of this is gone when it dies.
struct Relay {
    engine: Engine<u64>,
    session: Session,
    started: Duration,
    reading: Option<Reading>,
    calls: Vec<(Duration, Call<u64>)>,
    settling: Option<(Duration, SettlementBatch)>,
}

struct Reading {
    ends: Duration,
    events: usize,
    /// What was found, if the database answered long before the answer arrives.
    early: Option<Vec<Incoming<u64>>>,
}

impl World<'_> {
    /// Takes the world from one happening to the next until it is at rest.
    fn live(&mut self) -> Result<(), Vec<Wrong>> {
        let mut steps = self.plan.steps.iter().cloned().peekable();
        for _ in 0..HAPPENINGS_MAX {
            if let Some((_, step)) = steps.next_if(|(at, _)| *at <= self.now) {
                self.take(step);
                continue;
            }
            if self.relay.is_none() && self.now >= self.restart_at {
                self.start();
            }
            if self.work() {
                continue;
            }
            let healed = self.now >= FAULTS_UNTIL;
            if healed {
                self.sink.heal();
                self.outbox.mend_failing();
            }
            if healed && steps.peek().is_none() && self.is_at_rest() {
                return Ok(());
            }
            let step_at = steps.peek().map(|(at, _)| *at);
            let heal_at = (!healed).then_some(FAULTS_UNTIL);
            let next = [step_at, heal_at, self.next_happening()].into_iter().flatten().min();
            match next.filter(|at| *at < REST_BY) {
                // Something is always strictly later, or the loop above would have taken it.
                Some(at) => self.now = at.max(self.now + Duration::from_nanos(1)),
                None => break,
            }
        }
        Err(vec![Wrong::Broken(self.stuck())])
    }

    fn stuck(&self) -> String {
        let engine = self.relay.as_ref().map(|relay| &relay.engine);
        format!("not at rest at {:?}: {:?}, {engine:?}", self.now, self.outbox)
    }

    fn is_at_rest(&self) -> bool {
        let idle = self.relay.as_ref().is_some_and(|relay| {
            relay.engine.is_empty() && relay.calls.is_empty() && relay.settling.is_none()
        });
        idle && !self.outbox.pending()
    }

    /// When something happens by itself.
    fn next_happening(&self) -> Option<Duration> {
        let Some(relay) = &self.relay else { return Some(self.restart_at) };
        let read = relay.reading.as_ref().map(|reading| reading.ends);
        let call = relay.calls.iter().map(|(at, _)| *at).min();
        let settle = relay.settling.as_ref().map(|(at, _)| *at);
        let wake = relay.engine.wake_at().map(|at| at + relay.started);
        [read, call, settle, wake].into_iter().flatten().min()
    }

    /// Does one thing that is due now. False if there is none.
    fn work(&mut self) -> bool {
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

    fn start(&mut self) {
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
    fn die(&mut self, mut relay: Relay) {
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

    fn take(&mut self, step: Step) {
        self.note(|| format!("{step:?}"));
        match step {
            Step::Transaction { committed, events } => self.transact(committed, &events),
            Step::Crash => {
                if let Some(relay) = self.relay.take() {
                    self.die(relay);
                }
            }
            Step::Stop => {
                if let Some(relay) = &mut self.relay {
                    relay.engine.stop();
                }
            }
            Step::Outage { kind, lasts } => self.sink.begin_outage(kind, self.now + lasts),
            Step::Retry => {
                let parked = self.outbox.parked();
                if !parked.is_empty() {
                    let event = *choose(&mut self.rng, &parked);
                    *self.outbox.nature(event) = Nature::Good;
                    self.outbox.retry(event, self.now);
                }
            }
            Step::Discard => {
                let parked = self.outbox.parked();
                if !parked.is_empty() {
                    let event = *choose(&mut self.rng, &parked);
                    if self.outbox.discard(event, self.now) {
                        self.history.left_with_operator(event);
                    }
                }
            }
        }
    }

    fn transact(&mut self, committed: bool, events: &[plan::NewEvent]) {
        for event in events {
            let seq = self.next_seq;
            self.next_seq += 1;
            if !committed {
                continue;
            }
            let not_before = event.delay.map(|delay| self.now + delay);
            self.outbox.insert(Row { seq, key: event.key, nature: event.nature, not_before });
            let number = not_before.is_none().then_some(seq);
            self.history.committed(seq, Place { key: event.key, number });
            self.summary.committed += 1;
        }
    }

    #[allow(clippy::print_stderr, reason = "that is what it is for")]
    fn note(&self, what: impl FnOnce() -> String) {
        if self.trace == Trace::Print {
            eprintln!("{:>12.6} {}", self.now.as_secs_f64(), what());
        }
    }

    /// Checks the whole run.
    fn finish(&mut self) -> Vec<Wrong> {
        for event in self.outbox.parked().into_iter().chain(self.outbox.behind_parked()) {
            self.history.left_with_operator(event);
        }
        if self.plan.policy.on_dead == OnDead::Skip {
            // Later events did not wait for them.
            for event in &self.ever_parked {
                self.history.left_the_order(*event);
            }
        }
        self.summary.parked = self.ever_parked.len();
        let mut wrong = self.history.check();
        for event in self.outbox.parked() {
            let good = self.outbox.row(event).nature == Nature::Good;
            if good && !self.sink.failed_in_outage.contains(&event) {
                wrong.push(Wrong::Broken(format!(
                    "event {event} was parked for no fault of its own"
                )));
            }
        }
        wrong
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
