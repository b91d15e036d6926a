//! Why a pipeline is not green: one place that judges its status, for people and for machines.

use std::time::{Duration, SystemTime};

use crate::admin::{COUNT_MAX, LeaseStatus, PipelineStatus, SinkTrouble};
use crate::amounts::{age as age_of, size};
use crate::diagnosis::Level;
use crate::pauses::{Pause, PausedKeys};
use crate::shell::word;
use crate::slots::{SlotState, SlotStatus};

/// From when on something is worth a word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// An event that waits for longer is late. Defaults to 1 min.
    pub late: Duration,
    /// An event that waits for longer means that the pipeline stands still. Defaults to 10 min.
    pub very_late: Duration,
    /// The part of the log that a slot may keep, from which on it is nearly lost. Defaults to 0.8.
    pub retained_part: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            late: Duration::from_secs(60),
            very_late: Duration::from_secs(600),
            retained_part: 0.8,
        }
    }
}

/// Every [`Reason::code`].
pub const REASONS: [&str; 12] = [
    "blocked",
    "late",
    "never_run",
    "no_relay",
    "not_settling",
    "parked",
    "paused",
    "paused_keys",
    "slot_inactive",
    "slot_lost",
    "slot_wal",
    "trouble",
];

/// One reason why a pipeline is not green.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Its name in data, one of [`REASONS`]; it does not change.
    pub code: &'static str,
    /// [`Level::Warn`] or [`Level::Fail`].
    pub level: Level,
    /// What it is, in words.
    pub what: String,
    /// The command that helps, without the flags that name the outbox.
    pub command: Option<String>,
}

/// The worst of several reasons; green without any.
pub fn verdict(reasons: &[Reason]) -> Level {
    reasons.iter().map(|reason| reason.level).max().unwrap_or(Level::Ok)
}

/// Everything that is not as it should be, the worst first.
pub fn reasons(pipeline: &PipelineStatus, thresholds: &Thresholds, now: SystemTime) -> Vec<Reason> {
    let mut reasons = Vec::new();
    match &pipeline.paused {
        // Somebody wants it to stand still.
        Some(pause) => reasons.push(paused(pause, now)),
        None => {
            reasons.extend(trouble(pipeline, thresholds, now));
            reasons.extend(ownerless(pipeline, thresholds));
            reasons.extend(late(pipeline, thresholds));
            reasons.extend(silent(pipeline, thresholds, now));
        }
    }
    reasons.extend(paused_keys(&pipeline.paused_keys));
    reasons.extend(parked(pipeline));
    reasons.extend(pipeline.slot.iter().flat_map(|slot| slot_reasons(pipeline, slot, thresholds)));
    reasons.sort_by_key(|reason| std::cmp::Reverse(reason.level));
    reasons
}

fn reason(code: &'static str, level: Level, what: impl Into<String>) -> Reason {
    debug_assert!(REASONS.contains(&code), "{code} is not listed");
    Reason { code, level, what: what.into(), command: None }
}

impl Reason {
    fn helped_by(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }
}

/// It stands still because an operator has stopped it.
fn paused(pause: &Pause, now: SystemTime) -> Reason {
    let since = age_of(now.duration_since(pause.since).unwrap_or_default());
    let why = pause.reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let only = pause.pipeline.as_ref().map(|name| format!(" --pipeline {}", word(name)));
    let command = format!("postrider resume{}", only.unwrap_or_default());
    reason("paused", Level::Warn, format!("paused for {since}{why}")).helped_by(command)
}

/// Keys stand still because an operator has stopped them.
fn paused_keys(keys: &PausedKeys) -> Option<Reason> {
    let first = keys.first.first()?;
    let names: Vec<String> = keys.first.iter().map(ToString::to_string).collect();
    let more = if keys.count > names.len() as u64 { ", …" } else { "" };
    let what = counted(keys.count, "key is", "keys are");
    let what = format!("{what} paused: {}{more}", names.join(", "));
    let command = format!("postrider resume --key {}", word(&first.to_string()));
    Some(reason("paused_keys", Level::Warn, what).helped_by(command))
}

/// A relay cannot publish anything.
fn trouble(pipeline: &PipelineStatus, thresholds: &Thresholds, now: SystemTime) -> Option<Reason> {
    let SinkTrouble { why, since } = pipeline.trouble.as_ref()?;
    let lasts = now.duration_since(*since).unwrap_or_default();
    let level = if lasts >= thresholds.late { Level::Fail } else { Level::Warn };
    let what = format!("the sink has been in trouble for {}: {why}", age_of(lasts));
    Some(reason("trouble", level, what).helped_by("postrider doctor"))
}

/// Something is there to be done by a relay.
fn has_work(pipeline: &PipelineStatus) -> bool {
    pipeline.unpublished > 0 || pipeline.deferred > 0
}

