//! `postrider replay`: publishes stored events again.

use std::num::NonZeroU32;
use std::time::SystemTime;

use clap::Args;
use postrider::Key;
use postrider_relay::config::PipelineConfig;
use postrider_relay::events::{Stored, Wanted};
use postrider_relay::replay::{self, Found, Replay, ReplayError, Replayed};
use postrider_relay::secret::MASK;
use postrider_relay::sink::Sink;
use serde::Serialize;

use super::dlq::parse_key;
use crate::error::{CliError, Code};
use crate::outbox::{Outbox, shell_word};
use crate::output::{Output, plain};
use crate::progress::{Progress, bar};
use crate::route::RouteArgs;
use crate::signals::stop_on_signal;
use crate::time::{parse_time, rfc3339};

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider replay --since 2h --type OrderPaid --pipeline orders --config postrider.toml --dry-run
  postrider replay --aggregate Order/42 --from \"$DATABASE_URL\" --to stdout:
  postrider replay --since 1d --rate 100 --pipeline orders --config postrider.toml --yes

Each event has its own id, and the header postrider-replay: true. The progress of pipelines is
left alone. It reads what the outbox still has: what was pruned is gone.";

/// The arguments of `postrider replay`.
#[derive(Args, Debug)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    route: RouteArgs,
    /// Only events written since then: 2h for so long ago, or a time such as 2026-01-31T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// Only events written before then [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<SystemTime>,
    /// Only events of this aggregate type, or of this one aggregate
    #[arg(long, value_name = "TYPE[/ID]")]
    aggregate: Option<String>,
    /// Only events of this type
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Only events after this position, which an earlier replay printed
    #[arg(long, value_name = "POSITION", default_value_t = i64::MIN, hide_default_value = true, allow_negative_numbers = true)]
    after: i64,
    /// Most events in a second
    #[arg(long, value_name = "EVENTS", value_parser = parse_rate)]
    rate: Option<NonZeroU32>,
    /// Only show what would be published
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// `100` and `100/s` are the same.
fn parse_rate(text: &str) -> Result<NonZeroU32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    number.parse().map_err(|_| "write how many events in a second, such as 100".to_owned())
}

/// What was done, as JSON, if stdout is not taken.
#[derive(Serialize)]
struct ReplayObject<'r> {
    dry_run: bool,
    found: u64,
    first_event_id: Option<&'r str>,
    last_event_id: Option<&'r str>,
    published: u64,
    left_out: u64,
    /// Everything up to here is done.
    position: Option<i64>,
}

/// Publishes events again.
pub(crate) async fn run(args: &ReplayArgs, output: Output) -> Result<(), CliError> {
    let (outbox, pipeline) = args.route.find()?;
    let operator = outbox.operator().await?;
    let replay = Replay {
        wanted: wanted(args)?,
        after: args.after,
        rate: args.rate,
        encoding: replay::encoding(pipeline.options.encoding.clone()),
        publish_timeout: pipeline.options.publish_timeout,
    };
    let shutdown = stop_on_signal()?;
    let found = replay.find(&*operator).await?;
    // What a sink writes to stdout must not be mixed with anything else.
    let stdout_is_free = !pipeline.writes_to_stdout();
    let tell = |replayed: Option<Replayed>| -> Result<(), CliError> {
        match output.is_json() && (stdout_is_free || args.dry_run) {
            true => output.object(&to_object(args, &found, replayed)),
            false => Ok(()),
        }
    };
    if found.events == 0 {
        output.talk("no event matches");
        return tell(None);
    }
    let what = what(&found, &pipeline);
    if args.dry_run {
        output.talk(&format!("would publish {what}; nothing was published"));
        return tell(None);
    }
    if !args.yes {
        let instead = "add --yes, or look first with --dry-run";
        output.confirm(&format!("publish {what}?"), instead)?;
    }
    let sink = replay::sink(&pipeline).connect().await?;
    caution(&*sink, output);
    let total = found.events;
    let mut progress = Progress::new(output).unless(!stdout_is_free);
    let tell_progress = |replayed: Replayed| {
        progress.show(|_| bar(replayed.published + replayed.left_out, total, "events"));
    };
    let (replayed, result) = replay.run(&*operator, &*sink, tell_progress, &shutdown).await;
    drop(progress);
    if let Err(error) = sink.close().await {
        tracing::warn!(%error, "closing the sink failed");
    }
    tell(Some(replayed))?;
    output.talk(&format!("published {} of {total} events", replayed.published));
    let go_on = |after: i64| {
        let flags = command(args, &outbox, &pipeline);
        match after {
            i64::MIN => format!("postrider replay {flags}"),
            _ => format!("postrider replay {flags} --after {after}"),
        }
    };
    end(go_on, replayed, result, shutdown.is_requested())
}

