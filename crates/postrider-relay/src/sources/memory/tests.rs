//! The outbox in memory keeps the contract.

use std::time::Duration;

use super::*;
use crate::admin::{Admin, Selection};
use crate::failure::{Failure, FailureKind};
use crate::source::{Handle, SourceErrorKind, Verdict};

fn outbox(events: &[&str]) -> MemoryOutbox {
    let outbox = MemoryOutbox::new();
    outbox.append(events.iter().map(|event| {
        let (key, event_type) = event.split_once(':').unwrap();
        Event::builder("Order", key, event_type).build().unwrap()
    }));
    outbox
}

fn limit(events: usize) -> BatchLimit {
    BatchLimit { events, bytes: 1 << 20, wait: Duration::ZERO }
}

fn key(id: &str) -> Key {
    Key { aggregate_type: "Order".to_owned(), aggregate_id: id.to_owned() }
}

fn types(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.event.as_ref().unwrap().event_type()).collect()
}

async fn settle(source: &MemorySource, verdicts: &[(Handle, Verdict)]) -> Settled {
    let settlements: Vec<Settlement> = verdicts
        .iter()
        .map(|(handle, verdict)| Settlement { handle: *handle, verdict: verdict.clone() })
        .collect();
    source.settle(&settlements).await.unwrap()
}

fn parked(blocks: bool) -> Verdict {
    let failure =
        Failure { kind: FailureKind::Rejected, message: "too large".to_owned(), attempts: 2 };
    Verdict::Parked { failure, blocks }
}

fn deferred(delay: Duration) -> Verdict {
    Verdict::Deferred { delay, failure: None, blocks: true }
}

#[tokio::test]
async fn a_restart_hands_out_what_is_unsettled_and_refuses_the_old_source() {
    let outbox = outbox(&["a:1", "b:2", "a:3"]);
    let first = outbox.connect();
    assert_eq!(first.resume().await.unwrap().crashes, 0);
    let records = first.next_batch(limit(2)).await.unwrap();
    settle(&first, &[(records[0].handle, Verdict::Delivered)]).await;

    let second = outbox.connect();
    assert_eq!(second.resume().await.unwrap().crashes, 1);
    let error = first.settle(&[]).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Lost);
    let records = second.next_batch(limit(9)).await.unwrap();
    assert_eq!(types(&records), ["2", "3"]);
    let all: Vec<_> = records.iter().map(|r| (r.handle, Verdict::Delivered)).collect();
    settle(&second, &all).await;
    settle(&second, &all).await;
    assert!(!second.pending().await.unwrap());
    Box::new(second).close().await.unwrap();
    assert_eq!(outbox.connect().resume().await.unwrap().crashes, 0);
    assert_eq!(outbox.unpublished(), 0);
}

#[tokio::test]
async fn a_parked_event_holds_its_key_until_it_is_retried() {
    let outbox = outbox(&["a:1", "a:2", "b:3"]);
    let source = outbox.connect();
    let records = source.next_batch(limit(9)).await.unwrap();
    let verdicts = [
        (records[0].handle, parked(true)),
        (records[1].handle, Verdict::Queued),
        (records[2].handle, Verdict::Released),
    ];
    assert!(settle(&source, &verdicts).await.unblocked.is_empty());
    assert_eq!(outbox.connect().resume().await.unwrap().blocked_keys, [key("a")]);

    let source = outbox.connect();
    let records = source.next_batch(limit(9)).await.unwrap();
    assert_eq!(types(&records), ["3"]);
    settle(&source, &[(records[0].handle, Verdict::Delivered)]).await;
    assert!(!source.pending().await.unwrap());

    let letters = outbox.dead_letters(&Selection::default(), None, 9).await.unwrap();
    assert_eq!((letters.len(), letters[0].queued_behind, letters[0].attempts), (1, 1, 2));
    assert!(outbox.dead_letter(&letters[0].event_id).await.unwrap().is_some());
    assert_eq!(outbox.retry(&Selection::default()).await.unwrap(), 1);
    let records = source.next_batch(limit(9)).await.unwrap();
    assert_eq!(types(&records), ["1", "2"]);
    assert!(records.iter().all(|record| record.returned && record.attempts == 0));
    settle(&source, &[(records[1].handle, Verdict::Queued)]).await;
    let settled = settle(&source, &[(records[0].handle, Verdict::Delivered)]).await;
    assert!(settled.unblocked.is_empty());
    let records = source.next_batch(limit(9)).await.unwrap();
    assert_eq!(types(&records), ["2"]);
    let settled = settle(&source, &[(records[0].handle, Verdict::Delivered)]).await;
    assert_eq!(settled.unblocked, [key("a")]);
    assert!(outbox.set_aside().is_empty());
}

