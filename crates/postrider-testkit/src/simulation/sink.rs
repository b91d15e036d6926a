//! A sink in trouble: outages, lost acknowledgements, partial answers, bad events.

use std::collections::BTreeSet;
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
        let mut failed_keys = Vec::new();
        let mut results = Vec::new();
        for event in messages {
            let row = world.outbox.row(*event);
            let in_order = row.not_before.is_none();
            if world.plan.policy.ordered_by_key && in_order && failed_keys.contains(&row.key) {
                results.push(Err(failed("an earlier event of the key failed")));
                continue;
            }
            let result = world.answer(row.nature, outage);
            if result.arrives {
                world.history.arrived(*event);
            }
            if outage == Some(FailureKind::Failed) {
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
    fn answer(&mut self, nature: Nature, outage: Option<FailureKind>) -> Outcome {
        let fails = |arrives, kind| Outcome { arrives, answer: Err(SinkError::new(kind, "no")) };
        if let Some(kind) = outage {
            let arrives = kind != FailureKind::Throttled && self.chance(0.2);
            return fails(arrives && nature == Nature::Good, kind);
        }
        match nature {
            Nature::Rejected => fails(false, FailureKind::Rejected),
            Nature::Failing => fails(false, FailureKind::Failed),
            Nature::Away => fails(false, FailureKind::Unavailable),
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

fn failed(message: &str) -> SinkError {
    SinkError::new(FailureKind::Failed, message)
}
