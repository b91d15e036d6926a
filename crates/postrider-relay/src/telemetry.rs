//! What machines see of a relay: counters, probes, and the HTTP server that shows them.
//!
//! ```text
//!   pipeline ──Counters──▶ ┌───────────┐ ──▶ /metrics
//!   shard ─────Stage─────▶ │ Telemetry │ ──▶ /livez, /readyz
//!   database ──Sample────▶ └───────────┘ ──▶ systemd
//!                  └─────────▶ Alarms ─────▶ the log
//! ```
//!
//! Whoever asks gets what is in memory. Pipelines write their counters once for each call of the
//! sink, and what only the database knows is looked up in the background, so that neither a scrape
//! nor a probe ever waits, or makes anything wait. Beside that, [calls of the sink](spans) are spans
//! of OpenTelemetry.

mod alarms;
pub mod counters;
pub mod health;
pub mod histogram;
mod metrics;
mod page;
pub(crate) mod sample;
pub mod server;
pub(crate) mod spans;
pub mod watched;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use self::health::Health;
use self::watched::{Stage, Watched};
use crate::admin::OutboxStatus;
use crate::reconcile::{Missed, MissedKind};

pub use self::page::CONTENT_TYPE;
pub use self::sample::SAMPLE_EVERY;

/// What was found in the database is shown for so long; after that it says nothing about now.
const SAMPLE_KEPT: Duration = Duration::from_secs(60);

/// What is known of a relay, at any moment.
#[derive(Debug, Default)]
pub struct Telemetry {
    shards: Mutex<Vec<Arc<Watched>>>,
    sample: Mutex<Option<(Instant, OutboxStatus)>>,
    sample_failures: AtomicU64,
    reconciled: Mutex<Option<Reconciled>>,
    reconcile_failures: AtomicU64,
    given_back: AtomicU64,
}

/// What the last look for missed events found.
#[derive(Clone, Debug)]
pub(crate) struct Reconciled {
    at: SystemTime,
    /// How many of each kind, by pipeline.
    missed: BTreeMap<String, BTreeMap<MissedKind, u64>>,
}

impl Reconciled {
    /// How many a pipeline has missed, of a kind.
    pub(crate) fn missed(&self, pipeline: &str, kind: MissedKind) -> u64 {
        self.missed.get(pipeline).and_then(|kinds| kinds.get(&kind)).copied().unwrap_or(0)
    }
}

