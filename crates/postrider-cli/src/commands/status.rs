//! `postrider status`: what is waiting, and where, and why a pipeline is not green.

mod rates;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use postrider_relay::admin::{Admin, OutboxStatus};
use postrider_relay::config::parse_duration;
use postrider_relay::health::{self, Thresholds};
use postrider_relay::shutdown::Shutdown;

use self::rates::Look;
use self::view::View;
use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::Output;
use crate::signals::stop_on_signal;

/// Goes to the top of the screen and clears it.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

const EXAMPLES: &str = "\
Examples:
  postrider status --from postgres://shop@localhost/shop
  postrider status --config postrider.toml --watch
  postrider status --from sqlite:app.db --json | jq '.pipelines[] | {name, verdict, reasons}'

A pipeline is not green if events wait for longer than a minute, are parked or blocked, if no relay
has its lease although events wait, or if its slot is of no use, not read, or nearly lost.";

/// The arguments of `postrider status`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Look again and again, with rates: on a terminal in place, otherwise a new block or JSON line
    /// each time
    #[arg(long)]
    watch: bool,
    /// How often to look [default: 2s]
    #[arg(long, value_name = "TIME", requires = "watch", value_parser = parse_time)]
    every: Option<Duration>,
}

const EVERY_DEFAULT: Duration = Duration::from_secs(2);

fn parse_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "write a time such as 500ms, 2s or 1m".to_owned())
}

/// Prints how the outbox stands, once or until it is stopped.
pub(crate) async fn run(args: &StatusArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let admin = outbox.admin().await?;
    if !args.watch {
        let status = admin.status().await?;
        return print(&view(&status, None, &outbox.flags), output);
    }
    let every = args.every.unwrap_or(EVERY_DEFAULT);
    watch(admin.as_ref(), &outbox.flags, every, stop_on_signal()?, output).await
}

/// What there is to show of a status.
fn view<'s>(status: &'s OutboxStatus, before: Option<&Look>, flags: &'s str) -> View<'s> {
    let (now, thresholds) = (SystemTime::now(), Thresholds::default());
    let reasons =
        status.pipelines.iter().map(|pipeline| health::reasons(pipeline, &thresholds, now));
    let rates = status
        .pipelines
        .iter()
        .map(|pipeline| before.and_then(|before| before.rates(status, pipeline, Instant::now())));
    View { status, reasons: reasons.collect(), rates: rates.collect(), flags }
}

fn print(view: &View<'_>, output: Output) -> Result<(), CliError> {
    match output.is_json() {
        true => output.object(&view.to_object()),
        false => output.data(&view.to_text()),
    }
}

/// Looks until it is stopped. A database that is away for a while does not end it.
async fn watch(
    admin: &dyn Admin,
    flags: &str,
    every: Duration,
    mut shutdown: Shutdown,
    output: Output,
) -> Result<(), CliError> {
    let redraws = !output.is_json() && io::stdout().is_terminal();
    let mut before: Option<Look> = None;
    let mut looks = tokio::time::interval(every);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = shutdown.requested() => return Ok(()),
        }
        let status = tokio::select! {
            status = admin.status() => status,
            () = shutdown.requested() => return Ok(()),
        };
        match status {
            Ok(status) => {
                let view = view(&status, before.as_ref(), flags);
                match redraws {
                    true => output.data(&format!("{CLEAR}{}", view.to_text()))?,
                    false if output.is_json() => print(&view, output)?,
                    false => output.data(&format!("{}\n", view.to_text()))?,
                }
                before = Some(Look::new(status, Instant::now()));
            }
            Err(error) => output.error(&error.into()),
        }
    }
}
