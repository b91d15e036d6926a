//! Alarms: what an operator should know of, in the log, for whoever has no Prometheus.
//!
//! An alarm is said twice: when a value is above its limit, and when it has been at or below it for
//! a while. Its name is that of the alert in `deploy/prometheus/rules.yml` which looks at the same
//! value, and so of the runbook.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::Reconciled;
use super::metrics::of_pipeline;
use crate::admin::{OutboxStatus, PipelineStatus};
use crate::config::AlarmConfig;
use crate::reconcile::MissedKind;

/// An alarm is over after so many looks in a row without it: a value around its limit is one alarm.
const LOOKS_UNTIL_OVER: u32 = 3;

/// What is wrong now.
pub(super) struct Alarms {
    limits: AlarmConfig,
    /// By alarm and pipeline.
    raised: BTreeMap<(&'static str, String), Raised>,
}

struct Raised {
    since: Instant,
    /// Looks without it since the last one with it.
    calm: u32,
}

/// A value that an alarm looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reading {
    alarm: &'static str,
    value: u64,
    limit: u64,
    unit: &'static str,
    what: &'static str,
}

/// What is to be said about an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Begins,
    Over { lasted: Duration },
}

impl Alarms {
    pub(super) fn new(limits: AlarmConfig) -> Self {
        Self { limits, raised: BTreeMap::new() }
    }

    /// Looks at how these pipelines stand, and says what is new.
    pub(super) fn look(
        &mut self,
        pipelines: &[String],
        status: &OutboxStatus,
        missed: Option<&Reconciled>,
    ) {
        for pipeline in pipelines {
            let Some(found) = of_pipeline(status, pipeline) else { continue };
            for reading in readings(&self.limits, pipeline, found, missed) {
                if let Some(news) = self.take(pipeline, &reading) {
                    say(pipeline, &reading, news);
                }
            }
        }
    }

    fn take(&mut self, pipeline: &str, reading: &Reading) -> Option<News> {
        let place = (reading.alarm, pipeline.to_owned());
        let is_high = reading.value > reading.limit;
        match self.raised.get_mut(&place) {
            None if is_high => {
                self.raised.insert(place, Raised { since: Instant::now(), calm: 0 });
                Some(News::Begins)
            }
            None => None,
            Some(raised) if is_high => {
                raised.calm = 0;
                None
            }
            Some(raised) => {
                raised.calm += 1;
                let is_over = raised.calm >= LOOKS_UNTIL_OVER;
                let lasted = raised.since.elapsed();
                is_over.then(|| {
                    self.raised.remove(&place);
                    News::Over { lasted }
                })
            }
        }
    }
}

fn readings(
    limits: &AlarmConfig,
    pipeline: &str,
    found: &PipelineStatus,
    missed: Option<&Reconciled>,
) -> [Reading; 5] {
    // A relay that is behind is another alarm.
    let kinds = [MissedKind::Forgotten, MissedKind::Overdue, MissedKind::Overtaken];
    let missed: u64 =
        missed.map_or(0, |it| kinds.map(|kind| it.missed(pipeline, kind)).iter().sum());
    let retained = found.slot.as_ref().and_then(|slot| slot.retained_bytes).unwrap_or(0);
    let allowed = found.slot.as_ref().and_then(|slot| slot.safe_bytes).map(|safe| retained + safe);
    let is_lost = found.slot.as_ref().is_some_and(|slot| slot.state.why_of_no_use().is_some());
    let reading = |alarm, value, limit, unit, what| Reading { alarm, value, limit, unit, what };
    [
        reading(
            "OutboxLagHigh",
            found.oldest_unpublished_age.map_or(0, |age| age.as_secs()),
            limits.lag.as_secs(),
            "seconds",
            "the oldest event waits for too long",
        ),
        reading(
            "DeadLettersNotEmpty",
            found.parked,
            limits.dead_letters,
            "events",
            "there are dead letters",
        ),
        reading(
            "SlotRetainedWalHigh",
            retained,
            allowed.map_or(limits.retained_wal, |allowed| limits.retained_wal.min(allowed / 2)),
            "bytes",
            "the server keeps much of its log for the slot",
        ),
        reading("SlotLost", u64::from(is_lost), 0, "slots", "the slot cannot be relied on"),
        reading("EventsMissed", missed, 0, "events", "events were missed"),
    ]
}

fn say(pipeline: &str, reading: &Reading, news: News) {
    let &Reading { alarm, value, limit, unit, what } = reading;
    match news {
        News::Begins => warn!(alarm, state = "begins", pipeline, value, limit, unit, "{what}"),
        News::Over { lasted } => {
            let lasted_seconds = lasted.as_secs();
            let state = "over";
            info!(alarm, state, pipeline, value, limit, unit, lasted_seconds, "over: {what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(value: u64) -> Reading {
        Reading { alarm: "OutboxLagHigh", value, limit: 300, unit: "seconds", what: "late" }
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_is_said_when_it_begins_and_when_it_is_over() {
        let mut alarms = Alarms::new(AlarmConfig::default());
        let mut said = Vec::new();
        // It is at its limit, above it, around it, and then below it for good.
        for value in [300, 301, 900, 299, 299, 301, 0, 0, 0, 0, 301] {
            said.push(alarms.take("orders", &reading(value)));
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        let over = Some(News::Over { lasted: Duration::from_secs(70) });
        let begins = Some(News::Begins);
        let none = None;
        assert_eq!(said, [none, begins, none, none, none, none, none, none, over, none, begins]);
    }

    #[test]
    fn each_pipeline_has_its_own() {
        let mut alarms = Alarms::new(AlarmConfig::default());
        assert_eq!(alarms.take("orders", &reading(301)), Some(News::Begins));
        assert_eq!(alarms.take("mails", &reading(301)), Some(News::Begins));
        assert_eq!(alarms.take("mails", &reading(301)), None);
    }
}
