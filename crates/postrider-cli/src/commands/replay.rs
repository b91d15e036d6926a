//! `postrider replay`: publishes stored events again.

use std::num::NonZeroU32;
use std::time::{Duration, SystemTime};

use clap::Args;
use postrider::Key;
use postrider_relay::config::PipelineConfig;
use postrider_relay::events::{Stored, Wanted};
use postrider_relay::pauses::Pause;
use postrider_relay::replay::{
    self, Again, Confirmation, Found, Noting, Replay, ReplayError, Replayed, Unpublished,
};
use postrider_relay::secret::MASK;
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
left alone. Into the sink of a pipeline goes what that pipeline has published before; to any other
sink, by --to, everything that the outbox still has. What was pruned is gone.";

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
    /// How many of them were found by reading the sink back, if it can be.
    read_back: Option<u64>,
    left_out: u64,
    /// What the pipeline has not published, and so stays where it is.
    waiting: u64,
    set_aside: u64,
    discarded: u64,
    /// Everything up to here is done.
    position: Option<i64>,
}

/// Publishes events again.
pub(crate) async fn run(args: &ReplayArgs, output: Output) -> Result<(), CliError> {
    let (outbox, pipeline) = args.route.find()?;
    let operator = outbox.operator().await?;
    let again = args.route.config.as_ref().map(|_| Again {
        pipeline: pipeline.name.clone(),
        aggregate_types: pipeline.aggregate_types.clone(),
    });
    if again.is_some() {
        respect_pauses(&operator.pauses().await?, &pipeline.name, &outbox, output)?;
    }
    // It must have an end, whatever is written meanwhile.
    let until = match args.until {
        Some(until) => until,
        None => end_of_millisecond(operator.now().await?),
    };
    let replay = Replay {
        again,
        wanted: wanted(args, until)?,
        after: args.after,
        rate: args.rate,
        encoding: replay::encoding(pipeline.options.encoding.clone()),
        publish_timeout: pipeline.options.publish_timeout,
    };
    let shutdown = stop_on_signal()?;
    let found = replay.find(&*operator).await?;
    // What a sink writes to stdout must not be mixed with anything else.
    let stdout_is_free = !pipeline.writes_to_stdout();
    let tell = |replayed: Option<(Replayed, Option<u64>)>| -> Result<(), CliError> {
        match output.is_json() && (stdout_is_free || args.dry_run) {
            true => output.object(&to_object(args, &found, replayed)),
            false => Ok(()),
        }
    };
    tell_unpublished(&found, &pipeline.name, output);
    if found.events == 0 {
        output.talk(match replay.again {
            Some(_) => "no event that was published matches",
            None => "no event matches",
        });
        return tell(None);
    }
    let what = what(&found, replay.again.is_some(), &pipeline);
    if args.dry_run {
        output.talk(&format!("would publish {what}; nothing was published"));
        return tell(None);
    }
    if !args.yes {
        let instead = "add --yes, or look first with --dry-run";
        output.confirm(&format!("publish {what}?"), instead)?;
    }
    let spec = replay::sink(&pipeline);
    let sink = spec.connect().await?;
    let noting = Noting::new(&*sink);
    let total = found.events;
    let mut progress = Progress::new(output).unless(!stdout_is_free);
    let tell_progress = |replayed: Replayed| {
        progress.show(|_| bar(replayed.published + replayed.left_out, total, "events"));
    };
    let (replayed, result) = replay.run(&*operator, &noting, tell_progress, &shutdown).await;
    drop(progress);
    output.talk(&format!("published {} of {}", replayed.published, events(total)));
    let confirmation = match replayed.published > 0 && spec.is_readable() {
        true => match noting.read_back(&spec, replay.encoding.format).await {
            Ok(confirmation) => Some(confirmation),
            Err(error) => {
                output.talk(&format!("could not read back what was published: {error}"));
                None
            }
        },
        false => None,
    };
    drop(noting);
    if let Err(error) = sink.close().await {
        tracing::warn!(%error, "closing the sink failed");
    }
    tell(Some((replayed, confirmation.as_ref().map(|it| it.found))))?;
    let go_on = |after: i64| {
        let flags = command(args, until, &outbox, &pipeline);
        match after {
            i64::MIN => format!("postrider replay {flags}"),
            _ => format!("postrider replay {flags} --after {after}"),
        }
    };
    let is_there = confirmation.map_or(Ok(()), |confirmation| confirm(&confirmation, output));
    end(go_on, replayed, result, shutdown.is_requested()).and(is_there)
}

