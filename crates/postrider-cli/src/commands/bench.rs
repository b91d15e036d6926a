//! `postrider bench`: measures the user's own database and broker, and cleans up.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use postrider_relay::amounts::{number, size};
use postrider_relay::config::parse_duration;
use postrider_relay::scratch::{Examined, ScratchName};
use serde::Serialize;
use tokio::time::timeout;

use crate::bench::cleaning::{Cleaned, Leftovers};
use crate::bench::draining::{GRACE, interrupted};
use crate::bench::events::PAYLOAD_BYTES_MIN;
use crate::bench::findings::Findings;
use crate::bench::measuring::Run;
use crate::bench::places::Places;
use crate::bench::plan::Plan;
use crate::bench::target::{SinkWay, Target};
use crate::error::{CliError, Code};
use crate::output::Output;
use crate::progress;
use crate::signals::stop_on_signal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  postrider bench --from \"$DATABASE_URL\" --dry-run
  postrider bench --from \"$DATABASE_URL\" --to kafka://localhost:9092
  postrider bench --config postrider.toml --pipeline orders --rows 100000 --for 2m --json
  postrider bench --clean --from \"$DATABASE_URL\" --to kafka://localhost:9092

Your outbox and your topics are not touched: a schema (or a file, beside that of SQLite) and a
topic, stream or exchange are made for it, and removed at the end, also after an error or ctrl-c.
What is left after kill -9 is removed by --clean, and by RabbitMQ itself after 15 minutes. Whatever
is on another machine is written to only after you have said yes.";

/// Longest time that can be asked for: places that are older than that and some are nobody's.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Longest time for a pipeline to stop, after which it is dropped.
const STOP_MAX: Duration = GRACE.saturating_add(Duration::from_secs(1));

/// The arguments of `postrider bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The configuration file with the database and the pipeline
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to", "mode", "progress", "allow_private"])]
    pub(crate) config: Option<PathBuf>,
    /// The pipeline of the configuration file whose sink is measured
    #[arg(long, value_name = "NAME", requires = "config")]
    pub(crate) pipeline: Option<String>,
    /// The database to measure [env: POSTRIDER_SOURCE__URL]
    #[arg(long, value_name = "URL")]
    pub(crate) from: Option<String>,
    /// The broker to measure, such as kafka://host:9092; without it, the database alone
    #[arg(long, value_name = "URL")]
    pub(crate) to: Option<String>,
    /// How events are read: poll or cdc [default: poll]
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// How progress is kept: mark, delete or cursor [default: mark]
    #[arg(long)]
    pub(crate) progress: Option<String>,
    /// Most events that are written
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..=5_000_000))]
    rows: u64,
    /// Longest time for measuring, such as 30s or 2m; at most 10m
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    time: Duration,
    /// The size of a payload
    #[arg(long, value_name = "BYTES", default_value_t = 200, value_parser = parse_payload)]
    payload_bytes: usize,
    /// Over how many keys events are spread
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// Let HTTP go to private and loopback addresses
    #[arg(long)]
    pub(crate) allow_private: bool,
    /// Send events to an endpoint that cannot take them back
    #[arg(long)]
    pub(crate) yes_send: bool,
    /// Remove what a run that was killed has left, and measure nothing
    #[arg(long)]
    clean: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| *time <= TIME_MAX && !time.is_zero());
    time.ok_or_else(|| "write a time up to 10m, such as 30s".to_owned())
}

fn parse_payload(text: &str) -> Result<usize, String> {
    let max = postrider::event::PAYLOAD_BYTES_MAX;
    let bytes = text.parse().ok().filter(|bytes| (PAYLOAD_BYTES_MIN..=max).contains(bytes));
    bytes.ok_or_else(|| format!("write a number of bytes from {PAYLOAD_BYTES_MIN} to {max}"))
}

/// What would be done, as JSON; people script against it.
#[derive(Serialize)]
struct PlanObject<'p> {
    dry_run: bool,
    database: &'p str,
    sink: Option<String>,
    makes: &'p [String],
    #[serde(flatten)]
    plan: Plan,
    seconds: u64,
    database_bytes: u64,
    sink_bytes: u64,
}

/// Measures, or cleans up.
pub(crate) async fn run(args: &BenchArgs, output: Output) -> Result<(), CliError> {
    let target = Target::find(args)?;
    let (rows, payload_bytes, keys) = (args.rows, args.payload_bytes, args.keys);
    let plan = Plan { rows, payload_bytes, keys, time: args.time };
    if args.clean {
        return run_clean(args, &target, output).await;
    }
    let examined = target.database.examine(target.reading.mode).await?;
    refuse_missing(&examined)?;
    let name = ScratchName::new();
    let makes = makes(&target, &name);
    if args.dry_run && output.is_json() {
        return output.object(&to_object(&plan, &target, &examined, &makes));
    }
    output.talk(&to_text(&plan, &target, &examined, &makes));
    if args.dry_run {
        output.talk("nothing was changed");
        return Ok(());
    }
    if !args.yes && !target.is_local() {
        let question = "this is not on this machine: write to it?";
        output.confirm(question, "add --yes, or look first with --dry-run")?;
    }
    let mut shutdown = stop_on_signal()?;
    let places = Places::claim(&target, name).await?;
    let run = Run::new(&target, &places, plan, (output, shutdown.clone()));
    let measured = {
        let mut measuring = std::pin::pin!(async {
            places.make(plan.keys).await?;
            run.measure(&examined).await
        });
        tokio::select! {
            measured = &mut measuring => measured,
            () = shutdown.requested() => {
                // It stops by itself, in order, unless it waits for somebody else.
                let stopped = timeout(STOP_MAX, &mut measuring).await;
                stopped.unwrap_or_else(|_| Err(interrupted())).and_then(|_| Err(interrupted()))
            }
        }
    };
    progress::erase();
    let removed = places.remove().await;
    finish(measured, removed, output)
}

