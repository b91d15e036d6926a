use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + seconds(1_000_000)
}

/// A pipeline at which nothing is wrong.
fn green() -> PipelineStatus {
    PipelineStatus {
        name: "orders".into(),
        progress: Some("cursor".into()),
        unpublished: 3,
        oldest_unpublished_age: Some(seconds(1)),
        parked: 0,
        queued: 0,
        deferred: 0,
        blocked_keys: 0,
        last_settled_at: Some(now() - seconds(1)),
        trouble: None,
        leases: vec![LeaseStatus {
            shard: 0,
            owner: Some("relay-1".into()),
            epoch: 1,
            expires_in: seconds(9),
        }],
        slot: None,
        paused: None,
        paused_keys: Default::default(),
    }
}

fn slot(state: SlotState) -> SlotStatus {
    SlotStatus {
        name: "postrider_orders_12345678".into(),
        state,
        wal_status: Some("reserved".into()),
        active_pid: Some(7),
        confirmed_flush_lsn: None,
        checkpoint_lsn: None,
        retained_bytes: Some(1 << 20),
        safe_bytes: Some(1 << 30),
        lag_bytes: Some(0),
        log_only: false,
    }
}

fn codes(pipeline: &PipelineStatus) -> Vec<(&'static str, Level)> {
    let reasons = reasons(pipeline, &Thresholds::default(), now());
    reasons.iter().map(|reason| (reason.code, reason.level)).collect()
}

#[test]
fn what_works_is_green() {
    assert_eq!(codes(&green()), []);
    assert_eq!(verdict(&[]), Level::Ok);
    let idle = PipelineStatus {
        unpublished: 0,
        oldest_unpublished_age: None,
        last_settled_at: None,
        progress: None,
        leases: Vec::new(),
        ..green()
    };
    assert_eq!(codes(&idle), []);
    // A relay that was stopped leaves its lease, which is nothing as long as nothing waits.
    let mut stopped = PipelineStatus { unpublished: 0, oldest_unpublished_age: None, ..green() };
    stopped.leases[0].owner = None;
    stopped.leases[0].expires_in = seconds(0);
    assert_eq!(codes(&stopped), []);
    let streams = PipelineStatus { slot: Some(slot(SlotState::Streams)), ..green() };
    assert_eq!(codes(&streams), []);
}

#[test]
fn what_waits_too_long_is_named() {
    let late = |age, settled| PipelineStatus {
        oldest_unpublished_age: Some(seconds(age)),
        last_settled_at: Some(now() - seconds(settled)),
        ..green()
    };
    assert_eq!(codes(&late(59, 3_600)), []);
    assert_eq!(codes(&late(60, 1)), [("late", Level::Warn)]);
    assert_eq!(codes(&late(600, 1)), [("late", Level::Fail)]);
    assert_eq!(codes(&late(61, 90)), [("not_settling", Level::Fail), ("late", Level::Warn)]);
    let never = PipelineStatus { last_settled_at: None, ..late(61, 1) };
    assert_eq!(codes(&never), [("not_settling", Level::Fail), ("late", Level::Warn)]);
    let reasons = reasons(&late(61, 90), &Thresholds::default(), now());
    assert_eq!(reasons[0].what, "nothing was settled for 1m 30s: the relay cannot publish");
    assert_eq!(reasons[1].what, "3 events wait, the oldest for 1m 1s");
    assert_eq!(verdict(&reasons), Level::Fail);
}

