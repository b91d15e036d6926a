//! A status as text and as JSON.

use postrider_relay::admin::{COUNT_MAX, LeaseStatus, OutboxStatus, PipelineStatus, Unmatched};
use postrider_relay::diagnosis::Level;
use postrider_relay::health::{self, Reason};
use serde::Serialize;

use super::super::pause::PauseObject;
use super::super::slot::{self, SlotObject};
use super::rates::Rates;
use crate::output::{plain, table};
use crate::time::{age, rfc3339};

/// The status as JSON; people script against it. The totals are sums over the pipelines.
#[derive(Serialize)]
pub(super) struct StatusObject<'s> {
    database: &'s str,
    table: &'s str,
    unpublished: u64,
    unpublished_is_capped: bool,
    parked: u64,
    parked_is_capped: bool,
    pipelines: Vec<PipelineObject<'s>>,
    /// Events of aggregate types that no pipeline matches, of the oldest and the newest rows.
    unmatched: u64,
    unmatched_aggregate_types: &'s [String],
    /// The worst of the pipelines'.
    verdict: &'static str,
}

#[derive(Serialize)]
struct PipelineObject<'s> {
    name: &'s str,
    progress: Option<&'s str>,
    unpublished: u64,
    unpublished_is_capped: bool,
    oldest_unpublished_age_seconds: Option<f64>,
    parked: u64,
    parked_is_capped: bool,
    queued: u64,
    queued_is_capped: bool,
    deferred: u64,
    deferred_is_capped: bool,
    blocked_keys: u64,
    blocked_keys_is_capped: bool,
    last_settled_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<TroubleObject<'s>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leases: Vec<LeaseObject<'s>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<SlotObject<'s>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<PauseObject<'s>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_keys: Option<PausedKeysObject>,
    /// `ok`, `warn` or `fail`.
    verdict: &'static str,
    reasons: Vec<ReasonObject<'s>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<Rates>,
}

/// What is wrong with the sink as a whole.
#[derive(Serialize)]
struct TroubleObject<'s> {
    why: &'s str,
    since: String,
}

#[derive(Serialize)]
struct PausedKeysObject {
    count: u64,
    /// The first few of them.
    first: Vec<String>,
}

#[derive(Serialize)]
struct LeaseObject<'s> {
    shard: u32,
    owner: Option<&'s str>,
    epoch: u64,
    expires_in_seconds: f64,
}

#[derive(Serialize)]
struct ReasonObject<'s> {
    code: &'static str,
    level: &'static str,
    what: &'s str,
    command: Option<String>,
}

/// What there is to show of a status; reasons and rates are those of the pipelines, in their order.
pub(super) struct View<'s> {
    pub(super) status: &'s OutboxStatus,
    pub(super) reasons: Vec<Vec<Reason>>,
    pub(super) rates: Vec<Option<Rates>>,
    /// The flags that name this outbox in a command.
    pub(super) flags: &'s str,
}

