//! Reads `[[pipeline]]` and the sections below it.

use std::time::Duration;

use super::quantity::{DAY, HOUR, MILLISECOND, SECOND};
use super::section::{Given, Section};
use super::tree::Text;
use super::{Mode, PipelineConfig, Progress, sink};
use crate::pipeline::{OnDead, Options, Ordering, Retry, Window};
use crate::sources::{LEASE_DEFAULT, MAX_RETAINED_WAL_DEFAULT, StartAt};

/// Longest pipeline name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Most events in a window.
const WINDOW_EVENTS_MAX: u64 = 1_000_000;
/// Most bytes in a window.
const WINDOW_BYTES_MAX: u64 = 4 << 30;
/// Most attempts.
const ATTEMPTS_MAX: u64 = 1_000_000;

/// How much of the server's log may be kept: at least a file of it.
const WAL_BYTES_MIN: u64 = 16 << 20;
const WAL_BYTES_MAX: u64 = 1 << 50;

/// Most shards of a pipeline.
const SHARDS_MAX: u32 = 256;

/// A pipeline as it was read, with the places that checks across pipelines need.
pub(super) struct Read {
    pub(super) name: Option<Given<String>>,
    pub(super) mode: Given<Mode>,
    pub(super) progress: Given<Progress>,
    pub(super) shards: Given<u32>,
    /// `None` if something in it is wrong.
    pub(super) config: Option<PipelineConfig>,
}

/// Reads the section of one pipeline.
pub(super) fn read(section: Section<'_>) -> Read {
    let name = read_name(&section);
    let shown = name.as_ref().map_or("?", |name| name.value.as_str()).to_owned();
    let modes = [("poll", Mode::Poll), ("cdc", Mode::Cdc)];
    let chosen = section.choice("mode", &modes);
    let mode = chosen.unwrap_or_default();
    let progress = section.choice("progress", &Progress::ALL.map(|p| (p.as_str(), p)));
    // The log has but one way.
    let instead = if mode == Mode::Cdc { Progress::Cursor } else { Progress::default() };
    let progress = progress.unwrap_or(instead);
    let max_retained_wal = section.size("max_retained_wal", WAL_BYTES_MIN..=WAL_BYTES_MAX);
    // Of a mode that is misspelt it is not known.
    let is_polled = mode == Mode::Poll && (chosen.is_some() || !section.has("mode"));
    if max_retained_wal.is_some() && is_polled {
        let what = "`max_retained_wal` is for mode \"cdc\": polling keeps nothing of the log";
        section.report.add(&section.origin_of("max_retained_wal"), what, "remove it");
    }
    let start = section.choice("start", &StartAt::ALL.map(|start| (start.as_str(), start)));
    if start.is_some() && progress != Progress::Cursor {
        let what = format!(
            "`start` is for progress \"cursor\": with \"{progress}\" a new pipeline publishes what \
             is not published"
        );
        section.report.add(&section.origin_of("start"), what, "remove it");
    }
    let shards = section.integer("shards", 1..=SHARDS_MAX.into());
    let shards = shards.and_then(|shards| u32::try_from(shards).ok()).unwrap_or(1);
    let lease = section.duration("lease", SECOND..=HOUR).unwrap_or(LEASE_DEFAULT);
    let mut options = Options::default();
    read_behaviour(&section, &mut options);
    let aggregate_types = read_match(&section, &shown);
    read_window(&section, &shown, &mut options.window);
    read_retry(&section, &shown, &mut options.retry);
    // The last: a sink is checked together with what it knows of its pipeline.
    let sink = sink::read(&section, &shown, &mut options);

    let mode = Given { value: mode, origin: section.origin_of("mode") };
    let progress = Given { value: progress, origin: section.origin_of("progress") };
    let shards = Given { value: shards, origin: section.origin_of("shards") };
    let config = name.as_ref().zip(sink).map(|(name, (sink_url, sink))| PipelineConfig {
        name: name.value.clone(),
        mode: mode.value,
        max_retained_wal: max_retained_wal.unwrap_or(MAX_RETAINED_WAL_DEFAULT),
        progress: progress.value,
        start: start.unwrap_or_default(),
        aggregate_types,
        shards: shards.value,
        lease,
        sink_url,
        sink,
        options,
    });
    section.finish();
    Read { name, mode, progress, shards, config }
}

fn read_name(section: &Section<'_>) -> Option<Given<String>> {
    let Given { value: Text { value, .. }, origin } = section.required_string("name", "orders")?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if value.len() > NAME_BYTES_MAX || !value.bytes().all(is_plain) {
        let fix = "use up to 64 letters, digits, `-`, `_` and `.`: the name stays in the database";
        section.report.add(&origin, "`name` is not a pipeline name", fix);
        return None;
    }
    Some(Given { value, origin })
}

fn read_behaviour(section: &Section<'_>, options: &mut Options) {
    let orderings = [("key", Ordering::Key), ("none", Ordering::None)];
    if let Some(ordering) = section.choice("ordering", &orderings) {
        options.ordering = ordering;
    }
    if let Some(on_dead) =
        section.choice("on_dead", &[("park", OnDead::Park), ("skip", OnDead::Skip)])
    {
        options.on_dead = on_dead;
    }
    if let Some(grace) = section.duration("grace", Duration::ZERO..=HOUR) {
        options.grace = grace;
    }
    if let Some(stall_after) = section.duration("stall_after", SECOND..=DAY) {
        options.stall_after = stall_after;
    }
}

fn read_match(section: &Section<'_>, pipeline: &str) -> Vec<String> {
    let Some(inner) = section.section("match", format!("`match` of {pipeline}")) else {
        return Vec::new();
    };
    let types = inner.strings("aggregate_type").unwrap_or_default();
    inner.finish();
    types
}

fn read_window(section: &Section<'_>, pipeline: &str, window: &mut Window) {
    let Some(inner) = section.section("window", format!("`window` of {pipeline}")) else {
        return;
    };
    if let Some(events) = inner.integer("events", 1..=WINDOW_EVENTS_MAX) {
        window.events_max = usize::try_from(events).unwrap_or(usize::MAX);
    }
    if let Some(bytes) = inner.size("bytes", 1024..=WINDOW_BYTES_MAX) {
        window.bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
    }
    inner.finish();
}

fn read_retry(section: &Section<'_>, pipeline: &str, retry: &mut Retry) {
    let title = format!("[pipeline.retry] of {pipeline}");
    let Some(inner) = section.section("retry", title) else {
        return;
    };
    if let Some(attempts) = inner.integer("attempts", 1..=ATTEMPTS_MAX) {
        retry.attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
    }
    if let Some(initial) = inner.duration("initial", MILLISECOND..=HOUR) {
        retry.initial = initial;
    }
    if let Some(max) = inner.duration("max", MILLISECOND..=DAY) {
        retry.max = max;
    }
    if retry.max < retry.initial {
        let fix = "make `max` at least as long as `initial`";
        inner.report.add(&inner.origin_of("max"), "`max` is shorter than `initial`", fix);
    }
    inner.finish();
}
