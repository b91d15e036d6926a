//! A deterministic simulation of the pipeline: the real engine between a fake outbox and a fake
//! sink, on a clock of its own, under faults that a seed decides.
//!
//! A run has two parts. For a minute of simulated time there is traffic and trouble: crashes at
//! any point, orderly stops, outages, throttling, lost acknowledgements, partial answers, bad
//! events, batches refused because of one of them, slow keys, operators. Then everything heals, and the run must come to rest: every
//! committed event has arrived or is in the operator's hands. At the end the
//! [history](crate::history) is checked.
//!
//! The same seed gives the same run. A failure prints the seed; [`Trace::Print`] prints all that
//! happens in it.

mod outbox;
mod plan;
mod relay;
mod sink;

use std::time::Duration;

use fastrand::Rng;
use postrider_relay::pipeline::OnDead;

use self::outbox::{Nature, Outbox, Row};
use self::plan::{FAULTS_UNTIL, Plan, Step, choose};
use self::relay::Relay;
use self::sink::Sink;
use crate::history::{History, Place, Wrong};

/// Everything must be at rest by then.
const REST_BY: Duration = Duration::from_secs(24 * 3600);
/// So many happenings are more than any run needs.
const HAPPENINGS_MAX: usize = 2_000_000;

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
    /// Company: what was refused because of another event is taken for the event's own fault.
    Company,
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
