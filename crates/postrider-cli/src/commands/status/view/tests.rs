use std::time::{Duration, SystemTime};

use postrider_relay::slots::{SlotState, SlotStatus};

use super::*;

pub(in super::super) fn status() -> OutboxStatus {
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
        trouble: None,
        leases: Vec::new(),
        slot: None,
        paused: None,
        paused_keys: Default::default(),
    };
    let pipelines = vec![orders, pipeline("audit")];
    let unmatched = Default::default();
    OutboxStatus {
        database: "sqlite",
        table: "outbox".into(),
        written: Some(7),
        pipelines,
        unmatched,
    }
}

/// A pipeline that never ran, at which nothing is wrong.
pub(in super::super) fn pipeline(name: &str) -> PipelineStatus {
    PipelineStatus {
        name: name.into(),
        progress: None,
        unpublished: 0,
        oldest_unpublished_age: None,
        parked: 0,
        queued: 0,
        deferred: 0,
        blocked_keys: 0,
        last_settled_at: None,
        trouble: None,
        leases: Vec::new(),
        slot: None,
        paused: None,
        paused_keys: Default::default(),
    }
}

/// How it is shown.
fn shown(status: &OutboxStatus) -> View<'_> {
    let reasons = status
        .pipelines
        .iter()
        .map(|it| health::reasons(it, &health::Thresholds::default(), SystemTime::UNIX_EPOCH));
    let rates = status.pipelines.iter().map(|_| None);
    View { status, reasons: reasons.collect(), rates: rates.collect(), flags: "--from sqlite:a.db" }
}

#[test]
fn the_json_has_a_fixed_form() {
    let json = serde_json::to_string(&shown(&status()).to_object()).unwrap();
    assert_eq!(
        json,
        r#"{"database":"sqlite","table":"outbox","unpublished":100000,"unpublished_is_capped":true,"parked":2,"parked_is_capped":false,"pipelines":[{"name":"orders","progress":"cursor","unpublished":100000,"unpublished_is_capped":true,"oldest_unpublished_age_seconds":61.5,"parked":2,"parked_is_capped":false,"queued":3,"queued_is_capped":false,"deferred":4,"deferred_is_capped":false,"blocked_keys":1,"blocked_keys_is_capped":false,"last_settled_at":"1970-01-01T00:00:00.000Z","verdict":"warn","reasons":[{"code":"late","level":"warn","what":"at least 100000 events wait, the oldest for 1m 1s","command":null},{"code":"parked","level":"warn","what":"2 events are parked; 1 key is blocked, with 3 events behind","command":"postrider dlq list --pipeline orders --from sqlite:a.db"}]},{"name":"audit","progress":null,"unpublished":0,"unpublished_is_capped":false,"oldest_unpublished_age_seconds":null,"parked":0,"parked_is_capped":false,"queued":0,"queued_is_capped":false,"deferred":0,"deferred_is_capped":false,"blocked_keys":0,"blocked_keys_is_capped":false,"last_settled_at":null,"verdict":"ok","reasons":[]}],"unmatched":0,"unmatched_aggregate_types":[],"verdict":"warn"}"#
    );
}

#[test]
fn the_text_is_a_table() {
    let expected = "\
sqlite outbox outbox

PIPELINE  PROGRESS  UNPUBLISHED  OLDEST  PARKED  QUEUED  DEFERRED  BLOCKED KEYS  LAST SETTLED
orders    cursor    100000+      1m 1s   2       3       4         1             1970-01-01T00:00:00.000Z
audit     -         0            -       0       0       0         0             never

WARN  orders: at least 100000 events wait, the oldest for 1m 1s
WARN  orders: 2 events are parked; 1 key is blocked, with 3 events behind
      help: postrider dlq list --pipeline orders --from sqlite:a.db
";
    assert_eq!(shown(&status()).to_text(), expected);
}

/// Counting stops at a limit, and nothing may look exact that is not.
#[test]
fn every_count_says_where_it_was_capped() {
    let mut status = status();
    let orders = &mut status.pipelines[0];
    (orders.parked, orders.queued, orders.deferred) = (COUNT_MAX, COUNT_MAX, COUNT_MAX);
    orders.blocked_keys = COUNT_MAX;
    let text = shown(&status).to_text();
    assert_eq!(text.matches("100000+").count(), 5, "{text}");
    assert!(text.contains("with at least 100000 events behind"), "{text}");
    let json = serde_json::to_string(&shown(&status).to_object()).unwrap();
    assert_eq!(json.matches("_is_capped\":true").count(), 7, "{json}");
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
    let text = shown(&status).to_text();
    assert!(text.contains(expected), "{text}");
    let json = serde_json::to_string(&shown(&status).to_object()).unwrap();
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
    let text = shown(&status).to_text();
    assert!(text.contains(expected), "{text}");
    let json = serde_json::to_string(&shown(&status).to_object()).unwrap();
    let expected =
        r#""slot":{"slot":"postrider_orders_12345678","state":"missing","why":"it is gone","#;
    assert!(json.contains(expected), "{json}");
}

#[test]
fn what_is_green_is_shown_without_a_word() {
    let status = OutboxStatus { pipelines: vec![pipeline("audit")], ..status() };
    let text = shown(&status).to_text();
    assert!(text.ends_with("never\n"), "{text}");
    let json = serde_json::to_string(&shown(&status).to_object()).unwrap();
    let end = r#""reasons":[]}],"unmatched":0,"unmatched_aggregate_types":[],"verdict":"ok"}"#;
    assert!(json.ends_with(end), "{json}");
}

#[test]
fn events_that_no_pipeline_matches_are_shown() {
    let aggregate_types = vec!["Invoice".to_owned(), "Refund".to_owned()];
    let unmatched = Unmatched { events: 5, aggregate_types };
    let status = OutboxStatus { unmatched, ..status() };
    let text = shown(&status).to_text();
    let expected = "
WARN  5 events are of aggregate types that no pipeline matches: Invoice, Refund
      help: add the types to `match` of a pipeline, or remove the events: postrider prune \
      --unmatched --from sqlite:a.db
";
    assert!(text.ends_with(&expected.replace("prune       --", "prune --")), "{text}");
    let json = serde_json::to_string(&shown(&status).to_object()).unwrap();
    let expected = r#""unmatched":5,"unmatched_aggregate_types":["Invoice","Refund"],"#;
    assert!(json.contains(expected), "{json}");
}

#[test]
fn rates_are_shown_where_they_are_known() {
    let status = status();
    let mut view = shown(&status);
    let rates = Rates { published_per_second: Some(1234.56), backlog_per_second: -3.0 };
    view.rates = vec![Some(rates), None];
    let text = view.to_text();
    for row in [
        "LAST SETTLED              PUBLISHED/S  BACKLOG/S\n",
        "1970-01-01T00:00:00.000Z  1234.6       -3.0\n",
        "never                     -            -\n",
    ] {
        assert!(text.contains(row), "{text}");
    }
    let json = serde_json::to_string(&view.to_object()).unwrap();
    let expected = r#""rates":{"published_per_second":1234.56,"backlog_per_second":-3.0}}"#;
    assert!(json.contains(expected), "{json}");
}

#[test]
fn a_command_that_helps_can_be_copied() {
    let mut status = status();
    status.pipelines[0].unpublished = 1;
    status.pipelines[0].progress = None;
    let text = shown(&status).to_text();
    assert!(text.contains("help: postrider relay --from sqlite:a.db --to URL\n"), "{text}");
}
