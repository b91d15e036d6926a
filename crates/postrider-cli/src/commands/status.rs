//! `postrider status`: what is waiting, and where.

use clap::Args;
use postrider_relay::admin::{COUNT_MAX, OutboxStatus, PipelineStatus};
use serde::Serialize;

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
}

/// Prints how the outbox stands.
pub(crate) async fn run(args: &StatusArgs, output: Output) -> Result<(), CliError> {
    let outbox = Outbox::find(&args.outbox)?;
    let status = outbox.admin().await?.status().await?;
    if output.is_json() {
        return output.object(&to_object(&status));
    }
    output.data(&to_text(&status))?;
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
    format!("{} outbox {}\n\n{}", status.database, plain(&status.table), table(&rows))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

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
}
