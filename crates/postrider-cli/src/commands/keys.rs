//! `postrider keys`: keys that wait, and how to release them.

use clap::{Args, Subcommand};
use postrider::Key;
use postrider_relay::keys::{BlockedKey, Released};
use serde::Serialize;

use super::dlq::list::short;
use super::dlq::parse_key;
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::event_object::SetAsideObject;
use crate::outbox::Outbox;
use crate::output::{Output, plain, table};
use crate::time::rfc3339;

/// Longest error in a row of the table, in characters.
const ERROR_CHARS_MAX: usize = 80;
/// The most of a key.
const KEY_CHARS_MAX: usize = 40;

const BLOCKED_EXAMPLES: &str = "\
Examples:
  postrider keys blocked --config postrider.toml
  postrider keys blocked --pipeline orders --limit 10 --json --config postrider.toml";

const RELEASE_EXAMPLES: &str = "\
Examples:
  postrider keys release Order/42 --config postrider.toml

Its first event that is set aside is tried now: a parked one with fresh attempts, one that waits
for its next attempt without waiting. What stands behind it follows in order.";

/// The commands below `postrider keys`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// List keys that wait: behind what, since when, and how many events
    #[command(after_help = BLOCKED_EXAMPLES)]
    Blocked(BlockedArgs),
    /// Give the first event of a key that is set aside another attempt now
    #[command(after_help = RELEASE_EXAMPLES)]
    Release(ReleaseArgs),
}

/// The arguments of `postrider keys blocked`.
#[derive(Args, Debug)]
pub(crate) struct BlockedArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Only in this pipeline
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
    /// Most keys to list
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

/// The arguments of `postrider keys release`.
#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// The key, the type and id of an aggregate
    #[arg(value_name = "TYPE/ID", value_parser = parse_key)]
    key: Key,
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Only in this pipeline
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
}

#[derive(Serialize)]
struct BlockedObject<'k> {
    keys: Vec<KeyObject<'k>>,
    more: bool,
}

#[derive(Serialize)]
struct KeyObject<'k> {
    pipeline: &'k str,
    aggregate_type: &'k str,
    aggregate_id: &'k str,
    since: String,
    events: u64,
    first_event_id: &'k str,
    first: SetAsideObject<'k>,
}

#[derive(Serialize)]
struct ReleasedObject<'k> {
    released: Vec<ReleasedKeyObject<'k>>,
}

#[derive(Serialize)]
struct ReleasedKeyObject<'k> {
    pipeline: &'k str,
    event_id: &'k str,
    was: &'k str,
}

/// Does one of the commands.
pub(crate) async fn run(command: KeysCommand, output: Output) -> Result<(), CliError> {
    match command {
        KeysCommand::Blocked(args) => blocked(&args, output).await,
        KeysCommand::Release(args) => release(&args, output).await,
    }
}

async fn blocked(args: &BlockedArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let operator = outbox.operator().await?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    // One more than is shown tells whether there are more.
    let mut keys = operator.blocked(args.pipeline.as_deref(), limit + 1).await?;
    let more = keys.len() > limit;
    keys.truncate(limit);
    if output.is_json() {
        return output.object(&BlockedObject { keys: keys.iter().map(to_object).collect(), more });
    }
    if keys.is_empty() {
        output.talk("no key waits");
        return Ok(());
    }
    output.data(&to_text(&keys))?;
    if more {
        output.talk("there are more: add --limit");
    }
    output.talk(&format!(
        "look at what one waits for: postrider show EVENT_ID {flags}\n\
         try it again now: postrider keys release TYPE/ID {flags}",
        flags = outbox.flags
    ));
    Ok(())
}

async fn release(args: &ReleaseArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let operator = outbox.operator().await?;
    let released = operator.release(args.pipeline.as_deref(), &args.key).await?;
    if output.is_json() {
        let released = released.iter().map(|it| ReleasedKeyObject {
            pipeline: &it.pipeline,
            event_id: &it.event_id,
            was: &it.was,
        });
        output.object(&ReleasedObject { released: released.collect() })?;
    } else {
        for it in &released {
            output.talk(&told(it));
        }
    }
    if released.is_empty() {
        let what = format!("the key {} waits for nothing", plain(&args.key.to_string()));
        let fix = format!("see which keys wait: postrider keys blocked {}", outbox.flags);
        return Err(CliError::new(Code::Failure, what).with_fix(fix));
    }
    let pauses = operator.pauses().await?;
    if pauses.iter().any(|pause| pause.key.as_ref() == Some(&args.key)) {
        output.talk(&format!(
            "the key is paused, so it waits all the same: postrider resume --key {} {}",
            plain(&args.key.to_string()),
            outbox.flags
        ));
    }
    Ok(())
}

fn told(Released { pipeline, event_id, was }: &Released) -> String {
    let how = match was.as_str() {
        "parked" => "was a dead letter, and is tried again with fresh attempts",
        "deferred" => "waited for its next attempt, and is tried now",
        _ => "was queued, and is tried now",
    };
    format!("{}: {} {how}; what stands behind it follows", plain(pipeline), plain(event_id))
}

fn to_object(key: &BlockedKey) -> KeyObject<'_> {
    KeyObject {
        pipeline: &key.pipeline,
        aggregate_type: &key.key.aggregate_type,
        aggregate_id: &key.key.aggregate_id,
        since: rfc3339(key.since),
        events: key.events,
        first_event_id: &key.first.event_id,
        first: SetAsideObject::new(&key.first.set_aside),
    }
}

fn to_text(keys: &[BlockedKey]) -> String {
    let heading = ["KEY", "PIPELINE", "SINCE", "EVENTS", "WAITS FOR", "STATE", "ATTEMPTS", "ERROR"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(keys.iter().map(|key| {
        let first = &key.first.set_aside;
        let state = match first.due_at {
            Some(due_at) => format!("{} until {}", first.state, rfc3339(due_at)),
            None => first.state.clone(),
        };
        vec![
            short(&key.key.to_string(), KEY_CHARS_MAX),
            plain(&key.pipeline),
            rfc3339(key.since),
            key.events.to_string(),
            plain(&key.first.event_id),
            state,
            first.attempts.to_string(),
            first.error.as_deref().map_or_else(|| "-".into(), |it| short(it, ERROR_CHARS_MAX)),
        ]
    }));
    table(&rows)
}
