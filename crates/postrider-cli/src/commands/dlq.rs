//! `postrider dlq`: dead letters, which are events that failed for good and wait for somebody.

pub(crate) mod change;
pub(crate) mod list;
pub(crate) mod show;

use clap::{Args, Subcommand};
use postrider::Key;
use postrider_relay::admin::Selection;

use crate::error::CliError;
use crate::output::Output;

/// The commands below `postrider dlq`.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, oldest first, without their contents
    List(list::ListArgs),
    /// Show one dead letter with its headers and payload
    Show(show::ShowArgs),
    /// Publish dead letters again, with fresh attempts
    Retry(change::ChangeArgs),
    /// Remove dead letters for good, without publishing them
    Discard(change::ChangeArgs),
}

/// Which dead letters are meant, besides their ids.
#[derive(Args, Clone, Debug)]
pub(crate) struct FilterArgs {
    /// Only those of this key, the type and id of an aggregate
    #[arg(long, value_name = "TYPE/ID", value_parser = parse_key)]
    pub(crate) key: Option<Key>,
    /// Only those of this pipeline
    #[arg(long, value_name = "NAME")]
    pub(crate) pipeline: Option<String>,
}

impl FilterArgs {
    /// The selection, with these ids.
    pub(crate) fn selection(&self, event_ids: Vec<String>) -> Selection {
        Selection { pipeline: self.pipeline.clone(), event_ids, key: self.key.clone() }
    }
}

/// Does one of the commands.
pub(crate) async fn run(command: DlqCommand, output: Output) -> Result<(), CliError> {
    match command {
        DlqCommand::List(args) => list::run(&args, output).await,
        DlqCommand::Show(args) => show::run(&args, output).await,
        DlqCommand::Retry(args) => change::run(change::Change::Retry, &args, output).await,
        DlqCommand::Discard(args) => change::run(change::Change::Discard, &args, output).await,
    }
}

fn parse_key(text: &str) -> Result<Key, String> {
    match text.split_once('/') {
        Some((aggregate_type, aggregate_id)) if !aggregate_type.is_empty() => {
            Ok(Key { aggregate_type: aggregate_type.into(), aggregate_id: aggregate_id.into() })
        }
        _ => Err("write the aggregate's type and id, as in Order/42".into()),
    }
}