impl View<'_> {
    pub(super) fn to_object(&self) -> StatusObject<'_> {
        let pipelines = &self.status.pipelines;
        let sum = |count: fn(&PipelineStatus) -> u64| pipelines.iter().map(count).sum();
        let worst = self.reasons.iter().map(|reasons| health::verdict(reasons)).max();
        let objects = pipelines.iter().zip(&self.reasons).zip(&self.rates);
        StatusObject {
            database: self.status.database,
            table: &self.status.table,
            unpublished: sum(|pipeline| pipeline.unpublished),
            unpublished_is_capped: pipelines.iter().any(|it| is_capped(it.unpublished)),
            parked: sum(|pipeline| pipeline.parked),
            parked_is_capped: pipelines.iter().any(|it| is_capped(it.parked)),
            pipelines: objects
                .map(|((pipeline, reasons), rates)| PipelineObject {
                    verdict: health::verdict(reasons).as_str(),
                    reasons: reasons.iter().map(|reason| self.to_reason_object(reason)).collect(),
                    rates: *rates,
                    ..to_pipeline_object(pipeline)
                })
                .collect(),
            unmatched: self.status.unmatched.events,
            unmatched_aggregate_types: &self.status.unmatched.aggregate_types,
            verdict: worst.unwrap_or(Level::Ok).as_str(),
        }
    }

    fn to_reason_object<'r>(&self, reason: &'r Reason) -> ReasonObject<'r> {
        ReasonObject {
            code: reason.code,
            level: reason.level.as_str(),
            what: &reason.what,
            command: self.help(reason),
        }
    }

    /// The command that helps, as it can be copied.
    fn help(&self, reason: &Reason) -> Option<String> {
        let flags = self.flags;
        reason.command.as_ref().map(|command| match command.as_str() {
            "postrider relay" if flags.starts_with("--from") => {
                format!("{command} {flags} --to URL")
            }
            command => format!("{command} {flags}"),
        })
    }

    pub(super) fn to_text(&self) -> String {
        let status = self.status;
        let pipelines = self.pipelines_text();
        let (leases, slots) = (leases_text(status), slots_text(status));
        let (title, why) = (plain(&status.table), self.reasons_text());
        let unmatched = self.unmatched_text();
        format!("{} outbox {title}\n\n{pipelines}{leases}{slots}{why}{unmatched}", status.database)
    }

    /// Events that nobody will publish.
    fn unmatched_text(&self) -> String {
        let Unmatched { events, aggregate_types } = &self.status.unmatched;
        if *events == 0 {
            return String::new();
        }
        let (noun, are) = if *events == 1 { ("event", "is") } else { ("events", "are") };
        let types = plain(&aggregate_types.join(", "));
        format!(
            "\nWARN  {} {noun} {are} of aggregate types that no pipeline matches: {types}\n      \
             help: add the types to `match` of a pipeline, or remove the events: postrider prune \
             --unmatched {}\n",
            count(*events),
            plain(self.flags)
        )
    }

    fn pipelines_text(&self) -> String {
        let has_rates = self.rates.iter().any(Option::is_some);
        let mut heading = HEADING.map(str::to_owned).to_vec();
        if has_rates {
            heading.extend(["PUBLISHED/S", "BACKLOG/S"].map(str::to_owned));
        }
        let mut rows = vec![heading];
        for (pipeline, rates) in self.status.pipelines.iter().zip(&self.rates) {
            let mut row = cells(pipeline);
            if has_rates {
                let shown = |rate: Option<f64>| {
                    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
                };
                row.push(shown(rates.and_then(|rates| rates.published_per_second)));
                let backlog = rates.map(|rates| format!("{:+.1}", rates.backlog_per_second));
                row.push(backlog.unwrap_or_else(|| "-".to_owned()));
            }
            rows.push(row);
        }
        table(&rows)
    }

    /// Why pipelines are not green.
    fn reasons_text(&self) -> String {
        let mut text = String::new();
        for (pipeline, reasons) in self.status.pipelines.iter().zip(&self.reasons) {
            for reason in reasons {
                let level = reason.level.as_str().to_uppercase();
                let what = plain(&reason.what);
                text.push_str(&format!("\n{level}  {}: {what}", plain(&pipeline.name)));
                if let Some(help) = self.help(reason) {
                    text.push_str(&format!("\n      help: {}", plain(&help)));
                }
            }
        }
        if text.is_empty() { text } else { format!("{text}\n") }
    }
}