/// The error of a replay that did not do all of it. `go_on` is the command that goes on after a
/// position.
fn end(
    go_on: impl Fn(i64) -> String,
    replayed: Replayed,
    result: Result<(), ReplayError>,
    stopped: bool,
) -> Result<(), CliError> {
    match result {
        Err(ReplayError::Source(error)) => {
            let error = CliError::from(error);
            Err(error.with_fix(format!("go on: {}", go_on(replayed.position))))
        }
        Err(ReplayError::Sink { event_id, position, error }) => {
            let cause = CliError::from(error);
            let mut why = vec![cause.what];
            why.extend(cause.fix);
            let what = format!("the event {event_id} could not be published");
            let fix = format!(
                "when it is mended: {}\nto leave it out: {}",
                go_on(replayed.position),
                go_on(position)
            );
            Err(CliError { why, ..CliError::new(cause.code, what).with_fix(fix) })
        }
        Ok(()) if stopped => {
            let error = CliError::new(Code::Partial, "stopped before everything was published");
            Err(error.with_fix(format!("go on: {}", go_on(replayed.position))))
        }
        Ok(()) if replayed.left_out > 0 => {
            let rows = replayed.left_out;
            let what = format!("{rows} rows are no events, and were left out");
            Err(CliError::new(Code::Partial, what))
        }
        Ok(()) => Ok(()),
    }
}

fn wanted(args: &ReplayArgs) -> Result<Wanted, CliError> {
    let (mut aggregate_type, mut key): (Option<String>, Option<Key>) = (None, None);
    match &args.aggregate {
        Some(text) if text.contains('/') => {
            let parsed = parse_key(text).map_err(|what| CliError::new(Code::Usage, what))?;
            key = Some(parsed);
        }
        text => aggregate_type.clone_from(text),
    }
    Ok(Wanted {
        event_type: args.event_type.clone(),
        aggregate_type,
        key,
        since: args.since,
        // It must have an end, whatever is written meanwhile.
        until: Some(args.until.unwrap_or_else(SystemTime::now)),
        payload: false,
    })
}

/// What is published, and where to.
fn what(found: &Found, pipeline: &PipelineConfig) -> String {
    let events = if found.events == 1 { "event" } else { "events" };
    let id = |stored: &Option<Stored>| {
        stored.as_ref().map_or_else(String::new, |stored| plain(&stored.event_id))
    };
    format!(
        "{} {events} again to {}, from {} to {}",
        found.events,
        pipeline.sink_url,
        id(&found.first),
        id(&found.last)
    )
}

fn caution(sink: &dyn Sink, output: Output) {
    let can = sink.capabilities();
    if can.deduplicates {
        output.talk(&format!(
            "{} remembers ids for a while: it does not store again what it took within that time",
            can.name
        ));
    }
}

fn to_object<'r>(
    args: &ReplayArgs,
    found: &'r Found,
    replayed: Option<Replayed>,
) -> ReplayObject<'r> {
    ReplayObject {
        dry_run: args.dry_run,
        found: found.events,
        first_event_id: found.first.as_ref().map(|it| it.event_id.as_str()),
        last_event_id: found.last.as_ref().map(|it| it.event_id.as_str()),
        published: replayed.map_or(0, |it| it.published),
        left_out: replayed.map_or(0, |it| it.left_out),
        position: replayed.map(|it| it.position),
    }
}

/// The flags that say the same again, but for where to begin.
fn command(args: &ReplayArgs, outbox: &Outbox, pipeline: &PipelineConfig) -> String {
    let mut words = vec![outbox.flags.clone()];
    let mut add = |flag: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("{flag} {}", shell_word(&value))));
    };
    add("--pipeline", args.route.pipeline.clone());
    let shown = pipeline.sink_url.to_string();
    // What is hidden could not be copied.
    let to = if shown.contains(MASK) { "URL".to_owned() } else { shown };
    add("--to", args.route.to.as_ref().map(|_| to));
    add("--topic", args.route.topic.clone());
    add("--format", args.route.format.clone());
    add("--since", args.since.map(rfc3339));
    add("--until", args.until.map(rfc3339));
    add("--aggregate", args.aggregate.clone());
    add("--type", args.event_type.clone());
    add("--rate", args.rate.map(|rate| rate.to_string()));
    if args.route.allow_private {
        words.push("--allow-private".to_owned());
    }
    words.join(" ")
}
