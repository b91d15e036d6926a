//! `postrider check`: one figure against limits, as plugins of Nagios do it.
//!
//! One line on stdout, with figures behind the bar, and the exit codes of Nagios. What cannot be
//! found out, such as with a database that is away, is UNKNOWN: another alarm is for that.

mod figure;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use postrider_relay::config::{parse_duration, parse_size};

use self::figure::{Figure, Unit};
use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  postrider check lag --warn 30s --crit 2m --from postgres://shop@localhost/shop
  postrider check dlq --warn 1 --crit 100 --config postrider.toml --pipeline orders
  postrider check slot --warn 1GiB --crit 8GiB --from postgres://shop@localhost/shop

Prints one line, such as: OUTBOX LAG OK - the oldest event waits for 1.2s | orders=1.2s;30;120
Exit codes are those of Nagios, and not those of the other commands: 0 OK, 1 WARNING, 2 CRITICAL,
3 UNKNOWN (wrong use, no such pipeline, or the database cannot be reached).";

/// The commands below `postrider check`.
#[derive(Debug, Subcommand)]
pub(crate) enum CheckCommand {
    /// How long the oldest event waits to be published
    #[command(after_help = EXAMPLES)]
    Lag(TimeArgs),
    /// How many events are parked
    #[command(after_help = EXAMPLES)]
    Dlq(CountArgs),
    /// How much of the server's log slots keep; a slot that is of no use is critical (PostgreSQL)
    #[command(after_help = EXAMPLES)]
    Slot(SizeArgs),
}

/// Which pipelines are meant.
#[derive(Args, Debug)]
pub(crate) struct WhoseArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Only this pipeline
    #[arg(long, value_name = "NAME")]
    pipeline: Option<String>,
}

/// The arguments of `postrider check lag`.
#[derive(Args, Debug)]
pub(crate) struct TimeArgs {
    #[command(flatten)]
    whose: WhoseArgs,
    /// From this age on it is a warning
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    warn: Duration,
    /// From this age on it is critical
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    crit: Duration,
}

/// The arguments of `postrider check dlq`.
#[derive(Args, Debug)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    whose: WhoseArgs,
    /// From so many on it is a warning
    #[arg(long, value_name = "COUNT")]
    warn: u64,
    /// From so many on it is critical
    #[arg(long, value_name = "COUNT")]
    crit: u64,
}

/// The arguments of `postrider check slot`.
#[derive(Args, Debug)]
pub(crate) struct SizeArgs {
    #[command(flatten)]
    whose: WhoseArgs,
    /// From this size on it is a warning
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    warn: u64,
    /// From this size on it is critical
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    crit: u64,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a time such as 500ms, 30s or 5m".to_owned())
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "write a size such as 64MiB or 1GiB".to_owned())
}

/// Prints the figure, and answers the exit code.
pub(crate) async fn run(command: CheckCommand, output: Output) -> ExitCode {
    let (whose, figure) = match command {
        CheckCommand::Lag(args) => {
            let (warn, crit) = (args.warn.as_secs_f64(), args.crit.as_secs_f64());
            (args.whose, Figure { unit: Unit::Lag, warn, crit })
        }
        CheckCommand::Dlq(args) => {
            let (warn, crit) = (args.warn as f64, args.crit as f64);
            (args.whose, Figure { unit: Unit::Parked, warn, crit })
        }
        CheckCommand::Slot(args) => {
            let (warn, crit) = (args.warn as f64, args.crit as f64);
            (args.whose, Figure { unit: Unit::RetainedWal, warn, crit })
        }
    };
    let report = match measure(&whose).await {
        Ok(status) => figure.report(&status, whose.pipeline.as_deref()),
        Err(error) => figure.unknown(&error),
    };
    let printed = match output.is_json() {
        true => output.object(&report),
        false => output.data(&report.line),
    };
    match printed {
        Ok(()) => ExitCode::from(report.exit_code),
        Err(_) => ExitCode::from(figure::State::Unknown as u8),
    }
}

async fn measure(whose: &WhoseArgs) -> Result<postrider_relay::admin::OutboxStatus, CliError> {
    let outbox = Outbox::find(&whose.outbox)?;
    Ok(outbox.admin().await?.status().await?)
}
