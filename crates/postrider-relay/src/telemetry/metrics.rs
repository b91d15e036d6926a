//! The metrics of a relay: which there are, and where each comes from.
//!
//! The shards of a pipeline are added up, so that there are no more series than pipelines; only
//! who has a lease is told for each shard. No label holds a key, an id or anything else without a
//! bound.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use super::Reconciled;
use super::counters::Counters;
use super::health::Condition;
use super::histogram::Snapshot;
use super::page::Page;
use super::watched::{Stage, Watched};
use crate::admin::{OutboxStatus, PipelineStatus};
use crate::failure::FailureKind;
use crate::reconcile::MissedKind;
use crate::slots::SlotStatus;

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
const HISTOGRAM: &str = "histogram";

/// What was found in the database.
#[derive(Default)]
pub(super) struct Looked<'l> {
    pub(super) sampled: Option<&'l OutboxStatus>,
    pub(super) sample_failures: u64,
    pub(super) reconciled: Option<Reconciled>,
    pub(super) reconcile_failures: u64,
    pub(super) given_back: u64,
}

/// The page, of what the pipelines count and what was last found in the database.
pub(super) fn page(shards: &[Arc<Watched>], looked: &Looked<'_>) -> String {
    let &Looked { sampled, sample_failures, .. } = looked;
    let mut page = Page::default();
    page.metric("outbox_build_info", GAUGE, "Always 1; the version of the relay.");
    page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let pipelines = Pipelines(shards.chunk_by(|a, b| a.pipeline == b.pipeline).collect());
    pipelines.counted(&mut page);
    pipelines.conditions(&mut page);
    leases(shards, &mut page);
    missed(&pipelines, looked, &mut page);
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

fn missed(pipelines: &Pipelines<'_>, looked: &Looked<'_>, page: &mut Page) {
    let help = "Looks for missed events that failed.";
    page.metric("outbox_reconcile_failures_total", COUNTER, help);
    page.sample(&[], looked.reconcile_failures as f64);
    let help = "Missed events that were given back, and so published.";
    page.metric("outbox_given_back_events_total", COUNTER, help);
    page.sample(&[], looked.given_back as f64);
    let help = "When this relay last looked for missed events.";
    page.metric("outbox_reconcile_last_run_timestamp_seconds", GAUGE, help);
    if let Some(reconciled) = &looked.reconciled {
        let at = reconciled.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        page.sample(&[], at.as_secs_f64());
    }
    let help = "Events that should have been published long ago and were not, counted up to 1000.";
    page.metric("outbox_missed_events", GAUGE, help);
    if let Some(reconciled) = &looked.reconciled {
        for pipeline in pipelines.names() {
            for kind in MissedKind::ALL {
                let labels = [("pipeline", pipeline), ("kind", kind.as_str())];
                page.sample(&labels, reconciled.missed(pipeline, kind) as f64);
            }
        }
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
    let help = "Keys that wait, without those that an operator has paused.";
    each("outbox_blocked_keys", help, |it| it.keys_in_trouble() as f64);
    let help = "Keys that an operator has paused.";
    each("outbox_paused_keys", help, |it| it.paused_keys.count as f64);
    let help = "1 if an operator has paused it.";
    each("outbox_paused", help, |it| f64::from(u8::from(it.paused.is_some())));
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
pub(super) fn of_pipeline<'s>(status: &'s OutboxStatus, name: &str) -> Option<&'s PipelineStatus> {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pauses::PausedKeys;
    use crate::slots::SlotState;

    fn status(name: &str, progress: Option<&str>, slot: Option<SlotStatus>) -> PipelineStatus {
        PipelineStatus {
            name: name.into(),
            progress: progress.map(str::to_owned),
            unpublished: 7,
            oldest_unpublished_age: Some(Duration::from_millis(1_500)),
            parked: 1,
            queued: 2,
            deferred: 3,
            blocked_keys: 4,
            last_settled_at: None,
            trouble: None,
            leases: Vec::new(),
            slot,
            paused: None,
            paused_keys: Default::default(),
        }
    }

    fn slot(safe_bytes: Option<u64>) -> SlotStatus {
        SlotStatus {
            name: "slot".into(),
            state: SlotState::Streams,
            wal_status: None,
            active_pid: None,
            confirmed_flush_lsn: None,
            checkpoint_lsn: None,
            retained_bytes: Some(100),
            safe_bytes,
            lag_bytes: Some(5),
            log_only: false,
        }
    }

    fn shards() -> Vec<Arc<Watched>> {
        let watched = |name: &str, shard| Arc::new(Watched::new(name, shard, Arc::default()));
        vec![watched("orders", 0), watched("orders", 1), watched("mails", 0)]
    }

    fn outbox(pipelines: Vec<PipelineStatus>) -> OutboxStatus {
        OutboxStatus {
            database: "postgres",
            table: "outbox".into(),
            pipelines,
            written: None,
            unmatched: Default::default(),
        }
    }

    #[track_caller]
    fn assert_has(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|it| it == *line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn shards_are_added_up() {
        let shards = shards();
        for (shard, published) in shards.iter().zip([2, 3, 10]) {
            shard.counters.published.fetch_add(published, Relaxed);
            shard.counters.calls.observe([Duration::from_millis(published)]);
            shard.counters.turned(published as usize, published == 3);
        }
        shards[1].set(Stage::StandingBy);
        shards[2].ended(&Err(crate::relay::RelayError::Panicked));
        assert_has(
            &page(&shards, &Looked { sample_failures: 4, ..Looked::default() }),
            &[
                "outbox_published_total{pipeline=\"orders\"} 5",
                "outbox_published_total{pipeline=\"mails\"} 10",
                "outbox_publish_duration_seconds_count{pipeline=\"orders\"} 2",
                "outbox_publish_duration_seconds_sum{pipeline=\"orders\"} 0.005",
                "outbox_inflight_events{pipeline=\"orders\"} 5",
                "outbox_circuit_open{pipeline=\"orders\"} 1",
                "outbox_circuit_open{pipeline=\"mails\"} 0",
                // One of its shards still connects.
                "outbox_pipeline_ready{pipeline=\"orders\"} 0",
                "outbox_source_up{pipeline=\"orders\"} 0",
                "outbox_pipeline_failed{pipeline=\"orders\"} 0",
                "outbox_pipeline_failed{pipeline=\"mails\"} 1",
                "outbox_lease_held{pipeline=\"orders\",shard=\"1\"} 0",
                "outbox_sample_failures_total 4",
            ],
        );
    }

    #[test]
    fn what_the_database_tells_is_of_our_pipelines_alone() {
        let limited = status("orders", Some("cursor"), Some(slot(Some(900))));
        let mut unlimited = status("mails", Some("cursor"), Some(slot(None)));
        unlimited.paused_keys = PausedKeys { count: 2, first: Vec::new(), waiting: 1 };
        let stranger = status("stranger", Some("cursor"), None);
        let sampled = outbox(vec![limited, unlimited, stranger]);
        let page = page(&shards(), &Looked { sampled: Some(&sampled), ..Looked::default() });
        assert_has(
            &page,
            &[
                "outbox_unpublished_count{pipeline=\"orders\"} 7",
                "outbox_oldest_unpublished_age_seconds{pipeline=\"orders\"} 1.5",
                "outbox_parked_events{pipeline=\"orders\"} 1",
                "outbox_queued_events{pipeline=\"orders\"} 2",
                "outbox_deferred_events{pipeline=\"orders\"} 3",
                "outbox_blocked_keys{pipeline=\"orders\"} 4",
                "outbox_paused_keys{pipeline=\"orders\"} 0",
                "outbox_blocked_keys{pipeline=\"mails\"} 3",
                "outbox_paused_keys{pipeline=\"mails\"} 2",
                "outbox_paused{pipeline=\"orders\"} 0",
                "outbox_slot_retained_wal_bytes{pipeline=\"orders\"} 100",
                "outbox_slot_safe_wal_bytes{pipeline=\"orders\"} 900",
                "outbox_slot_safe_wal_bytes{pipeline=\"mails\"} +Inf",
                "outbox_slot_lag_bytes{pipeline=\"orders\"} 5",
                "outbox_slot_lost{pipeline=\"orders\"} 0",
            ],
        );
        assert!(!page.contains("stranger"), "{page}");
    }

    #[test]
    fn a_pipeline_that_never_ran_has_everything_before_it() {
        let mut missing = slot(None);
        (missing.state, missing.retained_bytes) = (SlotState::Missing, None);
        let sampled = outbox(vec![status("default", None, Some(missing))]);
        let page = page(&shards(), &Looked { sampled: Some(&sampled), ..Looked::default() });
        assert_has(
            &page,
            &[
                "outbox_unpublished_count{pipeline=\"orders\"} 7",
                "outbox_unpublished_count{pipeline=\"mails\"} 7",
                "outbox_slot_lost{pipeline=\"orders\"} 1",
            ],
        );
        assert!(!page.contains("outbox_slot_safe_wal_bytes{"), "{page}");
    }
}