impl Telemetry {
    /// The metrics, in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let shards = self.shards();
        let sample = unpoisoned(&self.sample);
        let fresh = sample.as_ref().filter(|(taken, _)| taken.elapsed() < SAMPLE_KEPT);
        let looked = metrics::Looked {
            sampled: fresh.map(|(_, status)| status),
            sample_failures: self.sample_failures.load(Relaxed),
            reconciled: self.last_reconciled(),
            reconcile_failures: self.reconcile_failures.load(Relaxed),
            given_back: self.given_back.load(Relaxed),
        };
        metrics::page(&shards, &looked)
    }

    /// Whether every pipeline's loop turns and none has ended for good by a failure.
    pub fn live(&self) -> Health {
        Health::of(&self.shards(), |condition| condition.is_live)
    }

    /// Whether every pipeline runs or stands by, has its source and its sink, and makes progress.
    pub fn ready(&self) -> Health {
        let health = Health::of(&self.shards(), |condition| condition.is_ready);
        Health { ok: health.ok && !health.pipelines.is_empty(), ..health }
    }

    /// Whether every pipeline is live, and none holds events back for a reason that nobody knows:
    /// what a watchdog should look at.
    pub fn moving(&self) -> Health {
        Health::of(&self.shards(), |condition| condition.is_live && !condition.is_stuck)
    }

    /// Whether every pipeline has connected or stands by. Some may have come into trouble since.
    pub fn is_set_up(&self) -> bool {
        let shards = self.shards();
        let connects = |watched: &Arc<Watched>| matches!(watched.stage(), Stage::Connecting { .. });
        !shards.is_empty() && !shards.iter().any(connects)
    }

    /// How many events sinks have made durable so far.
    pub fn published(&self) -> u64 {
        self.shards().iter().map(|it| it.counters.published.load(Relaxed)).sum()
    }

    /// Adds a shard, after those of the same pipeline.
    pub(crate) fn watch(&self, watched: &Arc<Watched>) {
        unpoisoned(&self.shards).push(watched.clone());
    }

    pub(crate) fn sampled(&self, status: OutboxStatus) {
        *unpoisoned(&self.sample) = Some((Instant::now(), status));
    }

    pub(crate) fn not_sampled(&self) {
        self.sample_failures.fetch_add(1, Relaxed);
    }

    /// Whether the first shard of a pipeline is with this relay.
    pub(crate) fn has_first_shard(&self) -> bool {
        let shards = self.shards();
        shards.iter().any(|it| it.shard == 0 && matches!(it.stage(), Stage::Running(_)))
    }

    /// Takes in what a look for missed events found.
    pub(crate) fn reconciled(&self, found: &[Missed], given_back: u64) {
        let mut missed: BTreeMap<String, BTreeMap<MissedKind, u64>> = BTreeMap::new();
        for it in found {
            *missed.entry(it.pipeline.clone()).or_default().entry(it.kind).or_default() += 1;
        }
        self.given_back.fetch_add(given_back, Relaxed);
        *unpoisoned(&self.reconciled) = Some(Reconciled { at: SystemTime::now(), missed });
    }

    /// A look for missed events failed.
    pub(crate) fn not_reconciled(&self) {
        self.reconcile_failures.fetch_add(1, Relaxed);
    }

    /// Another relay looks for missed events now.
    pub(crate) fn left_to_others(&self) {
        *unpoisoned(&self.reconciled) = None;
    }

    pub(crate) fn last_reconciled(&self) -> Option<Reconciled> {
        unpoisoned(&self.reconciled).clone()
    }

    /// The pipelines of the relay.
    pub(crate) fn pipelines(&self) -> Vec<String> {
        let mut names: Vec<String> = self.shards().iter().map(|it| it.pipeline.clone()).collect();
        names.dedup();
        names
    }

    fn shards(&self) -> Vec<Arc<Watched>> {
        unpoisoned(&self.shards).clone()
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::PipelineStatus;

    #[tokio::test(start_paused = true)]
    async fn what_was_found_long_ago_is_not_shown() {
        let telemetry = Telemetry::default();
        telemetry.watch(&Arc::new(Watched::new("orders", 0, Arc::default())));
        let orders = PipelineStatus {
            name: "orders".into(),
            progress: None,
            unpublished: 7,
            oldest_unpublished_age: None,
            parked: 0,
            queued: 0,
            deferred: 0,
            blocked_keys: 0,
            last_settled_at: None,
            trouble: None,
            leases: Vec::new(),
            slot: None,
            paused: None,
            paused_keys: Default::default(),
        };
        let (database, table) = ("sqlite", "outbox".to_owned());
        let (pipelines, unmatched) = (vec![orders], Default::default());
        telemetry.sampled(OutboxStatus { database, table, pipelines, written: None, unmatched });
        let shown = || telemetry.metrics().contains("outbox_unpublished_count{");
        tokio::time::advance(SAMPLE_KEPT - Duration::from_secs(1)).await;
        telemetry.not_sampled();
        assert!(shown(), "one failure says nothing yet");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!shown(), "{}", telemetry.metrics());
    }

    #[test]
    fn a_relay_is_set_up_once_all_have_connected_or_stand_by() {
        let telemetry = Telemetry::default();
        assert!(!telemetry.is_set_up() && !telemetry.ready().ok, "nothing is there yet");
        let shards = [0, 1].map(|shard| Arc::new(Watched::new("orders", shard, Arc::default())));
        shards.iter().for_each(|shard| telemetry.watch(shard));
        shards[0].set(Stage::StandingBy);
        assert!(!telemetry.is_set_up());
        shards[1].has_sink();
        assert!(!telemetry.is_set_up(), "it has no source");
        shards[1].set(Stage::StandingBy);
        assert!(telemetry.is_set_up() && telemetry.ready().ok);
        shards[1].has_sink();
        assert!(telemetry.ready().ok, "who stands by goes on standing by");
    }
}
