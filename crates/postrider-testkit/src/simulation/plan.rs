//! What a seed decides: the policy, the traffic and the faults of one run.

use std::time::Duration;

use fastrand::Rng;
use postrider_relay::failure::FailureKind;
use postrider_relay::pipeline::breaker::OUTAGE_LANES;
use postrider_relay::pipeline::engine::Policy;
use postrider_relay::pipeline::{OnDead, Ordering, Retry, Window};

use super::outbox::Nature;

/// How long the faults go on; after that everything heals.
pub(super) const FAULTS_UNTIL: Duration = Duration::from_secs(60);

/// Everything that is decided before a run begins.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) policy: Policy,
    /// What happens, in order of time.
    pub(super) steps: Vec<(Duration, Step)>,
    /// How likely a single publication fails although the event is good.
    pub(super) flaky: f64,
    /// How likely an acknowledgement is lost.
    pub(super) ack_lost: f64,
    /// The slowest call.
    pub(super) latency_max: Duration,
    /// The sink takes the events of a call by partitions, each as a whole or not at all.
    pub(super) batches: Option<Batches>,
    /// A key whose calls take much longer than others.
    pub(super) slow_key: Option<u64>,
}

/// A sink that refuses together what goes to one partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batches {
    /// Each key has one of them.
    pub(super) partitions: u64,
    /// Whether it tells which event was to blame.
    pub(super) tells: bool,
}

/// Something that happens to the system from outside.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A transaction ends with these events.
    Transaction { committed: bool, events: Vec<NewEvent> },
    /// The relay's process dies.
    Crash,
    /// The relay is asked to stop.
    Stop,
    /// The sink answers everything with an error of this kind for a while.
    Outage { kind: FailureKind, lasts: Duration },
    /// The operator mends the cause of a parked event and asks for a retry.
    Retry,
    /// The operator discards a parked event.
    Discard,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct NewEvent {
    pub(super) key: u64,
    pub(super) nature: Nature,
    /// Delivered only so long after it was written.
    pub(super) delay: Option<Duration>,
}

impl Plan {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let policy = policy(rng);
        let keys = rng.u64(1..30);
        let trouble = *choose(rng, &[0.0, 0.01, 0.05]);
        let deadly = rng.u8(..10) == 0;
        let mut steps = Vec::new();
        for _ in 0..rng.usize(10..100) {
            steps.push((moment(rng), transaction(rng, keys, trouble)));
        }
        if deadly {
            let event = NewEvent { key: rng.u64(..keys), nature: Nature::Deadly, delay: None };
            let events = vec![event];
            steps.push((moment(rng), Step::Transaction { committed: true, events }));
        }
        let faults =
            [rng.usize(..6), rng.usize(..3), rng.usize(..4), rng.usize(..8), rng.usize(..4)];
        let [crashes, stops, outages, retries, discards] = faults;
        steps.extend((0..crashes).map(|_| (moment(rng), Step::Crash)));
        steps.extend((0..stops).map(|_| (moment(rng), Step::Stop)));
        steps.extend((0..outages).map(|_| (moment(rng), outage(rng))));
        steps.extend((0..retries).map(|_| (moment(rng), Step::Retry)));
        steps.extend((0..discards).map(|_| (moment(rng), Step::Discard)));
        steps.sort_by_key(|(at, _)| *at);
        Self {
            policy,
            steps,
            flaky: *choose(rng, &[0.0, 0.02, 0.1]),
            ack_lost: *choose(rng, &[0.0, 0.02, 0.1]),
            latency_max: Duration::from_millis(*choose(rng, &[1, 50, 2000])),
            batches: rng.bool().then(|| Batches { partitions: rng.u64(1..4), tells: rng.bool() }),
            slow_key: rng.bool().then(|| rng.u64(..keys)),
        }
    }
}

fn policy(rng: &mut Rng) -> Policy {
    Policy {
        ordering: Ordering::Key,
        on_dead: *choose(rng, &[OnDead::Park, OnDead::Park, OnDead::Skip]),
        retry: Retry {
            // So many that a good event is never parked by mere bad luck.
            attempts: rng.u32(15..20),
            initial: Duration::from_millis(rng.u64(1..1000)),
            max: Duration::from_secs(rng.u64(1..60)),
        },
        window: Window { events_max: rng.usize(1..64), bytes_max: 100 * rng.usize(1..100) },
        ordered_by_key: rng.bool(),
        batch_events_max: *choose(rng, &[1, 3, 16]),
        batch_bytes_max: 100 * rng.usize(1..20),
        calls_max: rng.usize(1..5),
        outage_lanes: OUTAGE_LANES,
        seed: rng.u64(..),
    }
}

fn transaction(rng: &mut Rng, keys: u64, trouble: f64) -> Step {
    // One key gets a good part of the traffic.
    let key = |rng: &mut Rng| if rng.u8(..4) == 0 { 0 } else { rng.u64(..keys) };
    let event = |rng: &mut Rng| NewEvent {
        key: key(rng),
        nature: nature(rng, trouble),
        delay: (rng.u8(..20) == 0).then(|| Duration::from_millis(rng.u64(..20_000))),
    };
    let events = (0..rng.usize(1..6)).map(|_| event(rng)).collect();
    Step::Transaction { committed: rng.u8(..5) > 0, events }
}

fn nature(rng: &mut Rng, trouble: f64) -> Nature {
    if rng.f64() >= trouble {
        return Nature::Good;
    }
    *choose(
        rng,
        &[Nature::Away, Nature::Failing, Nature::Refused, Nature::Rejected, Nature::Undecodable],
    )
}

fn outage(rng: &mut Rng) -> Step {
    use FailureKind::{Failed, Refused, Rejected, Throttled, Unavailable};
    let kind = *choose(rng, &[Failed, Refused, Rejected, Throttled, Unavailable, Unavailable]);
    Step::Outage { kind, lasts: Duration::from_millis(rng.u64(..30_000)) }
}

fn moment(rng: &mut Rng) -> Duration {
    Duration::from_micros(rng.u64(..FAULTS_UNTIL.as_micros() as u64))
}

pub(super) fn choose<'a, T>(rng: &mut Rng, from: &'a [T]) -> &'a T {
    &from[rng.usize(..from.len())]
}