/// Nobody works although there is work.
fn ownerless(pipeline: &PipelineStatus, thresholds: &Thresholds) -> Option<Reason> {
    if !has_work(pipeline) {
        return None;
    }
    // For a moment it is so whenever a relay is started anew.
    let is_late = pipeline.oldest_unpublished_age.is_some_and(|age| age >= thresholds.late);
    let level = if is_late { Level::Fail } else { Level::Warn };
    let waiting = events(pipeline.unpublished.max(pipeline.deferred));
    if pipeline.progress.is_none() {
        let what = format!("no relay has ever read the outbox, and {waiting}");
        return Some(reason("never_run", level, what).helped_by("postrider relay"));
    }
    let is_held = |lease: &LeaseStatus| lease.owner.is_some() && !lease.expires_in.is_zero();
    let free: Vec<&LeaseStatus> = pipeline.leases.iter().filter(|it| !is_held(it)).collect();
    let first = free.first()?;
    let shards = match (free.len(), pipeline.leases.len()) {
        (_, 1) => String::new(),
        (free, all) => format!(" of {free} of {all} shards"),
    };
    let last = match &first.owner {
        Some(owner) => format!(" ({owner} let it expire)"),
        None => String::new(),
    };
    let what = format!("no relay has the lease{shards}{last}, and {waiting}");
    Some(reason("no_relay", level, what).helped_by("postrider relay"))
}

/// Something waits for longer than it should.
fn late(pipeline: &PipelineStatus, thresholds: &Thresholds) -> Option<Reason> {
    let age = pipeline.oldest_unpublished_age.filter(|age| *age >= thresholds.late)?;
    let level = if age >= thresholds.very_late { Level::Fail } else { Level::Warn };
    let what = format!("{}, the oldest for {}", events(pipeline.unpublished), age_of(age));
    Some(reason("late", level, what))
}

/// Nothing is settled although something waits.
fn silent(pipeline: &PipelineStatus, thresholds: &Thresholds, now: SystemTime) -> Option<Reason> {
    pipeline.progress.as_ref()?;
    let waits_for = pipeline.oldest_unpublished_age?;
    if waits_for < thresholds.late {
        return None;
    }
    let what = match pipeline.last_settled_at {
        None => "nothing was ever settled: the relay cannot publish".to_owned(),
        Some(settled) => {
            let since = now.duration_since(settled).unwrap_or_default();
            if since < thresholds.late {
                return None;
            }
            format!("nothing was settled for {}: the relay cannot publish", age_of(since))
        }
    };
    Some(reason("not_settling", Level::Fail, what).helped_by("postrider doctor"))
}

fn parked(pipeline: &PipelineStatus) -> Option<Reason> {
    let PipelineStatus { name, parked, queued, .. } = pipeline;
    // Those that are paused have a reason of their own.
    let blocked_keys = pipeline.keys_in_trouble();
    let behind = match (blocked_keys, queued) {
        (0, _) => String::new(),
        (keys, 0) => format!("; {} blocked", counted(keys, "key is", "keys are")),
        (keys, queued) => format!(
            "; {} blocked, with {} behind",
            counted(keys, "key is", "keys are"),
            counted(*queued, "event", "events")
        ),
    };
    if *parked > 0 {
        let what = format!("{} parked{behind}", counted(*parked, "event is", "events are"));
        let command = format!("postrider dlq list --pipeline {}", word(name));
        return Some(reason("parked", Level::Warn, what).helped_by(command));
    }
    let keys = counted(blocked_keys, "key waits", "keys wait");
    (blocked_keys > 0).then(|| {
        reason("blocked", Level::Warn, format!("{keys} for an event that will be tried again"))
    })
}

fn slot_reasons(
    pipeline: &PipelineStatus,
    slot: &SlotStatus,
    thresholds: &Thresholds,
) -> Vec<Reason> {
    let name = word(&pipeline.name);
    if let Some(why) = slot.state.why_of_no_use() {
        return vec![match slot.log_only {
            true => reason(
                "slot_lost",
                Level::Fail,
                format!(
                    "its slot is of no use, {why}: relays refuse to go on, because there were \
                     events that are in no table; publish what is missing again, then drop it"
                ),
            )
            .helped_by(format!("postrider slot drop {name}")),
            false => reason(
                "slot_lost",
                Level::Warn,
                format!("its slot is of no use, {why}: a relay reads the table instead"),
            ),
        }];
    }
    let mut reasons = Vec::new();
    if slot.state == SlotState::Streams && slot.active_pid.is_none() {
        let kept = slot.retained_bytes.map_or_else(String::new, |bytes| {
            format!(", and the server keeps {} of its log for it", size(bytes))
        });
        let what = format!("nobody reads its slot{kept}");
        reasons.push(
            reason("slot_inactive", Level::Warn, what)
                .helped_by(format!("postrider slot show {name}")),
        );
    }
    let part = match (slot.retained_bytes, slot.safe_bytes) {
        (Some(retained), Some(safe)) => retained as f64 / (retained as f64 + safe as f64).max(1.0),
        _ => 0.0,
    };
    let is_unreserved = slot.wal_status.as_deref() == Some("unreserved");
    if is_unreserved || part >= thresholds.retained_part {
        let level = if is_unreserved { Level::Fail } else { Level::Warn };
        let what = format!(
            "its slot is about to be lost: {} of the log are kept for it, and {} more may be",
            size(slot.retained_bytes.unwrap_or(0)),
            size(slot.safe_bytes.unwrap_or(0))
        );
        reasons
            .push(reason("slot_wal", level, what).helped_by(format!("postrider slot show {name}")));
    }
    reasons
}

/// `1 event waits`, `at least 100000 events wait`.
fn events(count: u64) -> String {
    counted(count, "event waits", "events wait")
}

/// Counting stops at a limit.
fn counted(count: u64, one: &str, several: &str) -> String {
    let least = if count >= COUNT_MAX { "at least " } else { "" };
    format!("{least}{count} {}", if count == 1 { one } else { several })
}

#[cfg(test)]
mod tests;
