//! `postrider relay`: publishes events until it is stopped.

use std::path::{Path, PathBuf};

use clap::Args;
use postrider_relay::config::{Config, Flags};
use postrider_relay::diagnosis::{self, Level};
use postrider_relay::relay::{Outcome, Relay};
use serde::Serialize;

use crate::error::{CliError, Code};
use crate::outbox::{self, Outbox};
use crate::output::Output;
use crate::progress::Progress;
use crate::signals::stop_on_signal;
use crate::systemd;

/// What `postrider init` writes.
const CONFIG_FILE: &str = "postrider.toml";

const EXAMPLES: &str = "\
Examples:
  postrider relay --config postrider.toml
  postrider relay --from sqlite:app.db --to stdout: --drain
  postrider relay --from \"$DATABASE_URL\" --to kafka://localhost:9092 --listen 127.0.0.1:8787

SIGTERM lets it finish what is under way; a second one ends it at once. With the same configuration
any number of relays can run: they share the work, or stand by.";

/// The arguments of `postrider relay`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RelayArgs {
    /// The configuration file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to", "mode", "progress", "table", "topic", "format", "allow_private", "listen"])]
    config: Option<PathBuf>,
    /// The database with the outbox, such as postgres://user@host/database or sqlite:app.db [env:
    /// POSTRIDER_SOURCE__URL]
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// Where events go, such as stdout:, file:///path, https://host/path, kafka://host:9092,
    /// amqp://host/vhost, nats://host:4222 or redis://host:6379
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// How events are read: poll or cdc [default: poll]
    #[arg(long)]
    mode: Option<String>,
    /// How progress is kept: mark, delete or cursor [default: mark]
    #[arg(long)]
    progress: Option<String>,
    /// The outbox table [default: outbox]
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// The topic, a template over the event's fields [default: outbox.event.{aggregate_type}]
    #[arg(long, value_name = "TEMPLATE")]
    topic: Option<String>,
    /// How events are encoded: payload, cloudevents, cloudevents-structured or debezium
    /// [default: payload]
    #[arg(long)]
    format: Option<String>,
    /// Let HTTP go to private and loopback addresses
    #[arg(long)]
    allow_private: bool,
    /// Serve /metrics, /livez and /readyz, for example at 127.0.0.1:8787
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// End once nothing is pending
    #[arg(long)]
    drain: bool,
}

#[derive(Serialize)]
struct ReportObject<'r> {
    pipelines: Vec<PipelineObject<'r>>,
}

#[derive(Serialize)]
struct PipelineObject<'r> {
    name: &'r str,
    delivered: u64,
    parked: u64,
    deferred: u64,
    queued: u64,
    error: Option<String>,
}

/// Runs the relay.
pub(crate) async fn run(args: &RelayArgs, output: Output) -> Result<(), CliError> {
    let mut config = read_config(args)?;
    if let Some(path) = &args.config {
        warn_of_exposure(path);
    }
    for pipeline in &mut config.pipelines {
        pipeline.options.drain = args.drain;
    }
    let flags = match &args.config {
        Some(path) => outbox::config_flag(path),
        None => outbox::from_flags(&config.source),
    };
    let outbox = Outbox { source: config.source.clone(), flags };
    // What a sink writes to stdout must not be mixed with anything else.
    let stdout_is_free = !config.pipelines.iter().any(|pipeline| pipeline.writes_to_stdout());
    let shutdown = stop_on_signal()?;
    let relay = Relay::new(config);
    let telling = systemd::tell(relay.telemetry(), shutdown.clone());
    let published = relay.telemetry();
    let running = async {
        let running = relay.run(shutdown.clone());
        let progress = Progress::new(output).unless(!args.drain || !stdout_is_free);
        progress.during(|| format!("delivered {} events", published.published()), running).await
    };
    let outcomes = tokio::select! {
        // Whoever is told of a stop hears of it before the relay is gone.
        biased;
        never = telling => match never {},
        outcomes = running => outcomes,
    };

    if output.is_json() && stdout_is_free {
        output.object(&to_object(&outcomes))?;
    }
    if args.drain && outcomes.iter().any(|outcome| outcome.result.is_ok()) {
        tell_drained(&outcomes, &outbox.flags, output);
    }
    let names: Vec<String> = outcomes.iter().map(|outcome| outcome.name.clone()).collect();
    to_result(outcomes)?;
    if args.drain && shutdown.is_requested() && !is_drained(&outbox, &names).await {
        let error = CliError::new(Code::Partial, "stopped before everything was delivered");
        return Err(error.with_fix("run it again: what is left waits in the outbox"));
    }
    Ok(())
}

