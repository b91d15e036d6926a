//! Events that are in no table: rows that are inserted and deleted in one transaction.

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::admin::Selection;
use postrider_relay::pipeline::{Ordering, PipelineError};
use postrider_relay::source::{SourceErrorKind, Verdict};
use postrider_relay::sources::{Mode, Progress, SourceSpec};
use postrider_testkit::chaos::{Bank, Running, cdc, until};
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::sleep;
use uuid::Uuid;

use crate::{Line, Reader, SLOTS, drop_slot, events, options, stubborn, write_elsewhere};

/// How `change` publishes.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It inserts and deletes.
    Deleted,
    /// A function does both.
    Message,
}

impl Way {
    const ALL: [Self; 2] = [Self::Deleted, Self::Message];

    /// A bank that publishes so.
    async fn bank(self) -> Arc<Bank> {
        let (before, after) = match self {
            Self::Deleted => ("END ", "DELETE FROM outbox WHERE xid = pg_current_xact_id();\nEND "),
            Self::Message => ("outbox_publish(", "outbox_publish_message("),
        };
        let bank = Bank::fresh().await;
        bank.run(&format!(
            "DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('change'::regproc),
                 '{before}', '{after}'); END $do$"
        ))
        .await;
        bank
    }
}

const IS_LOG_ONLY: &str = "SELECT count(*) FROM outbox_checkpoints WHERE log_only";

/// G-01, G-03, G-04: they are delivered as others are, over restarts, too.
#[tokio::test]
async fn they_are_delivered() {
    for way in Way::ALL {
        println!("{way:?}:");
        let bank = way.bank().await;
        let mut line = Line::start(&bank).await;
        let writing = stubborn().start(&bank);
        for _ in 0..3 {
            sleep(Duration::from_millis(300)).await;
            line = line.stopped(async |_| {}).await;
            sleep(Duration::from_millis(300)).await;
            line = line.killed(async |_| {}).await;
        }
        writing.stop().await;
        bank.until_delivered(&line.target).await;
        assert_eq!(bank.number("SELECT count(*) FROM outbox").await, 0);
        until("it is known", || async { bank.number(IS_LOG_ONLY).await == 1 }).await;
        line.finish_after(3).await;
    }
}

/// G-05: their payload is kept, because nothing else has it.
#[tokio::test]
async fn they_are_parked_with_their_payload_and_retried() {
    for way in Way::ALL {
        println!("{way:?}:");
        let bank = way.bank().await;
        let line = Line::start(&bank).await;
        line.target.behave(Behaviour::RefusesKey("7")).await;
        let refused = bank.change_often(7, 3).await;
        let others = bank.change_often(8, 3).await;
        line.target.until_arrived(&others).await;
        let admin = bank.admin().await;
        until("one is parked", || async {
            admin.dead_letters(&Selection::default(), None, 10).await.unwrap().len() == 1
        })
        .await;
        let letter = admin.dead_letters(&Selection::default(), None, 10).await.unwrap().remove(0);
        let letter = admin.dead_letter(&letter.event_id).await.unwrap().unwrap();
        let kept = format!("{{\"event\": {}}}", refused[0]);
        assert!(format!("{letter:?}").contains(&format!("{:?}", kept.as_bytes())), "{letter:?}");
        let line = line.stopped(async |_| {}).await;
        line.target.behave(Behaviour::Well).await;
        assert_eq!(bank.retry().await, 1);
        line.target.until_arrived(&refused).await;
        line.finish().await;
    }
}

