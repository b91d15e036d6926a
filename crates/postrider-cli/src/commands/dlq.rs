//! `postrider dlq`: dead letters, which are events that failed for good and wait for somebody.

pub(crate) mod change;
pub(crate) mod export;
mod fingerprint;
mod groups;
pub(crate) mod list;
pub(crate) mod show;

use std::time::SystemTime;

use clap::{Args, Subcommand};
use postrider::Key;
use postrider_relay::admin::Selection;

use crate::error::CliError;
use crate::output::Output;
use crate::time::parse_time;

/// The commands below `postrider dlq`.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, oldest first, without their contents
    #[command(after_help = list::EXAMPLES)]
    List(list::ListArgs),
    /// Show one dead letter with its headers and payload
    #[command(after_help = show::EXAMPLES)]
    Show(show::ShowArgs),
    /// Publish dead letters again, with fresh attempts
    #[command(after_help = change::RETRY_EXAMPLES)]
    Retry(change::ChangeArgs),
    /// Remove dead letters for good, without publishing them
    #[command(after_help = change::DISCARD_EXAMPLES)]
    Discard(change::ChangeArgs),
    /// Write dead letters with their payloads as JSON Lines, oldest first
    #[command(after_help = export::EXAMPLES)]
    Export(export::ExportArgs),
}

/// The kinds of errors that a dead letter can have.
const KINDS: [&str; 6] =
    ["failed", "misconfigured", "refused", "rejected", "throttled", "unavailable"];

/// Which dead letters are meant, besides their ids.
#[derive(Args, Clone, Debug)]
pub(crate) struct FilterArgs {
    /// Only those of this key, the type and id of an aggregate
    #[arg(long, value_name = "TYPE/ID", value_parser = parse_key)]
    pub(crate) key: Option<Key>,
    /// Only those of this pipeline
    #[arg(long, value_name = "NAME")]
    pub(crate) pipeline: Option<String>,
    /// Only those of this event type
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Only those whose last error is of this kind
    #[arg(long, value_name = "KIND", value_parser = KINDS)]
    pub(crate) kind: Option<String>,
    /// Only those whose last error has this text in it
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,
    /// Only those parked since then: 10m for so long ago, or a time such as 2026-01-31T03:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) since: Option<SystemTime>,
    /// Only those parked before then
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) until: Option<SystemTime>,
}

impl FilterArgs {
    /// The selection, with these ids.
    pub(crate) fn selection(&self, event_ids: Vec<String>) -> Selection {
        Selection {
            pipeline: self.pipeline.clone(),
            event_ids,
            key: self.key.clone(),
            event_type: self.event_type.clone(),
            kind: self.kind.clone(),
            error: self.error.clone(),
            since: self.since,
            until: self.until,
        }
    }
}

/// Does one of the commands.
pub(crate) async fn run(command: DlqCommand, output: Output) -> Result<(), CliError> {
    match command {
        DlqCommand::Export(args) => export::run(&args, output).await,
        DlqCommand::List(args) => list::run(&args, output).await,
        DlqCommand::Show(args) => show::run(&args, output).await,
        DlqCommand::Retry(args) => change::run(change::Change::Retry, &args, output).await,
        DlqCommand::Discard(args) => change::run(change::Change::Discard, &args, output).await,
    }
}

/// Reads a key: the type and id of an aggregate, as in `Order/42`.
pub(crate) fn parse_key(text: &str) -> Result<Key, String> {
    match text.split_once('/') {
        Some((aggregate_type, aggregate_id)) if !aggregate_type.is_empty() => {
            Ok(Key { aggregate_type: aggregate_type.into(), aggregate_id: aggregate_id.into() })
        }
        _ => Err("write the aggregate's type and id, as in Order/42".into()),
    }
}
