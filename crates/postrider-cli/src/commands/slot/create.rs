//! `postrider slot create`.

use std::path::Path;

use clap::Args;
use postrider_relay::sources::Mode;
use serde::Serialize;

use super::find_pipeline;
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::Outbox;
use crate::output::Output;
use crate::signals::stop_on_signal;

const EXAMPLES: &str = "\
Examples:
  postrider slot create --from postgres://shop@localhost/shop
  postrider slot create orders --config postrider.toml

A relay with mode = \"cdc\" makes its slot by itself. This is for events that are in no table: those
of outbox_publish_message, or inserted and deleted in one transaction. They are kept from the moment
the slot is there. Until a relay reads it, the server keeps its log.";

/// The arguments of `postrider slot create`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CreateArgs {
    /// The pipeline [default: the only one of the configuration file, or `default`]
    #[arg(value_name = "PIPELINE")]
    pipeline: Option<String>,
    #[command(flatten)]
    outbox: OutboxArgs,
}

#[derive(Serialize)]
struct CreateObject<'c> {
    pipeline: &'c str,
    slot: &'c str,
    lsn: &'c str,
    /// False if it was there before.
    created: bool,
}

/// Makes a slot.
pub(crate) async fn run(args: &CreateArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let (pipeline, config) = find_pipeline(&args.outbox, args.pipeline.as_deref())?;
    if let Some(path) = &args.outbox.config {
        check_mode(path, &pipeline, config.map(|config| config.mode))?;
    }
    let slots = outbox.slots().await?;
    let made = slots.create(&pipeline, &stop_on_signal()?).await?;
    if output.is_json() {
        let (slot, lsn) = (made.slot.as_str(), made.lsn.as_str());
        let created = made.is_new;
        return output.object(&CreateObject { pipeline: &pipeline, slot, lsn, created });
    }
    let (slot, lsn) = (&made.slot, &made.lsn);
    if !made.is_new {
        output.talk(&format!("the slot {slot} is there already, and the relay goes on at {lsn}"));
        return Ok(());
    }
    output.talk(&format!(
        "made the slot {slot}: everything that is committed after {lsn} is kept for pipeline \
         {pipeline}\nstart its relay with mode = \"cdc\" soon: until then the server keeps its log"
    ));
    Ok(())
}

/// Refuses a pipeline whose slot nobody would read.
fn check_mode(path: &Path, pipeline: &str, mode: Option<Mode>) -> Result<(), CliError> {
    let path = path.display();
    let (what, fix) = match mode {
        Some(Mode::Cdc) => return Ok(()),
        Some(Mode::Poll) => (
            format!("pipeline {pipeline:?} of {path} polls, and its relay would drop the slot"),
            "write mode = \"cdc\" first",
        ),
        None => (
            format!("{path} has no pipeline {pipeline:?}, and no relay would read the slot"),
            "name a pipeline of the file, or add this one to it",
        ),
    };
    Err(CliError::new(Code::Configuration, what).with_fix(fix))
}
