//! `postrider status`: what is waiting, and where.

use clap::Args;
use postrider_relay::admin::{COUNT_MAX, LeaseStatus, OutboxStatus, PipelineStatus};
use serde::Serialize;

use super::pause::{self, PauseObject};
use super::slot::{self, SlotObject};
use crate::cli::OutboxArgs;
use crate::error::CliError;
use crate::outbox::Outbox;
use crate::output::{Output, plain, table};
use crate::time::{age, rfc3339};

/// The arguments of `postrider status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    outbox: OutboxArgs,
}

/// The status as JSON; people script against it. The totals are sums over the pipelines.
#[derive(Serialize)]
struct StatusObject<'s> {
    database: &'s str,
    table: &'s str,
    unpublished: u64,
    parked: u64,
    pipelines: Vec<PipelineObject<'s>>,
}

#[derive(Serialize)]
struct PipelineObject<'s> {
    name: &'s str,
    progress: Option<&'s str>,
    unpublished: u64,
    unpublished_is_capped: bool,
    oldest_unpublished_age_seconds: Option<f64>,
    parked: u64,
    queued: u64,
    deferred: u64,
    blocked_keys: u64,
    last_settled_at: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    leases: Vec<LeaseObject<'s>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<SlotObject<'s>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paused: Option<PauseObject<'s>>,
}

#[derive(Serialize)]
struct LeaseObject<'s> {
    shard: u32,
    owner: Option<&'s str>,
    epoch: u64,
    expires_in_seconds: f64,
}

/// Prints how the outbox stands.
pub(crate) async fn run(args: &StatusArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let status = outbox.admin().await?.status().await?;
    if output.is_json() {
        return output.object(&to_object(&status));
    }
    output.data(&to_text(&status))?;
    for pipeline in &status.pipelines {
        let slot = pipeline.slot.as_ref();
        let trouble = slot.and_then(|slot| slot::trouble(&pipeline.name, slot, &outbox.flags));
        if let Some(trouble) = trouble {
            output.talk(&trouble);
        }
    }
    for pipeline in &status.pipelines {
        if let Some(pause) = &pipeline.paused {
            output.talk(&pause::told(&pipeline.name, pause, &outbox.flags));
        }
    }
    let parked: u64 = status.pipelines.iter().map(|pipeline| pipeline.parked).sum();
    if parked > 0 {
        let (events, them) = if parked == 1 { ("event is", "it") } else { ("events are", "them") };
        output.talk(&format!(
            "{parked} {events} parked; look at {them}: postrider dlq list {}",
            outbox.flags
        ));
    }
    Ok(())
}

fn to_object(status: &OutboxStatus) -> StatusObject<'_> {
    let sum = |count: fn(&PipelineStatus) -> u64| status.pipelines.iter().map(count).sum();
    StatusObject {
        database: status.database,
        table: &status.table,
        unpublished: sum(|pipeline| pipeline.unpublished),
        parked: sum(|pipeline| pipeline.parked),
        pipelines: status.pipelines.iter().map(to_pipeline_object).collect(),
    }
}

fn to_pipeline_object(pipeline: &PipelineStatus) -> PipelineObject<'_> {
    PipelineObject {
        name: &pipeline.name,
        progress: pipeline.progress.as_deref(),
        unpublished: pipeline.unpublished,
        unpublished_is_capped: pipeline.unpublished >= COUNT_MAX,
        oldest_unpublished_age_seconds: pipeline
            .oldest_unpublished_age
            .map(|age| age.as_secs_f64()),
        parked: pipeline.parked,
        queued: pipeline.queued,
        deferred: pipeline.deferred,
        blocked_keys: pipeline.blocked_keys,
        last_settled_at: pipeline.last_settled_at.map(rfc3339),
        leases: pipeline.leases.iter().map(to_lease_object).collect(),
        slot: pipeline.slot.as_ref().map(SlotObject::new),
        paused: pipeline.paused.as_ref().map(PauseObject::new),
    }
}

fn to_lease_object(lease: &LeaseStatus) -> LeaseObject<'_> {
    LeaseObject {
        shard: lease.shard,
        owner: lease.owner.as_deref(),
        epoch: lease.epoch,
        expires_in_seconds: lease.expires_in.as_secs_f64(),
    }
}

