use std::time::Duration;

use postrider_relay::slots::{SlotState, SlotStatus};

use super::*;
use crate::error::Code;

fn pipeline(name: &str, age_ms: u64, parked: u64) -> PipelineStatus {
    PipelineStatus {
        name: name.into(),
        progress: Some("cursor".into()),
        unpublished: 1,
        oldest_unpublished_age: Some(Duration::from_millis(age_ms)),
        parked,
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

fn status(pipelines: Vec<PipelineStatus>) -> OutboxStatus {
    let unmatched = Default::default();
    OutboxStatus {
        database: "postgres",
        table: "outbox".into(),
        written: None,
        pipelines,
        unmatched,
    }
}

fn slot(state: SlotState, retained: u64) -> SlotStatus {
    SlotStatus {
        name: "postrider_orders_12345678".into(),
        state,
        wal_status: None,
        active_pid: Some(1),
        confirmed_flush_lsn: None,
        checkpoint_lsn: None,
        retained_bytes: Some(retained),
        safe_bytes: None,
        lag_bytes: None,
        log_only: false,
    }
}

const LAG: Figure = Figure { unit: Unit::Lag, warn: 30.0, crit: 60.0 };
const WAL: Figure = Figure { unit: Unit::RetainedWal, warn: 1024.0, crit: 4096.0 };

#[test]
fn the_line_is_that_of_nagios() {
    let one = status(vec![pipeline("orders", 1_200, 0)]);
    let report = LAG.report(&one, None);
    assert_eq!(report.exit_code, 0);
    assert_eq!(
        report.line,
        "OUTBOX LAG OK - the oldest event waits for 1.2s | orders=1.200s;30;60;0"
    );
    let two = status(vec![pipeline("orders", 1_200, 2), pipeline("my audit", 30_000, 0)]);
    let report = LAG.report(&two, None);
    assert_eq!(report.exit_code, 1);
    assert_eq!(
        report.line,
        "OUTBOX LAG WARNING - the oldest event waits for 30.0s (my audit) | \
         orders=1.200s;30;60;0 'my audit'=30.000s;30;60;0"
    );
    assert_eq!(LAG.report(&two, Some("orders")).exit_code, 0);
    let parked = Figure { unit: Unit::Parked, warn: 1.0, crit: 2.0 }.report(&two, None);
    assert_eq!(parked.exit_code, 2);
    assert!(
        parked
            .line
            .starts_with("OUTBOX DLQ CRITICAL - 2 events are parked (orders) | orders=2;1;2;0")
    );
}

#[test]
fn what_cannot_be_found_out_is_unknown() {
    let report = LAG.report(&status(vec![pipeline("orders", 0, 0)]), Some("x|y"));
    assert_eq!((report.exit_code, report.state), (3, "UNKNOWN"));
    assert_eq!(report.line, "OUTBOX LAG UNKNOWN - no pipeline \"x/y\" has read outbox");
    let error = CliError::new(Code::SourceUnavailable, "cannot connect\nto it");
    let report = LAG.unknown(&error);
    assert_eq!(report.line, "OUTBOX LAG UNKNOWN - cannot connect\\nto it");
}

#[test]
fn a_slot_that_is_of_no_use_is_critical() {
    let with = |slot| status(vec![PipelineStatus { slot, ..pipeline("orders", 0, 0) }]);
    for (state, retained, code) in [
        (SlotState::Streams, 1_023, 0),
        (SlotState::Streams, 1_024, 1),
        (SlotState::Streams, 4_096, 2),
        (SlotState::Lost, 0, 2),
    ] {
        let report = WAL.report(&with(Some(slot(state, retained))), None);
        assert_eq!(report.exit_code, code, "{}", report.line);
    }
    let none = WAL.report(&with(None), None);
    assert_eq!(
        (none.exit_code, none.line.as_str()),
        (0, "OUTBOX SLOT OK - no pipeline has a slot")
    );
}
