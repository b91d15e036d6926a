//! The metrics of a relay: which there are, and where each comes from.
//!
//! The shards of a pipeline are added up, so that there are no more series than pipelines; only
//! who has a lease is told for each shard. No label holds a key, an id or anything else without a
//! bound.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::counters::Counters;
use super::health::Condition;
use super::histogram::Snapshot;
use super::page::Page;
use super::watched::{Stage, Watched};
use crate::admin::{OutboxStatus, PipelineStatus};
use crate::failure::FailureKind;
use crate::slots::SlotStatus;

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";

/// The page, of what the pipelines count and what was last found in the database.
pub(super) fn page(
    shards: &[Arc<Watched>],
    sampled: Option<&OutboxStatus>,
    sample_failures: u64,
) -> String {
    let mut page = Page::default();
    page.metric("outbox_build_info", GAUGE, "Always 1; the version of the relay.");
    page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let pipelines = Pipelines(shards.chunk_by(|a, b| a.pipeline == b.pipeline).collect());
    pipelines.counted(&mut page);
    pipelines.conditions(&mut page);
    leases(shards, &mut page);
    let name = "outbox_sample_failures_total";
    page.metric(name, COUNTER, "Looks at the database for the metrics below that failed.");
    page.sample(&[], sample_failures as f64);
    let found: Vec<(&str, &PipelineStatus)> =
        pipelines.names().filter_map(|name| Some((name, of_pipeline(sampled?, name)?))).collect();
    waiting(&found, &mut page);
    slots(&found, &mut page);
    page.into_text()
}

/// The shards of each pipeline.
struct Pipelines<'w>(Vec<&'w [Arc<Watched>]>);

impl<'w> Pipelines<'w> {
    fn names(&self) -> impl Iterator<Item = &'w str> {
        self.0.iter().map(|shards| shards[0].pipeline.as_str())
    }

    /// A metric with one value for each pipeline.
    fn each(&self, page: &mut Page, name: &'static str, kind: &str, help: &str, value: Value) {
        page.metric(name, kind, help);
        for shards in &self.0 {
            page.sample(&[("pipeline", &shards[0].pipeline)], value(shards));
        }
    }

    /// A histogram for each pipeline.
    fn histogram(&self, page: &mut Page, name: &'static str, help: &str, of: Times) {
        page.metric(name, HISTOGRAM, help);
        for shards in &self.0 {
            let mut all = of(&shards[0].counters);
            for shard in &shards[1..] {
                all.add(&of(&shard.counters));
            }
            page.histogram(&[("pipeline", &shards[0].pipeline)], &all);
        }
    }

    fn counted(&self, page: &mut Page) {
        let help = "Events that the sink has made durable.";
        self.each(page, "outbox_published_total", COUNTER, help, |shards| {
            sum(shards, |it| it.published.load(Relaxed))
        });
        let help = "Events that the sink has not made durable, by the kind of the error.";
        page.metric("outbox_publish_failures_total", COUNTER, help);
        for shards in &self.0 {
            for kind in FailureKind::ALL {
                let failures = shards
                    .iter()
                    .map(|shard| shard.counters.failures[kind as usize].load(Relaxed))
                    .sum::<u64>();
                let labels = [("pipeline", &*shards[0].pipeline), ("kind", kind.as_str())];
                page.sample(&labels, failures as f64);
            }
        }
        let help = "Events that were set aside, by what they wait for.";
        page.metric("outbox_set_aside_total", COUNTER, help);
        for shards in &self.0 {
            let verdicts: [(&str, Count); 3] = [
                ("deferred", |it| it.deferred.load(Relaxed)),
                ("parked", |it| it.parked.load(Relaxed)),
                ("queued", |it| it.queued.load(Relaxed)),
            ];
            for (verdict, count) in verdicts {
                let labels = [("pipeline", &*shards[0].pipeline), ("verdict", verdict)];
                page.sample(&labels, sum(shards, count));
            }
        }
        let help = "How long calls of the sink took.";
        self.histogram(page, "outbox_publish_duration_seconds", help, |it| it.calls.snapshot());
        let help = "From the writing of an event, or its deliver_after, until it was durable.";
        self.histogram(page, "outbox_end_to_end_seconds", help, |it| it.end_to_end.snapshot());
        let help = "Events in memory: read and not settled.";
        self.each(page, "outbox_inflight_events", GAUGE, help, |shards| {
            sum(shards, |it| it.inflight.load(Relaxed))
        });
        let help = "1 while the sink as a whole is in trouble and events wait.";
        self.each(page, "outbox_circuit_open", GAUGE, help, |shards| {
            is(shards.iter().any(|it| it.counters.circuit_open.load(Relaxed)))
        });
    }

    fn conditions(&self, page: &mut Page) {
        let help = "1 if the database can be reached, as far as is known.";
        self.each(page, "outbox_source_up", GAUGE, help, |shards| {
            all(shards, |it| it.source_is_up)
        });
        let help = "1 if the sink can be reached, as far as is known.";
        self.each(page, "outbox_sink_up", GAUGE, help, |shards| all(shards, |it| it.sink_is_up));
        let help = "1 if the pipeline runs or stands by, and makes progress: what /readyz says.";
        self.each(page, "outbox_pipeline_ready", GAUGE, help, |shards| {
            all(shards, |it| it.is_ready)
        });
        let help = "1 once the pipeline has ended for good by a failure.";
        self.each(page, "outbox_pipeline_failed", GAUGE, help, |shards| {
            is(shards.iter().any(|shard| matches!(shard.stage(), Stage::Failed { .. })))
        });
    }
}

