//! The command line: what can be asked for, and the help for it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::{
    audit, check, completions, dlq, doctor, explain, init, keys, man, migrate, pause, prune,
    reconcile, relay, replay, show, slot, status, tail, verify,
};

/// Publishes the events of a database transaction, if and only if that transaction commits.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Exit codes: 0 ok, 1 failure, 2 usage, 3 configuration, 4 unreachable, 5 not permitted,
            6 unsafe state refused, 7 partial (some pipelines failed, some ids not found,
            a drain or a replay was stopped before its end, reconcile found missed events,
            audit found transactions without an event)

POSTRIDER_LOG filters the log, for example POSTRIDER_LOG=debug. Defaults to info.";

const GLOBAL: &str = "Global options";

/// What holds for every command.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Global {
    /// Print data, and errors, as JSON
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,
    /// How the log on stderr is written
    #[arg(long, global = true, help_heading = GLOBAL, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a commented configuration file to start from
    Init(init::InitArgs),
    /// Create or upgrade the outbox tables
    Migrate(migrate::MigrateArgs),
    /// Publish events until stopped
    Relay(relay::RelayArgs),
    /// Show what is waiting, and where, and why a pipeline is not green
    Status(status::StatusArgs),
    /// Find what is wrong with configuration, database and brokers, and say how to mend it
    Doctor(doctor::DoctorArgs),
    /// Say what an error, an alert or a word of status means, and how to mend it
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainArgs),
    /// Compare one figure with limits, for Nagios and its like
    #[command(subcommand)]
    Check(check::CheckCommand),
    /// Look at dead letters, retry or discard them
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// Follow events as they are written
    #[command(after_help = tail::EXAMPLES)]
    Tail(tail::TailArgs),
    /// Show the life of one event: where it stands, and what it waits for
    #[command(after_help = show::EXAMPLES)]
    Show(show::ShowArgs),
    /// Look at keys that wait, and release them
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// Stop a pipeline, or one key, without stopping the relay
    #[command(after_help = pause::PAUSE_EXAMPLES)]
    Pause(pause::PauseArgs),
    /// Let a pipeline, or a key, go on after a pause
    #[command(after_help = pause::RESUME_EXAMPLES)]
    Resume(pause::ResumeArgs),
    /// Publish stored events again, with the same ids
    #[command(after_help = replay::EXAMPLES)]
    Replay(replay::ReplayArgs),
    /// Find events that should have been published and were not
    #[command(after_help = reconcile::EXAMPLES)]
    Reconcile(reconcile::ReconcileArgs),
    /// Read the broker back, and hold it against the outbox
    #[command(after_help = verify::EXAMPLES)]
    Verify(verify::VerifyArgs),
    /// Watch business tables, and find transactions that forgot their event (PostgreSQL)
    #[command(after_help = audit::EXAMPLES)]
    Audit(audit::AuditArgs),
    /// Measure your own database and broker, and clean up
    #[cfg(feature = "full")]
    #[command(after_help = crate::commands::bench::EXAMPLES)]
    Bench(Box<crate::commands::bench::BenchArgs>),
    /// Remove published events that are past their retention
    Prune(prune::PruneArgs),
    /// Look at what keeps the server's log for pipelines, make or drop it (PostgreSQL)
    #[command(subcommand)]
    Slot(slot::SlotCommand),
    /// Watch a shop lose events without an outbox, and none with one
    #[cfg(feature = "demo")]
    Demo(crate::commands::demo::DemoArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual pages to a folder
    Man(man::ManArgs),
}

/// Which outbox a command is about.
#[derive(Args, Clone, Debug)]
pub(crate) struct OutboxArgs {
    /// The database with the outbox, such as postgres://user@host/database or sqlite:app.db [env:
    /// POSTRIDER_SOURCE__URL]
    #[arg(long, value_name = "URL")]
    pub(crate) from: Option<String>,
    /// Take the database from a configuration file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "table"])]
    pub(crate) config: Option<PathBuf>,
    /// The outbox table [default: outbox]
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Option<String>,
}

#[cfg(test)]
mod examples;
#[cfg(test)]
mod tests;