#[tokio::test]
async fn a_discard_wakes_what_waits_behind() {
    let outbox = outbox(&["a:1", "a:2"]);
    let source = outbox.connect();
    let records = source.next_batch(limit(9)).await.unwrap();
    settle(&source, &[(records[0].handle, parked(true)), (records[1].handle, Verdict::Queued)])
        .await;
    assert_eq!(outbox.status().await.unwrap().pipelines[0].queued, 1);
    assert_eq!(outbox.discard(&Selection::default()).await.unwrap(), 1);
    let records = source.next_batch(limit(9)).await.unwrap();
    assert_eq!(types(&records), ["2"]);
}

#[tokio::test]
async fn a_waiting_reader_is_woken_by_an_append_and_by_the_clock() {
    let outbox = outbox(&["a:1"]);
    let source = outbox.connect();
    let records = source.next_batch(limit(9)).await.unwrap();
    settle(&source, &[(records[0].handle, deferred(Duration::from_millis(20)))]).await;
    assert!(source.next_batch(limit(9)).await.unwrap().is_empty());
    let patient = BatchLimit { wait: Duration::from_secs(60), ..limit(9) };
    assert_eq!(types(&source.next_batch(patient).await.unwrap()), ["1"]);

    let append = async {
        tokio::task::yield_now().await;
        outbox.append_undecodable(None, "broken");
    };
    let (batch, ()) = tokio::join!(source.next_batch(patient), append);
    let batch = batch.unwrap();
    assert_eq!(batch[0].event.as_ref().unwrap_err().reason, "broken");
    settle(&source, &[(batch[0].handle, parked(true))]).await;
    assert!(!outbox.set_aside().last().unwrap().blocks, "without a key it blocks nothing");
}

#[tokio::test]
async fn a_generated_outbox_keeps_the_contract_without_storing_anything() {
    let outbox = MemoryOutbox::generated(Generated { keys: 3, ..Generated::new(10) });
    let source = outbox.connect();
    let first = source.next_batch(limit(4)).await.unwrap();
    let source = outbox.connect();
    let again = source.next_batch(limit(100)).await.unwrap();
    assert_eq!(again.len(), 10);
    let event = |record: &Record| record.event.as_ref().unwrap().clone();
    assert_eq!(event(&first[0]), event(&again[0]), "an event is the same each time");
    assert_eq!(event(&first[0]).payload().len(), 200);
    assert_eq!(event(&first[0]).id().get_version_num(), 7);
    assert_eq!(event(&again[0]).key(), event(&again[3]).key());
    assert_ne!(event(&again[0]).id(), event(&again[3]).id());

    settle(&source, &[(again[0].handle, parked(true)), (again[3].handle, Verdict::Queued)]).await;
    let rest: Vec<_> = again.iter().map(|r| (r.handle, Verdict::Delivered)).collect();
    settle(&source, &rest).await;
    assert_eq!(outbox.unpublished(), 0);
    assert_eq!(outbox.set_aside().len(), 2);
    assert!(source.next_batch(limit(9)).await.unwrap().is_empty());
}

/// Prints how fast events are made and settled: `cargo test --release -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn generating_is_fast() {
    const EVENTS: u64 = 2_000_000;
    let source = MemoryOutbox::generated(Generated::new(EVENTS)).connect();
    let started = std::time::Instant::now();
    loop {
        let records = source.next_batch(limit(2000)).await.unwrap();
        if records.is_empty() {
            break;
        }
        let all: Vec<Settlement> = records
            .iter()
            .map(|r| Settlement { handle: r.handle, verdict: Verdict::Delivered })
            .collect();
        source.settle(&all).await.unwrap();
    }
    println!("{:.0} events/s", EVENTS as f64 / started.elapsed().as_secs_f64());
}