/// A value of all shards of a pipeline.
type Value = fn(&[Arc<Watched>]) -> f64;
/// A count of one of them.
type Count = fn(&Counters) -> u64;
/// A histogram of one of them.
type Times = fn(&Counters) -> Snapshot;

fn leases(shards: &[Arc<Watched>], page: &mut Page) {
    let numbers: Vec<String> = shards.iter().map(|it| it.shard.to_string()).collect();
    let labels = |index: usize| -> [(&str, &str); 2] {
        [("pipeline", &shards[index].pipeline), ("shard", &numbers[index])]
    };
    page.metric("outbox_lease_held", GAUGE, "1 while this relay has the shard.");
    for (index, shard) in shards.iter().enumerate() {
        page.sample(&labels(index), is(matches!(shard.stage(), Stage::Running(_))));
    }
    let help = "How often this relay got the shard, the first time included.";
    page.metric("outbox_lease_takeovers_total", COUNTER, help);
    for (index, shard) in shards.iter().enumerate() {
        page.sample(&labels(index), shard.takeovers.load(Relaxed) as f64);
    }
}

fn waiting(found: &[(&str, &PipelineStatus)], page: &mut Page) {
    let mut each = |name, help: &str, value: fn(&PipelineStatus) -> f64| {
        page.metric(name, GAUGE, help);
        for (pipeline, status) in found {
            page.sample(&[("pipeline", pipeline)], value(status));
        }
    };
    let help = "Events not published and not set aside, counted up to 100000.";
    each("outbox_unpublished_count", help, |it| it.unpublished as f64);
    let help = "Age of the oldest of them; 0 if there is none.";
    each("outbox_oldest_unpublished_age_seconds", help, |it| {
        it.oldest_unpublished_age.map_or(0.0, |age| age.as_secs_f64())
    });
    each("outbox_parked_events", "Dead letters.", |it| it.parked as f64);
    let help = "Events that wait behind a dead letter or a retry of their key.";
    each("outbox_queued_events", help, |it| it.queued as f64);
    let help = "Events that will be tried again by themselves, or are not due yet.";
    each("outbox_deferred_events", help, |it| it.deferred as f64);
    each("outbox_blocked_keys", "Keys that wait.", |it| it.blocked_keys as f64);
}

fn slots(found: &[(&str, &PipelineStatus)], page: &mut Page) {
    let mut each = |name, help: &str, value: fn(&SlotStatus) -> Option<f64>| {
        page.metric(name, GAUGE, help);
        for (pipeline, status) in found {
            if let Some(value) = status.slot.as_ref().and_then(value) {
                page.sample(&[("pipeline", pipeline)], value);
            }
        }
    };
    let help = "How much of the server's log is kept for the pipeline.";
    each("outbox_slot_retained_wal_bytes", help, |it| it.retained_bytes.map(|it| it as f64));
    let help = "How much more may be written before the slot is lost; +Inf without a limit.";
    each("outbox_slot_safe_wal_bytes", help, |it| {
        it.retained_bytes?;
        Some(it.safe_bytes.map_or(f64::INFINITY, |it| it as f64))
    });
    let help = "How far the slot is behind the end of the server's log.";
    each("outbox_slot_lag_bytes", help, |it| it.lag_bytes.map(|it| it as f64));
    let help = "1 if the slot is gone, given up by the server, or not to be relied on.";
    each("outbox_slot_lost", help, |it| Some(is(it.state.why_of_no_use().is_some())));
}

/// The status of a pipeline. The one without progress stands for any that never ran.
fn of_pipeline<'s>(status: &'s OutboxStatus, name: &str) -> Option<&'s PipelineStatus> {
    let mut pipelines = status.pipelines.iter();
    pipelines.find(|it| it.name == name || it.progress.is_none())
}

fn sum(shards: &[Arc<Watched>], value: Count) -> f64 {
    shards.iter().map(|shard| value(&shard.counters)).sum::<u64>() as f64
}

fn all(shards: &[Arc<Watched>], condition: fn(&Condition) -> bool) -> f64 {
    is(shards.iter().all(|shard| condition(&Condition::of(shard))))
}

fn is(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}
