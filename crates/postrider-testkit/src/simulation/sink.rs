//! A sink in trouble: outages, lost acknowledgements, partial answers, bad events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use postrider_relay::failure::{FailureKind, SinkError};

use super::outbox::{Nature, Outbox};
use super::plan::Plan;
use crate::history::History;

#[derive(Debug, Default)]
pub(super) struct Sink {
    outage: Option<(FailureKind, Duration)>,
    /// Events that failed while everything failed: with few keys, that looks like their own
    /// fault.
    pub(super) failed_in_outage: BTreeSet<u64>,
}

impl Sink {
    pub(super) fn begin_outage(&mut self, kind: FailureKind, until: Duration) {
        self.outage = Some((kind, until));
    }

    pub(super) fn heal(&mut self) {
        self.outage = None;
    }

    /// Publishes messages and answers for each.
    pub(super) fn publish(
        &mut self,
        messages: &[u64],
        world: &mut Surroundings<'_>,
    ) -> Vec<Result<(), SinkError>> {
        let outage = self.outage.filter(|(_, until)| world.now < *until).map(|(kind, _)| kind);
        let refused = match outage {
            None => world.refused_batches(messages),
            Some(_) => BTreeMap::new(),
        };
        let mut failed_keys = Vec::new();
        let mut results = Vec::new();
        for event in messages {
            let row = world.outbox.row(*event);
            let in_order = row.not_before.is_none();
            if world.plan.policy.ordered_by_key && in_order && failed_keys.contains(&row.key) {
                results.push(Err(failed("an earlier event of the key failed")));
                continue;
            }
            if let Some(error) = refused.get(&world.partition(row.key)) {
                let is_told = world.plan.batches.is_some_and(|batches| batches.tells)
                    && failure_of(row.nature).is_some();
                results.push(Err(error.clone().with_company(!is_told)));
                continue;
            }
            let result = world.answer(row.nature, outage);
            if result.arrives {
                world.history.arrived(*event);
            }
            if outage.is_some_and(is_counted) {
                self.failed_in_outage.insert(*event);
            }
            if result.answer.is_err() {
                failed_keys.push(row.key);
                // It is published again although it may have arrived.
                world.history.duplicates_allowed += usize::from(result.arrives);
            }
            results.push(result.answer);
        }
        results
    }
}

/// What the sink sees of the world while it answers.
pub(super) struct Surroundings<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) plan: &'a Plan,
    pub(super) outbox: &'a Outbox,
    pub(super) history: &'a mut History,
    pub(super) now: Duration,
    /// Nothing goes wrong by chance any more.
    pub(super) healed: bool,
}

struct Outcome {
    arrives: bool,
    answer: Result<(), SinkError>,
}

impl Surroundings<'_> {
    fn partition(&self, key: u64) -> u64 {
        self.plan.batches.map_or(0, |batches| key % batches.partitions)
    }

    /// The partitions that take nothing of a call, because of one of several events, or by
    /// chance.
    fn refused_batches(&mut self, messages: &[u64]) -> BTreeMap<u64, SinkError> {
        let mut batches: BTreeMap<u64, Vec<Nature>> = BTreeMap::new();
        if self.plan.batches.is_some() {
            for row in messages.iter().map(|event| self.outbox.row(*event)) {
                batches.entry(self.partition(row.key)).or_default().push(row.nature);
            }
        }
        batches.retain(|_, batch| batch.len() > 1);
        let refused = batches.into_iter().filter_map(|(partition, batch)| {
            let blamed = batch.into_iter().find_map(failure_of);
            let chance = || self.chance(self.plan.flaky).then_some(FailureKind::Rejected);
            Some((partition, SinkError::new(blamed.or_else(chance)?, "the batch was refused")))
        });
        refused.collect()
    }

    fn answer(&mut self, nature: Nature, outage: Option<FailureKind>) -> Outcome {
        let fails = |arrives, kind| Outcome { arrives, answer: Err(SinkError::new(kind, "no")) };
        if let Some(kind) = outage {
            let takes = !matches!(
                kind,
                FailureKind::Refused | FailureKind::Rejected | FailureKind::Throttled
            );
            let arrives = takes && self.chance(0.2) && nature == Nature::Good;
            // It says to everybody that their event is bad.
            let error = SinkError { by_target: true, ..SinkError::new(kind, "no") };
            return Outcome { arrives, answer: Err(error) };
        }
        match nature {
            Nature::Refused | Nature::Rejected | Nature::Failing | Nature::Away => {
                fails(false, failure_of(nature).expect("it fails"))
            }
            Nature::Good | Nature::Undecodable | Nature::Deadly => {
                if self.chance(self.plan.ack_lost) {
                    fails(true, FailureKind::Failed)
                } else if self.chance(self.plan.flaky) {
                    fails(false, FailureKind::Failed)
                } else {
                    Outcome { arrives: true, answer: Ok(()) }
                }
            }
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        !self.healed && self.rng.f64() < probability
    }
}

/// How an event fails each time.
fn failure_of(nature: Nature) -> Option<FailureKind> {
    match nature {
        Nature::Refused => Some(FailureKind::Refused),
        Nature::Rejected => Some(FailureKind::Rejected),
        Nature::Failing => Some(FailureKind::Failed),
        Nature::Away => Some(FailureKind::Unavailable),
        Nature::Good | Nature::Undecodable | Nature::Deadly => None,
    }
}

/// Whether an outage of this kind looks, with few keys, like the fault of events.
fn is_counted(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Failed | FailureKind::Refused | FailureKind::Rejected)
}

fn failed(message: &str) -> SinkError {
    SinkError::new(FailureKind::Failed, message)
}