/// Says whether what was published is there.
fn confirm(confirmation: &Confirmation, output: Output) -> Result<(), CliError> {
    let Confirmation { looked_for, found, missing, kept_since } = confirmation;
    let are = if *found == 1 { "is" } else { "are" };
    output.talk(&format!("read back: {found} of {} {are} there", events(*looked_for)));
    if confirmation.is_complete() {
        return Ok(());
    }
    let what = format!(
        "{} of {} that were published cannot be found",
        looked_for - found,
        events(*looked_for)
    );
    let ids: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let mut why = vec![format!("such as {}", ids.join(", "))];
    why.extend(kept_since.map(|since| {
        format!("what was stored before {} may have been removed by the broker", rfc3339(since))
    }));
    let fix = "see whether messages are removed once they are consumed, or soon after they came; \
               then look again: postrider verify";
    Err(CliError { why, ..CliError::new(Code::BrokerDiffers, what).with_fix(fix) })
}

/// Nothing goes into the sink of a pipeline that an operator has stopped.
fn respect_pauses(
    pauses: &[Pause],
    pipeline: &str,
    outbox: &Outbox,
    output: Output,
) -> Result<(), CliError> {
    if let Some(pause) = Pause::of_pipeline(pauses, pipeline) {
        let why = pause.reason.as_ref().map(|why| format!(" ({})", plain(why)));
        let since = rfc3339(pause.since);
        let what = format!(
            "the pipeline {pipeline} is paused since {since}{}: nothing is replayed into its sink",
            why.unwrap_or_default()
        );
        let named = pause.pipeline.as_ref().map(|name| format!(" --pipeline {}", shell_word(name)));
        let fix = format!("postrider resume{} {}", named.unwrap_or_default(), outbox.flags);
        return Err(CliError::new(Code::Unsafe, what).with_fix(fix));
    }
    let keys = Pause::keys(pauses, pipeline).count();
    if keys > 0 {
        let keys = if keys == 1 { "1 key is".to_owned() } else { format!("{keys} keys are") };
        output.talk(&format!("{keys} paused; what was published of them goes out all the same"));
    }
    Ok(())
}

/// The first moment that can be written down after this one.
fn end_of_millisecond(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis.saturating_add(1))
}

fn events(count: u64) -> String {
    let noun = if count == 1 { "event" } else { "events" };
    format!("{count} {noun}")
}

/// Says what stays where it is, and why.
fn tell_unpublished(found: &Found, pipeline: &str, output: Output) {
    let Unpublished { waiting, set_aside, discarded } = found.unpublished;
    let parts: Vec<String> =
        [(waiting, "not published yet"), (set_aside, "set aside"), (discarded, "discarded")]
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, why)| format!("{count} {why}"))
            .collect();
    if !parts.is_empty() {
        let (count, parts) = (events(waiting + set_aside + discarded), parts.join(", "));
        output.talk(&format!("{count} that {pipeline} has not published left out: {parts}"));
    }
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
            let what = match replayed.left_out {
                1 => "1 row is no event, and was left out".to_owned(),
                rows => format!("{rows} rows are no events, and were left out"),
            };
            Err(CliError::new(Code::Partial, what))
        }
        Ok(()) => Ok(()),
    }
}

fn wanted(args: &ReplayArgs, until: SystemTime) -> Result<Wanted, CliError> {
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
        until: Some(until),
        payload: false,
    })
}

/// What is published, and where to.
fn what(found: &Found, is_again: bool, pipeline: &PipelineConfig) -> String {
    let again = if is_again { " again" } else { "" };
    let id = |stored: &Option<Stored>| {
        stored.as_ref().map_or_else(String::new, |stored| plain(&stored.event_id))
    };
    format!(
        "{}{again} to {}, from {} to {}",
        events(found.events),
        pipeline.sink_url,
        id(&found.first),
        id(&found.last)
    )
}

fn to_object<'r>(
    args: &ReplayArgs,
    found: &'r Found,
    replayed: Option<(Replayed, Option<u64>)>,
) -> ReplayObject<'r> {
    let (replayed, read_back) = replayed.unzip();
    ReplayObject {
        dry_run: args.dry_run,
        found: found.events,
        first_event_id: found.first.as_ref().map(|it| it.event_id.as_str()),
        last_event_id: found.last.as_ref().map(|it| it.event_id.as_str()),
        published: replayed.map_or(0, |it| it.published),
        read_back: read_back.flatten(),
        left_out: replayed.map_or(0, |it| it.left_out),
        waiting: found.unpublished.waiting,
        set_aside: found.unpublished.set_aside,
        discarded: found.unpublished.discarded,
        position: replayed.map(|it| it.position),
    }
}

/// The flags that say the same again, but for where to begin.
fn command(
    args: &ReplayArgs,
    until: SystemTime,
    outbox: &Outbox,
    pipeline: &PipelineConfig,
) -> String {
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
    // The same end, or what was written since would come along.
    add("--until", Some(rfc3339(until)));
    add("--aggregate", args.aggregate.clone());
    add("--type", args.event_type.clone());
    add("--rate", args.rate.map(|rate| rate.to_string()));
    if args.route.allow_private {
        words.push("--allow-private".to_owned());
    }
    words.join(" ")
}