/// Tells what was found, and then what could not be removed.
fn finish(
    measured: Result<Findings, CliError>,
    removed: Result<(), CliError>,
    output: Output,
) -> Result<(), CliError> {
    match (measured, removed) {
        (Ok(findings), removed) => {
            match output.is_json() {
                true => output.object(&findings)?,
                false => output.data(&findings.to_text())?,
            }
            removed
        }
        (Err(error), Ok(())) => {
            output.talk("everything that was made is removed");
            Err(error)
        }
        (Err(mut error), Err(left)) => {
            error.why.push(left.what);
            error.why.extend(left.why);
            Err(CliError { fix: left.fix, ..error })
        }
    }
}

async fn run_clean(args: &BenchArgs, target: &Target, output: Output) -> Result<(), CliError> {
    let leftovers = Leftovers::find(target).await?;
    let removed = leftovers.names();
    if !args.dry_run && !removed.is_empty() {
        if !args.yes && !target.is_local() {
            let question = format!("remove {}?", removed.join(", "));
            output.confirm(&question, "add --yes, or look first with --dry-run")?;
        }
        for places in &leftovers.free {
            places.remove().await?;
        }
    }
    let cleaned = Cleaned { dry_run: args.dry_run, removed, in_use: leftovers.in_use };
    if output.is_json() {
        return output.object(&cleaned);
    }
    let removed = if cleaned.dry_run { "would remove" } else { "removed" };
    for name in &cleaned.removed {
        output.talk(&format!("{removed} {name}"));
    }
    for name in &cleaned.in_use {
        output.talk(&format!("{name} is in use, or may be: it was left"));
    }
    if cleaned.removed.is_empty() && cleaned.in_use.is_empty() {
        output.talk("nothing is left of any run");
    }
    Ok(())
}

fn refuse_missing(examined: &Examined) -> Result<(), CliError> {
    let Some(first) = examined.missing.first() else { return Ok(()) };
    let is_right = examined.missing.iter().any(|missing| missing.is_right);
    let code = if is_right { Code::NotPermitted } else { Code::Configuration };
    let fixes: Vec<&str> = examined.missing.iter().map(|missing| missing.fix.as_str()).collect();
    let mut error = CliError::new(code, &first.what).with_fix(fixes.join("\n"));
    error.why.extend(examined.missing.iter().skip(1).map(|missing| missing.what.clone()));
    Err(error)
}

/// What is made, in words.
fn makes(target: &Target, name: &ScratchName) -> Vec<String> {
    let database = target.database.place(name);
    let sink = target.sink.as_ref().and_then(|sink| match &sink.way {
        SinkWay::Scratch(scratch) => Some(scratch.place(name)),
        SinkWay::Sent(_) => None,
    });
    [Some(database), sink].into_iter().flatten().collect()
}

fn to_object<'p>(
    plan: &Plan,
    target: &Target,
    examined: &'p Examined,
    makes: &'p [String],
) -> PlanObject<'p> {
    let (database_bytes, sink_bytes) = plan.bytes(target.sink.is_some());
    PlanObject {
        dry_run: true,
        database: &examined.what,
        sink: target.sink.as_ref().map(|sink| sink.url.to_string()),
        makes,
        plan: *plan,
        seconds: plan.time.as_secs(),
        database_bytes,
        sink_bytes,
    }
}

fn to_text(plan: &Plan, target: &Target, examined: &Examined, makes: &[String]) -> String {
    let (database_bytes, sink_bytes) = plan.bytes(target.sink.is_some());
    let mut text = format!("database  {}\n          {}\n", examined.what, target.database_url);
    if let Some(sink) = &target.sink {
        text.push_str(&format!("sink      {}\n", sink.url));
        if matches!(sink.way, SinkWay::Sent(_)) {
            text.push_str("          what is sent there stays sent\n");
        }
    }
    text.push_str(&format!("makes     {}\n", makes.join("\n          ")));
    text.push_str(&format!(
        "writes    up to {} events of {} bytes: about {} in the database",
        number(plan.rows as f64),
        plan.payload_bytes,
        size(database_bytes)
    ));
    if sink_bytes > 0 {
        text.push_str(&format!(", {} at the sink", size(sink_bytes)));
    }
    let time = postrider_relay::amounts::age(plan.time);
    text.push_str(&format!("\ntakes     up to {time}, and removes everything at the end"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_limited() {
        assert_eq!(parse_time("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_payload("200"), Ok(200));
        for wrong in ["11m", "0s", "30", "long"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
        for wrong in ["1", "-1", "999999999999", "x"] {
            assert!(parse_payload(wrong).is_err(), "{wrong}");
        }
    }
}