fn to_pipeline_object(pipeline: &PipelineStatus) -> PipelineObject<'_> {
    PipelineObject {
        name: &pipeline.name,
        progress: pipeline.progress.as_deref(),
        unpublished: pipeline.unpublished,
        unpublished_is_capped: is_capped(pipeline.unpublished),
        oldest_unpublished_age_seconds: pipeline
            .oldest_unpublished_age
            .map(|age| age.as_secs_f64()),
        parked: pipeline.parked,
        parked_is_capped: is_capped(pipeline.parked),
        queued: pipeline.queued,
        queued_is_capped: is_capped(pipeline.queued),
        deferred: pipeline.deferred,
        deferred_is_capped: is_capped(pipeline.deferred),
        blocked_keys: pipeline.blocked_keys,
        blocked_keys_is_capped: is_capped(pipeline.blocked_keys),
        last_settled_at: pipeline.last_settled_at.map(rfc3339),
        trouble: pipeline
            .trouble
            .as_ref()
            .map(|trouble| TroubleObject { why: &trouble.why, since: rfc3339(trouble.since) }),
        leases: pipeline.leases.iter().map(to_lease_object).collect(),
        slot: pipeline.slot.as_ref().map(SlotObject::new),
        paused: pipeline.paused.as_ref().map(PauseObject::new),
        paused_keys: (pipeline.paused_keys.count > 0).then(|| PausedKeysObject {
            count: pipeline.paused_keys.count,
            first: pipeline.paused_keys.first.iter().map(ToString::to_string).collect(),
        }),
        verdict: Level::Ok.as_str(),
        reasons: Vec::new(),
        rates: None,
    }
}

fn to_lease_object(lease: &LeaseStatus) -> LeaseObject<'_> {
    LeaseObject {
        shard: lease.shard,
        owner: lease.owner.as_deref(),
        epoch: lease.epoch,
        expires_in_seconds: lease.expires_in.as_secs_f64(),
    }
}

const HEADING: [&str; 9] = [
    "PIPELINE",
    "PROGRESS",
    "UNPUBLISHED",
    "OLDEST",
    "PARKED",
    "QUEUED",
    "DEFERRED",
    "BLOCKED KEYS",
    "LAST SETTLED",
];

/// Counting has stopped here.
fn is_capped(count: u64) -> bool {
    count >= COUNT_MAX
}

fn count(count: u64) -> String {
    let more = if is_capped(count) { "+" } else { "" };
    format!("{count}{more}")
}

/// A pipeline as a row of a table.
fn cells(pipeline: &PipelineStatus) -> Vec<String> {
    vec![
        plain(&pipeline.name),
        pipeline.progress.clone().unwrap_or_else(|| "-".into()),
        count(pipeline.unpublished),
        pipeline.oldest_unpublished_age.map_or_else(|| "-".into(), age),
        count(pipeline.parked),
        count(pipeline.queued),
        count(pipeline.deferred),
        count(pipeline.blocked_keys),
        pipeline.last_settled_at.map_or_else(|| "never".into(), rfc3339),
    ]
}

/// Who reads what, where that is shared between relays.
fn leases_text(status: &OutboxStatus) -> String {
    let heading = ["PIPELINE", "SHARD", "RELAY", "LEASE", "EPOCH"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for pipeline in &status.pipelines {
        rows.extend(pipeline.leases.iter().map(|lease| {
            let left = match (&lease.owner, lease.expires_in.is_zero()) {
                (None, _) => "free".into(),
                (Some(_), true) => "expired".into(),
                (Some(_), false) => age(lease.expires_in),
            };
            vec![
                plain(&pipeline.name),
                lease.shard.to_string(),
                lease.owner.as_deref().map_or_else(|| "-".into(), plain),
                left,
                lease.epoch.to_string(),
            ]
        }));
    }
    if rows.len() == 1 {
        return String::new();
    }
    format!("\n{}", table(&rows))
}

/// What keeps the server's log, where it is read.
fn slots_text(status: &OutboxStatus) -> String {
    let mut rows = vec![slot::HEADING.map(str::to_owned).to_vec()];
    for pipeline in &status.pipelines {
        rows.extend(pipeline.slot.as_ref().map(|slot| slot::cells(&pipeline.name, slot)));
    }
    if rows.len() == 1 {
        return String::new();
    }
    format!("\n{}", table(&rows))
}

#[cfg(test)]
pub(super) mod tests;