/// What is given back is handed out again, and what was not settled comes after a restart.
#[tokio::test]
async fn they_are_released_and_come_again() {
    for way in Way::ALL {
        println!("{way:?}:");
        let bank = way.bank().await;
        let spec = cdc(bank.url());
        let reader = Reader::start(&bank, &spec).await;
        let all = bank.change_often(1, 5).await;
        let records = reader.read(5).await;
        assert_eq!(events(&records), all);
        reader.settle(&records[2..], Verdict::Released).await.unwrap();
        let again = reader.read(3).await;
        assert_eq!(events(&again), all[2..]);
        reader.deliver(&again[..1]).await;
        drop(reader);
        let reader = Reader::connect(&spec).await.unwrap();
        let again = reader.read(4).await;
        assert_eq!(events(&again), [all[0], all[1], all[3], all[4]]);
        let delay = Duration::from_millis(100);
        let deferred = Verdict::Deferred { delay, failure: None, blocks: true };
        reader.settle(&again[..1], deferred).await.unwrap();
        reader.settle(&again[1..], Verdict::Queued).await.unwrap();
        drop(reader);
        let reader = Reader::connect(&spec).await.unwrap();
        let again = reader.read(4).await;
        assert_eq!(events(&again), [all[0], all[1], all[3], all[4]]);
        reader.deliver(&again).await;
    }
}

/// G-01, G-10: a message that nobody has read yet is not lost with a slot that the relay itself
/// lets go of, and is missed with one that others have dropped.
#[tokio::test]
async fn a_message_that_was_not_read_yet_keeps_its_slot() {
    let bank = Way::Message.bank().await;
    let line = Line::start(&bank).await;
    let Line { target, spec, relay, .. } = line;
    relay.stop().await;
    assert_eq!(bank.number(IS_LOG_ONLY).await, 0);
    let events = bank.change_often(1, 1).await;
    let polled = SourceSpec { mode: Mode::Poll, ..spec.clone() };
    let error = Reader::connect(&polled).await.err().expect("its slot would be dropped");
    assert_eq!(error.kind, SourceErrorKind::Unsafe, "{}", error.details());
    let relay = Running::start_lasting(&spec, &target, options()).await;
    target.until_arrived(&events).await;
    relay.stop().await;
    // Another one, behind a slot that somebody drops.
    let bank = Way::Message.bank().await;
    let Line { spec, relay, .. } = Line::start(&bank).await;
    relay.stop().await;
    bank.change_often(1, 1).await;
    drop_slot(&bank).await;
    let error = Reader::connect(&spec).await.err().expect("it cannot be healed");
    assert_eq!(error.kind, SourceErrorKind::Unsafe, "{}", error.details());
}

/// G-01: nor if the slot keeps too much.
#[tokio::test]
async fn a_message_behind_a_sink_that_is_away_keeps_its_slot() {
    let bank = Bank::fresh().await;
    let spec =
        SourceSpec { lease: Duration::from_secs(3), max_retained_wal: 16 << 20, ..cdc(bank.url()) };
    let line = Line::start_with(&bank, spec).await;
    line.target.behave(Behaviour::Away).await;
    let mut events = bank.change_often(1, 100).await;
    bank.run(
        "DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('change'::regproc),
        'outbox_publish(', 'outbox_publish_message('); END $do$",
    )
    .await;
    events.extend(bank.change_often(1, 1).await);
    let client = bank.connect().await;
    write_elsewhere(&client, 40).await;
    // The slot is looked after every second.
    sleep(Duration::from_secs(4)).await;
    assert_eq!(bank.number(SLOTS).await, 1, "the slot is kept");
    line.target.behave(Behaviour::Well).await;
    line.target.until_arrived(&events).await;
}

