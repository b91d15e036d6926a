//! `postrider slot show`.

use clap::Args;
use postrider_relay::slots::PipelineSlot;
use serde::Serialize;

use super::{HEADING, SlotObject, cells, trouble};
use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox::Outbox;
use crate::output::{Output, table};

const EXAMPLES: &str = "\
Examples:
  postrider slot show --from postgres://shop@localhost/shop
  postrider slot show orders --config postrider.toml --json

STATE is one of: none; making (waits for open transactions); reads table (up to where the slot
begins); streams (events come from the log); missing, lost, moved, unpublished, stray (it is of no
use, and a relay reads the table instead).";

/// The arguments of `postrider slot show`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ShowArgs {
    /// Only the slot of this pipeline
    #[arg(value_name = "PIPELINE")]
    pipeline: Option<String>,
    #[command(flatten)]
    outbox: OutboxArgs,
}

/// The slots as JSON; people script against it.
#[derive(Serialize)]
struct ShowObject<'s> {
    slots: Vec<PipelineObject<'s>>,
}

#[derive(Serialize)]
struct PipelineObject<'s> {
    pipeline: &'s str,
    #[serde(flatten)]
    slot: SlotObject<'s>,
}

impl<'s> PipelineObject<'s> {
    fn new(slot: &'s PipelineSlot) -> Self {
        Self { pipeline: &slot.pipeline, slot: SlotObject::new(&slot.slot) }
    }
}

/// Prints the slots.
pub(crate) async fn run(args: &ShowArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let mut slots = outbox.slots().await?.show().await?;
    let flags = &outbox.flags;
    if let Some(wanted) = &args.pipeline {
        slots.retain(|slot| slot.pipeline == *wanted);
        if slots.is_empty() {
            let what = format!("no pipeline {wanted:?} has read {}", outbox.source.table);
            let fix = format!("list them: postrider slot show {flags}");
            return Err(CliError::new(Code::Failure, what).with_fix(fix));
        }
    }
    if output.is_json() {
        return output
            .object(&ShowObject { slots: slots.iter().map(PipelineObject::new).collect() });
    }
    if slots.is_empty() {
        output.talk("no pipeline has read the outbox");
        return Ok(());
    }
    output.data(&to_text(&slots))?;
    for PipelineSlot { pipeline, slot } in &slots {
        if let Some(trouble) = trouble(pipeline, slot, flags) {
            output.talk(&trouble);
        }
    }
    Ok(())
}

fn to_text(slots: &[PipelineSlot]) -> String {
    let mut heading = HEADING.map(str::to_owned).to_vec();
    heading.extend(["READ BY", "CONFIRMED", "CHECKPOINT", "LOG ONLY"].map(str::to_owned));
    let mut rows = vec![heading];
    rows.extend(slots.iter().map(|PipelineSlot { pipeline, slot }| {
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let mut row = cells(pipeline, slot);
        row.push(slot.active_pid.map_or_else(|| "-".into(), |pid| format!("process {pid}")));
        row.push(shown(&slot.confirmed_flush_lsn));
        row.push(shown(&slot.checkpoint_lsn));
        row.push(if slot.log_only { "yes" } else { "no" }.to_owned());
        row
    }));
    table(&rows)
}