#[test]
fn events_without_a_relay_are_named() {
    let mut pipeline = green();
    pipeline.leases[0].expires_in = seconds(0);
    let found = reasons(&pipeline, &Thresholds::default(), now());
    assert_eq!(found[0].what, "no relay has the lease (relay-1 let it expire), and 3 events wait");
    assert_eq!(found[0].command.as_deref(), Some("postrider relay"));
    pipeline.leases.push(LeaseStatus { shard: 1, owner: None, ..pipeline.leases[0].clone() });
    pipeline.leases[0].expires_in = seconds(9);
    let found = reasons(&pipeline, &Thresholds::default(), now());
    assert_eq!(found[0].what, "no relay has the lease of 1 of 2 shards, and 3 events wait");
    let never = PipelineStatus { progress: None, leases: Vec::new(), ..green() };
    assert_eq!(codes(&never), [("never_run", Level::Warn)]);
    let late = PipelineStatus { oldest_unpublished_age: Some(seconds(90)), ..never };
    assert_eq!(codes(&late), [("never_run", Level::Fail), ("late", Level::Warn)]);
}

#[test]
fn dead_letters_and_what_is_behind_them_are_named() {
    let pipeline = PipelineStatus { parked: 2, blocked_keys: 1, queued: 3, ..green() };
    let found = reasons(&pipeline, &Thresholds::default(), now());
    assert_eq!(found[0].what, "2 events are parked; 1 key is blocked, with 3 events behind");
    assert_eq!(found[0].command.as_deref(), Some("postrider dlq list --pipeline orders"));
    let retried = PipelineStatus { blocked_keys: 2, ..green() };
    assert_eq!(codes(&retried), [("blocked", Level::Warn)]);
}

#[test]
fn a_slot_in_trouble_is_named() {
    let with = |slot| PipelineStatus { slot: Some(slot), ..green() };
    assert_eq!(codes(&with(slot(SlotState::Missing))), [("slot_lost", Level::Warn)]);
    let log_only = SlotStatus { log_only: true, ..slot(SlotState::Lost) };
    assert_eq!(codes(&with(log_only)), [("slot_lost", Level::Fail)]);
    let unread = SlotStatus { active_pid: None, ..slot(SlotState::Streams) };
    assert_eq!(codes(&with(unread)), [("slot_inactive", Level::Warn)]);
    let full = SlotStatus { safe_bytes: Some(1 << 18), ..slot(SlotState::Streams) };
    assert_eq!(codes(&with(full)), [("slot_wal", Level::Warn)]);
    let beyond = SlotStatus { wal_status: Some("unreserved".into()), ..slot(SlotState::Streams) };
    assert_eq!(codes(&with(beyond)), [("slot_wal", Level::Fail)]);
    let unlimited = SlotStatus { safe_bytes: None, ..slot(SlotState::Streams) };
    assert_eq!(codes(&with(unlimited)), []);
}

#[test]
fn a_key_that_is_paused_is_no_key_in_trouble() {
    let key = |id: &str| postrider::Key { aggregate_type: "Order".into(), aggregate_id: id.into() };
    let first = vec![key("1"), key("2")];
    let paused_keys = PausedKeys { count: 2, first, waiting: 1 };
    let paused = PipelineStatus { blocked_keys: 1, deferred: 1, paused_keys, ..green() };
    assert_eq!(codes(&paused), [("paused_keys", Level::Warn)]);
    let reasons = reasons(&paused, &Thresholds::default(), now());
    assert_eq!(reasons[0].what, "2 keys are paused: Order/1, Order/2");
    assert_eq!(reasons[0].command.as_deref(), Some("postrider resume --key Order/1"));
    let both = PipelineStatus { blocked_keys: 2, ..paused };
    assert_eq!(codes(&both), [("paused_keys", Level::Warn), ("blocked", Level::Warn)]);
}

#[test]
fn a_sink_in_trouble_is_told_with_its_error() {
    let trouble = |seconds| {
        let since = now() - Duration::from_secs(seconds);
        let trouble = Some(SinkTrouble { why: "answered 403".to_owned(), since });
        reasons(&PipelineStatus { trouble, ..green() }, &Thresholds::default(), now())
    };
    let found = trouble(5);
    assert_eq!((found[0].code, found[0].level), ("trouble", Level::Warn));
    assert_eq!(found[0].what, "the sink has been in trouble for 5s: answered 403");
    assert_eq!(trouble(90)[0].level, Level::Fail);
}