fn to_text(status: &OutboxStatus) -> String {
    let heading = [
        "PIPELINE",
        "PROGRESS",
        "UNPUBLISHED",
        "OLDEST",
        "PARKED",
        "QUEUED",
        "DEFERRED",
        "BLOCKED KEYS",
        "LAST SETTLED",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(status.pipelines.iter().map(|pipeline| {
        let capped = if pipeline.unpublished >= COUNT_MAX { "+" } else { "" };
        vec![
            plain(&pipeline.name),
            pipeline.progress.clone().unwrap_or_else(|| "-".into()),
            format!("{}{capped}", pipeline.unpublished),
            pipeline.oldest_unpublished_age.map_or_else(|| "-".into(), age),
            pipeline.parked.to_string(),
            pipeline.queued.to_string(),
            pipeline.deferred.to_string(),
            pipeline.blocked_keys.to_string(),
            pipeline.last_settled_at.map_or_else(|| "never".into(), rfc3339),
        ]
    }));
    let pipelines = table(&rows);
    let (leases, slots) = (leases_text(status), slots_text(status));
    format!("{} outbox {}\n\n{pipelines}{leases}{slots}", status.database, plain(&status.table))
}

/// Who reads what, where that is shared between relays.
fn leases_text(status: &OutboxStatus) -> String {
    let heading = ["PIPELINE", "SHARD", "RELAY", "LEASE", "EPOCH"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for pipeline in &status.pipelines {
        rows.extend(pipeline.leases.iter().map(|lease| {
            let left = match (&lease.owner, lease.expires_in.is_zero()) {
                (None, _) => "free".into(),
                (Some(_), true) => "expired".into(),
                (Some(_), false) => age(lease.expires_in),
            };
            vec![
                plain(&pipeline.name),
                lease.shard.to_string(),
                lease.owner.as_deref().map_or_else(|| "-".into(), plain),
                left,
                lease.epoch.to_string(),
            ]
        }));
    }
    if rows.len() == 1 {
        return String::new();
    }
    format!("\n{}", table(&rows))
}

/// What keeps the server's log, where it is read.
fn slots_text(status: &OutboxStatus) -> String {
    let mut rows = vec![slot::HEADING.map(str::to_owned).to_vec()];
    for pipeline in &status.pipelines {
        rows.extend(pipeline.slot.as_ref().map(|slot| slot::cells(&pipeline.name, slot)));
    }
    if rows.len() == 1 {
        return String::new();
    }
    format!("\n{}", table(&rows))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use postrider_relay::slots::{SlotState, SlotStatus};

    use super::*;

    fn status() -> OutboxStatus {
        let orders = PipelineStatus {
            name: "orders".into(),
            progress: Some("cursor".into()),
            unpublished: COUNT_MAX,
            oldest_unpublished_age: Some(Duration::from_millis(61_500)),
            parked: 2,
            queued: 3,
            deferred: 4,
            blocked_keys: 1,
            last_settled_at: Some(SystemTime::UNIX_EPOCH),
            leases: Vec::new(),
            slot: None,
            paused: None,
        };
        let audit = PipelineStatus {
            name: "audit".into(),
            progress: None,
            unpublished: 0,
            oldest_unpublished_age: None,
            parked: 0,
            queued: 0,
            deferred: 0,
            blocked_keys: 0,
            last_settled_at: None,
            leases: Vec::new(),
            slot: None,
            paused: None,
        };
        OutboxStatus { database: "sqlite", table: "outbox".into(), pipelines: vec![orders, audit] }
    }

    #[test]
    fn the_json_has_a_fixed_form() {
        let json = serde_json::to_string(&to_object(&status())).unwrap();
        assert_eq!(
            json,
            r#"{"database":"sqlite","table":"outbox","unpublished":100000,"parked":2,"pipelines":[{"name":"orders","progress":"cursor","unpublished":100000,"unpublished_is_capped":true,"oldest_unpublished_age_seconds":61.5,"parked":2,"queued":3,"deferred":4,"blocked_keys":1,"last_settled_at":"1970-01-01T00:00:00.000Z"},{"name":"audit","progress":null,"unpublished":0,"unpublished_is_capped":false,"oldest_unpublished_age_seconds":null,"parked":0,"queued":0,"deferred":0,"blocked_keys":0,"last_settled_at":null}]}"#
        );
    }

    #[test]
    fn the_text_is_a_table() {
        let expected = "\
sqlite outbox outbox

PIPELINE  PROGRESS  UNPUBLISHED  OLDEST  PARKED  QUEUED  DEFERRED  BLOCKED KEYS  LAST SETTLED
orders    cursor    100000+      1m 1s   2       3       4         1             1970-01-01T00:00:00.000Z
audit     -         0            -       0       0       0         0             never
";
        assert_eq!(to_text(&status()), expected);
    }

    #[test]
    fn leases_are_shown_where_there_are_any() {
        let mut status = status();
        let seconds = Duration::from_secs;
        let leases =
            [(Some("relay-1"), 4, seconds(12)), (Some("b"), 2, seconds(0)), (None, 1, seconds(0))];
        status.pipelines[0].leases = (0..)
            .zip(leases)
            .map(|(shard, (owner, epoch, expires_in))| LeaseStatus {
                shard,
                owner: owner.map(str::to_owned),
                epoch,
                expires_in,
            })
            .collect();
        let expected = "
PIPELINE  SHARD  RELAY    LEASE    EPOCH
orders    0      relay-1  12s      4
orders    1      b        expired  2
orders    2      -        free     1
";
        let text = to_text(&status);
        assert!(text.ends_with(expected), "{text}");
        let json = serde_json::to_string(&to_object(&status)).unwrap();
        let expected =
            r#""leases":[{"shard":0,"owner":"relay-1","epoch":4,"expires_in_seconds":12.0},"#;
        assert!(json.contains(expected), "{json}");
    }

    #[test]
    fn slots_are_shown_where_there_are_any() {
        let mut status = status();
        status.pipelines[0].slot = Some(SlotStatus {
            name: "postrider_orders_12345678".into(),
            state: SlotState::Missing,
            wal_status: None,
            active_pid: None,
            confirmed_flush_lsn: None,
            checkpoint_lsn: Some("0/20".into()),
            retained_bytes: None,
            safe_bytes: None,
            lag_bytes: None,
            log_only: false,
        });
        let expected = "
PIPELINE  SLOT                       STATE    WAL STATUS  RETAINED WAL  SAFE WAL  LAG
orders    postrider_orders_12345678  missing  -           -             -         -
";
        let text = to_text(&status);
        assert!(text.ends_with(expected), "{text}");
        let json = serde_json::to_string(&to_object(&status)).unwrap();
        let expected =
            r#""slot":{"slot":"postrider_orders_12345678","state":"missing","why":"it is gone","#;
        assert!(json.contains(expected), "{json}");
    }
}
