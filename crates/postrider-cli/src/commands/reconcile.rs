//! `postrider reconcile`: finds events that should have been published and were not.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use postrider_relay::config::parse_duration;
use postrider_relay::reconcile::{self, LIMIT, Missed, MissedKind};
use serde::Serialize;

use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::{self, Outbox};
use crate::output::{Output, plain, table};
use crate::time::rfc3339;

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider reconcile --config postrider.toml
  postrider reconcile --older-than 1h --publish --json --config postrider.toml

Exit code 0: nothing was missed; 7: something was, whether it was given back or not. Without a
configuration file it does not know which aggregate types a pipeline matches.";

/// The arguments of `postrider reconcile`.
#[derive(Args, Debug)]
pub(crate) struct ReconcileArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// How old an event is at least, such as 5m or 1h
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_age)]
    older_than: Duration,
    /// Give back to relays what they would not find by themselves
    #[arg(long)]
    publish: bool,
}

fn parse_age(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a time such as 5m or 1h".to_owned())
}

/// What was found, as JSON; people script against it.
#[derive(Serialize)]
struct ReconcileObject<'m> {
    missed: Vec<MissedObject<'m>>,
    counts: BTreeMap<&'static str, usize>,
    given_back: u64,
}

#[derive(Serialize)]
struct MissedObject<'m> {
    kind: &'static str,
    why: &'static str,
    pipeline: &'m str,
    event_id: &'m str,
    aggregate_type: &'m str,
    aggregate_id: &'m str,
    position: i64,
    since: String,
}

/// Looks for missed events, and gives them back.
pub(crate) async fn run(args: &ReconcileArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let types = aggregate_types(args)?;
    let operator = outbox.operator().await?;
    let missed = operator.missed(args.older_than, &types, LIMIT).await?;
    let given_back = match args.publish {
        true => operator.give_back(&missed).await?,
        false => 0,
    };
    if output.is_json() {
        output.object(&to_object(&missed, given_back))?;
    } else if !missed.is_empty() {
        output.data(&to_text(&missed))?;
    }
    if missed.is_empty() {
        output.talk("nothing was missed");
        return Ok(());
    }
    for (kind, count) in counts(&missed) {
        let why = MissedKind::ALL.iter().find(|it| it.as_str() == kind).map_or("", |it| it.why());
        output.talk(&format!("{count} {kind}: {why}"));
    }
    if args.publish {
        let events = if given_back == 1 { "event was" } else { "events were" };
        output.talk(&format!("{given_back} {events} given back; a relay publishes them now"));
    }
    let events = if missed.len() == 1 { "event" } else { "events" };
    let more = if missed.len() >= LIMIT { " or more" } else { "" };
    let what = format!("{}{more} {events} should have been published", missed.len());
    let fix = format!("see how the pipelines stand: postrider status {}", outbox.flags);
    Err(CliError::new(Code::EventsMissed, what).with_fix(fix))
}

/// What the pipeline that marks or removes rows wants, if a configuration says so.
fn aggregate_types(args: &ReconcileArgs) -> Result<Vec<String>, CliError> {
    let Some(path) = &args.outbox.config else { return Ok(Vec::new()) };
    Ok(reconcile::aggregate_types(&outbox::read_config(path)?.pipelines))
}

fn counts(missed: &[Missed]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for it in missed {
        *counts.entry(it.kind.as_str()).or_default() += 1;
    }
    counts
}

fn to_object(missed: &[Missed], given_back: u64) -> ReconcileObject<'_> {
    let missed_objects = missed.iter().map(to_missed_object).collect();
    ReconcileObject { missed: missed_objects, counts: counts(missed), given_back }
}

fn to_missed_object(missed: &Missed) -> MissedObject<'_> {
    MissedObject {
        kind: missed.kind.as_str(),
        why: missed.kind.why(),
        pipeline: &missed.pipeline,
        event_id: &missed.event_id,
        aggregate_type: &missed.key.aggregate_type,
        aggregate_id: &missed.key.aggregate_id,
        position: missed.position,
        since: rfc3339(missed.since),
    }
}

fn to_text(missed: &[Missed]) -> String {
    let heading = ["EVENT ID", "PIPELINE", "KEY", "KIND", "SINCE"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(missed.iter().map(|it| {
        vec![
            plain(&it.event_id),
            plain(&it.pipeline),
            plain(&it.key.to_string()),
            it.kind.to_string(),
            rfc3339(it.since),
        ]
    }));
    table(&rows)
}
