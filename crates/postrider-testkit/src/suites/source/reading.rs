//! Reading: what comes, in which order, and how long a read waits.

use std::time::{Duration, SystemTime};

use postrider::Event;
use tokio::time::Instant;

use super::reader::Reader;
use super::{Connection, OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{event, events, numbers, spread};
use crate::suites::waiting::within;

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(the_source_declares_what_it_can_do),
        case!(events_come_in_the_order_of_the_outbox),
        case!(every_field_comes_back_as_it_was_written),
        case!(an_empty_outbox_gives_an_empty_batch_after_the_wait),
        case!(a_commit_ends_the_wait),
        case!(only_the_named_aggregate_types_are_read)
            .needing(|can| can.filters, "the source reads every aggregate type"),
    ]
}

/// The suite relies on what is declared.
async fn the_source_declares_what_it_can_do(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    let declared = reader.source.capabilities();
    assert_eq!(declared.shared, outbox.capabilities().shared);
    assert!(!declared.name.is_empty());
}

/// G-03.
async fn events_come_in_the_order_of_the_outbox(outbox: Subject) {
    for first in [1, 31, 61] {
        outbox.write(&spread(7, first..first + 30)).await;
    }
    let reader = Reader::start(&*outbox).await;
    let mut found = Vec::new();
    while found.len() < 90 {
        let batch = reader.batch(33, Duration::from_secs(5)).await;
        assert!(batch.iter().all(|record| !record.returned));
        assert!(batch.iter().all(|record| record.attempts == 0));
        found.extend(numbers(&batch));
    }
    assert_eq!(found, (1..=90).collect::<Vec<_>>());
    reader.expect_nothing("everything was read").await;
}

/// G-04: what is sent is what was written.
async fn every_field_comes_back_as_it_was_written(outbox: Subject) {
    // Databases keep microseconds.
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_767_323_045_123_456);
    let rich = Event::builder("Bestellung 🛒", "ключ\"'%", "Ereignis/é")
        .version(u32::MAX)
        .payload(vec![0, 255, b'\n', 0], "application/octet-stream")
        .header("empty", "")
        .header("schlüssel", "wert \"quoted\" \\ ✓")
        .topic("orders.eu")
        .occurred_at(time)
        .deliver_after(time)
        .build()
        .expect("the event is valid");
    let empty = Event::builder("Order", "0", "Nothing")
        .payload("", "text/plain")
        .occurred_at(time)
        .build()
        .expect("the event is valid");
    outbox.write(&[rich.clone(), empty.clone()]).await;
    let reader = Reader::start(&*outbox).await;
    for (record, written) in reader.read(2).await.iter().zip([&rich, &empty]) {
        let event = record.event.as_ref().expect("the event can be decoded");
        assert_eq!(&**event, written);
        assert_eq!(record.delay, None, "its time has come");
    }
}

async fn an_empty_outbox_gives_an_empty_batch_after_the_wait(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    let wait = Duration::from_millis(120);
    let started = Instant::now();
    assert!(reader.batch(10, wait).await.is_empty());
    assert!(started.elapsed() >= wait, "it gave up too early");
    let started = Instant::now();
    assert!(reader.batch(10, Duration::ZERO).await.is_empty());
    assert!(started.elapsed() < Duration::from_secs(5), "it waited");
}

/// An event is published soon after its commit.
async fn a_commit_ends_the_wait(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("the outbox is empty").await;
    let reading = reader.batch(10, Duration::from_secs(25));
    let (batch, ()) = tokio::join!(within("a read that is woken", reading), async {
        outbox.write(&[event("a", 1)]).await;
    });
    assert_eq!(numbers(&batch), [1]);
}

/// The other events are neither read nor lost.
async fn only_the_named_aggregate_types_are_read(outbox: Subject) {
    let other = Event::builder("Invoice", "a", "Other").build().expect("the event is valid");
    outbox.write(&[event("a", 1), other, event("a", 2)]).await;
    let connection = Connection { aggregate_types: &["Order"], ..Connection::default() };
    let reader = Reader::try_start(&*outbox, connection).await.expect("the outbox can be read");
    assert_eq!(reader.drain().await, [1, 2]);
    assert!(!reader.pending().await, "nothing is left for this pipeline");
    outbox.write(&events("b", 3..5)).await;
    assert_eq!(reader.drain().await, [3, 4]);
}
