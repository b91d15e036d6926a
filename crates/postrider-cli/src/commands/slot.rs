//! `postrider slot`: what keeps a server's log for pipelines that read it.

pub(crate) mod create;
pub(crate) mod drop;
pub(crate) mod show;

use clap::Subcommand;
use postrider_relay::config::PipelineConfig;
use postrider_relay::slots::SlotStatus;
use serde::Serialize;

use crate::cli::OutboxArgs;
use crate::error::{CliError, Code};
use crate::outbox;
use crate::output::{Output, plain, size};

/// The pipeline of a relay without a configuration file.
const PIPELINE_DEFAULT: &str = "default";

/// The commands below `postrider slot`.
#[derive(Debug, Subcommand)]
pub(crate) enum SlotCommand {
    /// Show the slots of all pipelines: what they are good for, and what they keep
    Show(show::ShowArgs),
    /// Make a slot for a pipeline before its relay runs, so that events which only the log has are
    /// kept from now on
    Create(create::CreateArgs),
    /// Drop the slot of a pipeline whose relay is stopped; the next relay reads the table
    Drop(drop::DropArgs),
}

/// A slot as JSON.
#[derive(Serialize)]
pub(crate) struct SlotObject<'s> {
    slot: &'s str,
    state: &'static str,
    /// Why it is of no use.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
    wal_status: Option<&'s str>,
    active_pid: Option<i32>,
    confirmed_flush_lsn: Option<&'s str>,
    checkpoint_lsn: Option<&'s str>,
    retained_wal_bytes: Option<u64>,
    safe_wal_bytes: Option<u64>,
    lag_bytes: Option<u64>,
    log_only: bool,
}

impl<'s> SlotObject<'s> {
    pub(crate) fn new(slot: &'s SlotStatus) -> Self {
        Self {
            slot: &slot.name,
            state: slot.state.as_str(),
            why: slot.state.why_of_no_use(),
            wal_status: slot.wal_status.as_deref(),
            active_pid: slot.active_pid,
            confirmed_flush_lsn: slot.confirmed_flush_lsn.as_deref(),
            checkpoint_lsn: slot.checkpoint_lsn.as_deref(),
            retained_wal_bytes: slot.retained_bytes,
            safe_wal_bytes: slot.safe_bytes,
            lag_bytes: slot.lag_bytes,
            log_only: slot.log_only,
        }
    }
}

/// The headings of [`cells`].
pub(crate) const HEADING: [&str; 7] =
    ["PIPELINE", "SLOT", "STATE", "WAL STATUS", "RETAINED WAL", "SAFE WAL", "LAG"];

/// A slot as a row of a table.
pub(crate) fn cells(pipeline: &str, slot: &SlotStatus) -> Vec<String> {
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), size);
    let safe = match (slot.safe_bytes, slot.wal_status.as_deref()) {
        (None, Some("reserved" | "extended")) => "no limit".to_owned(),
        (safe, _) => bytes(safe),
    };
    vec![
        plain(pipeline),
        slot.name.clone(),
        slot.state.as_str().replace('_', " "),
        slot.wal_status.clone().unwrap_or_else(|| "-".into()),
        bytes(slot.retained_bytes),
        safe,
        bytes(slot.lag_bytes),
    ]
}

/// What becomes of a slot that is of no use.
pub(crate) fn trouble(pipeline: &str, slot: &SlotStatus, flags: &str) -> Option<String> {
    let why = slot.state.why_of_no_use()?;
    let name = plain(pipeline);
    Some(match slot.log_only {
        true => format!(
            "the slot of pipeline {name} is of no use, {why}: relays refuse to go on, because \
             there were events that are in no table; publish what is missing again, then: \
             postrider slot drop {name} {flags}"
        ),
        false => format!(
            "the slot of pipeline {name} is of no use, {why}: a relay reads the table instead"
        ),
    })
}

/// Does one of the commands.
pub(crate) async fn run(command: SlotCommand, output: Output) -> Result<(), CliError> {
    match command {
        SlotCommand::Show(args) => show::run(&args, output).await,
        SlotCommand::Create(args) => create::run(&args, output).await,
        SlotCommand::Drop(args) => drop::run(&args, output).await,
    }
}

/// The name of the pipeline that is meant, and what the configuration file says of it.
fn find_pipeline(
    args: &OutboxArgs,
    named: Option<&str>,
) -> Result<(String, Option<PipelineConfig>), CliError> {
    let Some(path) = &args.config else {
        return Ok((named.unwrap_or(PIPELINE_DEFAULT).to_owned(), None));
    };
    let mut pipelines = outbox::read_config(path)?.pipelines;
    let names: Vec<String> = pipelines.iter().map(|pipeline| pipeline.name.clone()).collect();
    match named {
        Some(named) => {
            let index = names.iter().position(|name| name == named);
            Ok((named.to_owned(), index.map(|index| pipelines.swap_remove(index))))
        }
        None if names.len() == 1 => Ok((names.concat(), pipelines.pop())),
        None => {
            let what = format!("{} has {} pipelines", path.display(), names.len());
            let fix = format!("name one of them: {}", names.join(", "));
            Err(CliError::new(Code::Usage, what).with_fix(fix))
        }
    }
}

#[cfg(test)]
mod tests {
    use postrider_relay::slots::SlotState;

    use super::*;

    fn slot(state: SlotState) -> SlotStatus {
        SlotStatus {
            name: "postrider_orders_12345678".into(),
            state,
            wal_status: Some("reserved".into()),
            active_pid: Some(7),
            confirmed_flush_lsn: Some("0/10".into()),
            checkpoint_lsn: Some("0/20".into()),
            retained_bytes: Some(3 << 20),
            safe_bytes: None,
            lag_bytes: Some(16),
            log_only: false,
        }
    }

    #[test]
    fn the_json_has_a_fixed_form() {
        let json = serde_json::to_string(&SlotObject::new(&slot(SlotState::Streams))).unwrap();
        assert_eq!(
            json,
            r#"{"slot":"postrider_orders_12345678","state":"streams","wal_status":"reserved","active_pid":7,"confirmed_flush_lsn":"0/10","checkpoint_lsn":"0/20","retained_wal_bytes":3145728,"safe_wal_bytes":null,"lag_bytes":16,"log_only":false}"#
        );
        let json = serde_json::to_string(&SlotObject::new(&slot(SlotState::Lost))).unwrap();
        let why = r#""state":"lost","why":"the server has given it up","#;
        assert!(json.contains(why), "{json}");
    }

    #[test]
    fn what_is_not_limited_is_said_to_be() {
        let streams = slot(SlotState::ReadsTable);
        let name = "postrider_orders_12345678";
        let expected = ["orders", name, "reads table", "reserved", "3.0 MiB", "no limit", "16 B"];
        assert_eq!(cells("orders", &streams), expected);
        let lost = SlotStatus { wal_status: Some("lost".into()), ..slot(SlotState::Lost) };
        assert_eq!(cells("orders", &lost)[5], "-");
    }

    #[test]
    fn a_slot_of_no_use_is_explained() {
        assert_eq!(trouble("orders", &slot(SlotState::Making), "--from x"), None);
        let missing = slot(SlotState::Missing);
        assert_eq!(
            trouble("orders", &missing, "--from x").unwrap(),
            "the slot of pipeline orders is of no use, it is gone: a relay reads the table instead"
        );
        let log_only = SlotStatus { log_only: true, ..missing };
        let told = trouble("orders", &log_only, "--from x").unwrap();
        assert!(told.ends_with("then: postrider slot drop orders --from x"), "{told}");
    }
}
