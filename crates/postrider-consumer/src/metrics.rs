//! What a consumer has done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one consumer since its start.
#[derive(Debug, Default)]
pub struct Metrics {
    received: AtomicU64,
    handled: AtomicU64,
    duplicates: AtomicU64,
    skipped: AtomicU64,
    stale: AtomicU64,
    gaps: AtomicU64,
    retries: AtomicU64,
    buried: AtomicU64,
    in_flight: AtomicU64,
}

/// What the counters say at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Deliveries that came from the broker.
    pub received: u64,
    /// Events whose effect was committed.
    pub handled: u64,
    /// Deliveries of events whose effect was committed before.
    pub duplicates: u64,
    /// Events that nobody handles.
    pub skipped: u64,
    /// Events that came after a later one of their key.
    pub stale: u64,
    /// Events that came before an earlier one of their key.
    pub gaps: u64,
    /// Attempts that failed and are made again.
    pub retries: u64,
    /// Events that became dead letters.
    pub buried: u64,
    /// Deliveries that are being worked on or wait for it.
    pub in_flight: u64,
}

macro_rules! count {
    ($($name:ident),*) => {
        impl Metrics {
            $(pub(crate) fn $name(&self, count: usize) {
                self.$name.fetch_add(count as u64, Ordering::Relaxed);
            })*
        }
    };
}

count!(received, handled, duplicates, skipped, stale, gaps, retries, buried);

impl Metrics {
    pub(crate) fn set_in_flight(&self, count: usize) {
        self.in_flight.store(count as u64, Ordering::Relaxed);
    }

    /// The counters as they are.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            received: read(&self.received),
            handled: read(&self.handled),
            duplicates: read(&self.duplicates),
            skipped: read(&self.skipped),
            stale: read(&self.stale),
            gaps: read(&self.gaps),
            retries: read(&self.retries),
            buried: read(&self.buried),
            in_flight: read(&self.in_flight),
        }
    }

    /// The counters in Prometheus' text format, for an application that shows metrics.
    pub fn to_prometheus(&self, consumer: &str) -> String {
        use std::fmt::Write as _;
        let label = consumer.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let counts = self.counts();
        let mut text = String::new();
        let _ = writeln!(text, "# TYPE inbox_processed_total counter");
        for (result, value) in [
            ("applied", counts.handled),
            ("duplicate", counts.duplicates),
            ("skipped", counts.skipped),
            ("stale", counts.stale),
            ("buried", counts.buried),
        ] {
            let labels = format!("consumer=\"{label}\",result=\"{result}\"");
            let _ = writeln!(text, "inbox_processed_total{{{labels}}} {value}");
        }
        for (name, kind, value) in [
            ("inbox_received_total", "counter", counts.received),
            ("inbox_retries_total", "counter", counts.retries),
            ("inbox_gaps_total", "counter", counts.gaps),
            ("inbox_in_flight", "gauge", counts.in_flight),
        ] {
            let _ = writeln!(text, "# TYPE {name} {kind}\n{name}{{consumer=\"{label}\"}} {value}");
        }
        text
    }
}
