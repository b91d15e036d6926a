//! `postrider slot drop`.

use clap::Args;
use serde::Serialize;

use super::find_pipeline;
use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  postrider slot drop --from postgres://shop@localhost/shop
  postrider slot drop orders --config postrider.toml --yes

Events that only the log had and that were not delivered are gone with the slot. The next relay
reads the table, where all others are.";

/// The arguments of `postrider slot drop`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DropArgs {
    /// The pipeline [default: the only one of the configuration file, or `default`]
    #[arg(value_name = "PIPELINE")]
    pipeline: Option<String>,
    #[command(flatten)]
    outbox: OutboxArgs,
    /// Do not ask, also if there were events that are in no table
    #[arg(long, short)]
    yes: bool,
}

#[derive(Serialize)]
struct DropObject<'d> {
    pipeline: &'d str,
    slot: &'d str,
    /// False if there was none.
    dropped: bool,
    /// There were events that are in no table.
    log_only: bool,
}

/// Drops a slot.
pub(crate) async fn run(args: &DropArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let (pipeline, _) = find_pipeline(&args.outbox, args.pipeline.as_deref())?;
    let slots = outbox.slots().await?;
    if !args.yes {
        let shown = slots.show().await?;
        if shown.iter().any(|shown| shown.pipeline == pipeline && shown.slot.log_only) {
            slots.refuse_in_use(&pipeline).await?;
            let question = format!(
                "pipeline {pipeline:?} may have had events that are in no table: those not delivered \
                 yet are lost with its slot. drop it?"
            );
            let instead = "let a relay deliver them first, or publish them again; then add --yes";
            output.confirm(&question, instead)?;
        }
    }
    let dropped = slots.drop_slot(&pipeline).await?;
    if output.is_json() {
        return output.object(&DropObject {
            pipeline: &pipeline,
            slot: &dropped.slot,
            dropped: dropped.was_there,
            log_only: dropped.log_only,
        });
    }
    if !dropped.was_there {
        output.talk(&format!("pipeline {pipeline} has no slot"));
        return Ok(());
    }
    output.talk(&format!(
        "dropped the slot {}: events that only the log had and that were not delivered are gone; \
         the next relay reads the table, where all others are",
        dropped.slot
    ));
    Ok(())
}