/// Says in the log who else may read the secrets of the file, or change it.
fn warn_of_exposure(path: &Path) {
    // It was read just now; if it is gone meanwhile, there is nothing to warn of.
    let finding = diagnosis::exposure(path, &outbox::read_text(path).unwrap_or_default());
    if finding.level == Level::Warn {
        let fix = finding.fix.map(|fix| fix.text).unwrap_or_default();
        tracing::warn!(fix, "{}", finding.found);
    }
}

/// Whether nothing is left for these pipelines; not, if nobody can tell.
async fn is_drained(outbox: &Outbox, names: &[String]) -> bool {
    let Ok(admin) = outbox.admin().await else { return false };
    let Ok(status) = admin.status().await else { return false };
    names.iter().all(|name| {
        // Without progress it stands for any pipeline that never ran.
        let mut pipelines = status.pipelines.iter();
        let pipeline = pipelines.find(|it| it.name == *name || it.progress.is_none());
        pipeline.is_some_and(|it| it.unpublished == 0 && it.deferred == 0)
    })
}

fn read_config(args: &RelayArgs) -> Result<Config, CliError> {
    if let Some(path) = &args.config {
        return outbox::read_config(path);
    }
    if args.to.is_none() {
        let error = CliError::new(Code::Usage, "nothing says where events go");
        let has_file = Path::new(CONFIG_FILE).exists();
        let file = if has_file { CONFIG_FILE } else { "FILE" };
        return Err(error.with_fix(format!("add --config {file}, or --from URL and --to URL")));
    }
    let flags = Flags {
        from: args.from.clone(),
        to: args.to.clone(),
        mode: args.mode.clone(),
        progress: args.progress.clone(),
        table: args.table.clone(),
        topic: args.topic.clone(),
        format: args.format.clone(),
        allow_private: args.allow_private,
        listen: args.listen.clone(),
    };
    Config::from_flags(&flags, &outbox::environment(&flags)?).map_err(CliError::problems)
}

fn to_object(outcomes: &[Outcome]) -> ReportObject<'_> {
    let pipelines = outcomes.iter().map(|outcome| {
        let totals = outcome.result.as_ref().copied().unwrap_or_default();
        PipelineObject {
            name: &outcome.name,
            delivered: totals.delivered,
            parked: totals.parked,
            deferred: totals.deferred,
            queued: totals.queued,
            error: outcome.result.as_ref().err().map(ToString::to_string),
        }
    });
    ReportObject { pipelines: pipelines.collect() }
}

fn tell_drained(outcomes: &[Outcome], flags: &str, output: Output) {
    let totals = || outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok());
    let delivered: u64 = totals().map(|totals| totals.delivered).sum();
    let parked: u64 = totals().map(|totals| totals.parked).sum();
    output.talk(&format!(
        "delivered {delivered} {}",
        if delivered == 1 { "event" } else { "events" }
    ));
    if parked > 0 {
        let events = if parked == 1 { "event was" } else { "events were" };
        output.talk(&format!("{parked} {events} parked; see: postrider dlq list {flags}"));
    }
}

/// The error of the relay: that of its only pipeline, or that some failed.
fn to_result(outcomes: Vec<Outcome>) -> Result<(), CliError> {
    let count = outcomes.len();
    let mut failed: Vec<(String, CliError)> = outcomes
        .into_iter()
        .filter_map(|outcome| Some((outcome.name, CliError::from(outcome.result.err()?))))
        .collect();
    let Some((_, last)) = failed.last() else { return Ok(()) };
    let code = if failed.len() < count {
        Code::Partial
    } else if failed.iter().all(|(_, error)| error.code.exit_code() == last.code.exit_code()) {
        last.code
    } else {
        Code::Failure
    };
    let is_the_same = failed.iter().all(|(_, error)| error.what == last.what);
    if failed.len() == count
        && is_the_same
        && let Some((_, last)) = failed.pop()
    {
        return Err(last);
    }
    let mut error = CliError::new(code, format!("{} of {count} pipelines failed", failed.len()));
    for (name, cause) in failed {
        let fix = cause.fix.map(|fix| format!("; {fix}")).unwrap_or_default();
        error.why.push(format!("{name}: {}{fix}", cause.what));
    }
    Err(error)
}