/// G-10, F33: what is lost with a slot cannot be found, so nobody goes on as if nothing had been.
#[tokio::test]
async fn a_lost_slot_is_refused() {
    for way in Way::ALL {
        println!("{way:?}:");
        let bank = way.bank().await;
        let line = Line::start(&bank).await;
        let events = bank.change_often(1, 5).await;
        line.target.until_arrived(&events).await;
        until("it is known", || async { bank.number(IS_LOG_ONLY).await == 1 }).await;
        let Line { target, spec, relay, .. } = line;
        let refused = async |spec: &SourceSpec| {
            let error = match Reader::connect(spec).await {
                Err(error) => error,
                Ok(_) => panic!("it is read without a slot"),
            };
            assert_eq!(error.kind, SourceErrorKind::Unsafe, "{}", error.details());
            error
        };
        relay.stop().await;
        let polled = SourceSpec { mode: Mode::Poll, ..spec.clone() };
        let side_by_side =
            SourceSpec { progress: Progress::Mark, ordering: Ordering::None, ..polled.clone() };
        for spec in [&polled, &side_by_side] {
            refused(spec).await;
            assert_eq!(bank.number(SLOTS).await, 1, "the slot is kept");
        }
        let relay = Running::start_lasting(&spec, &target, crate::options()).await;
        let events = bank.change_often(1, 5).await;
        target.until_arrived(&events).await;
        // While it runs.
        drop_slot(&bank).await;
        match relay.ended().await {
            Err(PipelineError::Source(error)) => {
                assert_eq!(error.kind, SourceErrorKind::Unsafe, "{}", error.details());
            }
            other => panic!("{other:?}"),
        }
        // A message is refused where no slot would read it.
        if let Way::Deleted = way {
            bank.change_often(1, 5).await;
        }
        for spec in [&spec, &polled, &side_by_side] {
            let held = "SELECT count(*) FROM outbox_leases WHERE expires_at > clock_timestamp()";
            until("the lease is given back", || async { bank.number(held).await == 0 }).await;
            let error = refused(spec).await;
            let command = "postrider slot drop default";
            assert!(error.details().contains(command), "{}", error.details());
        }
        assert_eq!(bank.number(SLOTS).await, 0, "no slot is made by itself");
    }
}

/// G-01: every login of the database can write logical messages, and none of them is an event, blocks a
/// key, stops the relay or makes it keep its slot.
#[tokio::test]
async fn messages_of_any_login_are_no_events() {
    let bank = Bank::fresh().await;
    let line = Line::start(&bank).await;
    let mut all = bank.change_often(1, 1).await;
    line.target.until_arrived(&all).await;
    let stranger = bank.connect().await;
    let role = format!("stranger_{}", Uuid::now_v7().simple());
    bank.run(&format!("CREATE ROLE {role}")).await;
    stranger.batch_execute(&format!("SET ROLE {role}")).await.unwrap();
    let outbox = "current_schema() || '.outbox'";
    let fields = [
        ("7", "'0192f4c2-7f0e-7c3a-8f00-000000000001'", "AccountChanged"),
        ("8", "'0192f4c2-7f0e-7c3a-8f00-000000000002'", ""),
        ("9", "repeat('x', 9600)", "AccountChanged"),
        ("9223372036854775807", "'0192f4c2-7f0e-7c3a-8f00-000000000003'", "AccountChanged"),
    ];
    for (seq, id, event_type) in fields {
        let header = format!(
            "jsonb_build_object('outbox', {outbox}, 'seq', {seq}::bigint, 'id', {id},
                 'aggregate_type', 'Account', 'aggregate_id', '1', 'event_type', '{event_type}',
                 'event_version', 1, 'content_type', 'application/json', 'headers', '{{}}'::jsonb,
                 'topic', NULL, 'occurred_at', 0, 'deliver_after', NULL)::text"
        );
        let forged = format!(
            "SELECT pg_logical_emit_message(true, 'postrider',
                 {header} || E'\\n' || '{{\"event\": 900000}}')"
        );
        stranger.batch_execute(&forged).await.unwrap();
    }
    stranger.batch_execute("RESET ROLE").await.unwrap();
    all.extend(bank.change_often(1, 5).await);
    line.target.until_arrived(&all).await;
    assert!(!line.target.has(900_000), "a forged event was delivered");
    let letters = bank.admin().await.dead_letters(&Selection::default(), None, 10).await.unwrap();
    assert!(letters.is_empty(), "{letters:?}");
    assert_eq!(bank.number(IS_LOG_ONLY).await, 0);
    bank.run(&format!("DROP ROLE {role}")).await;
    line.finish().await;
}
