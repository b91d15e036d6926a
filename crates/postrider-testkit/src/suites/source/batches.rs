//! Batches are bounded, in events and in bytes.

use std::time::Duration;

use postrider::Event;
use postrider::event::PAYLOAD_BYTES_MAX;
use postrider_relay::source::{BatchLimit, Record, Verdict};

use super::reader::{Reader, deferred};
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, numbers, spread};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(a_batch_is_bounded_in_events),
        case!(a_batch_is_bounded_in_bytes),
        case!(an_event_larger_than_the_bound_comes_alone),
        case!(released_events_are_bounded_as_well),
        case!(returned_events_are_bounded_as_well),
        case!(a_limit_of_nothing_still_moves),
    ]
}

const KIBI: usize = 1024;

fn of_size(number: u32, bytes: usize) -> Event {
    building(&number.to_string(), number)
        .payload(vec![b'x'; bytes], "text/plain")
        .build()
        .expect("the payload is within its limit")
}

async fn batch(reader: &Reader, events: usize, bytes: usize) -> Vec<Record> {
    let wait = Duration::from_secs(5);
    let limit = BatchLimit { events, bytes, wait };
    let batch = reader.source.next_batch(limit).await;
    batch.expect("the source can be read")
}

/// Reads everything in batches of so many bytes and checks each.
async fn read_bounded(reader: &Reader, count: usize, bytes: usize) -> Vec<Record> {
    let mut records = Vec::new();
    while records.len() < count {
        let batch = batch(reader, 100, bytes).await;
        let size: usize = batch.iter().map(Record::size_bytes).sum();
        assert!(!batch.is_empty(), "{} of {count} came", records.len());
        assert!(size <= bytes || batch.len() == 1, "{size} bytes in {} events", batch.len());
        records.extend(batch);
    }
    records
}

/// G-07.
async fn a_batch_is_bounded_in_events(outbox: Subject) {
    outbox.write(&spread(3, 1..8)).await;
    let reader = Reader::start(&*outbox).await;
    assert_eq!(batch(&reader, 3, usize::MAX).await.len(), 3);
    assert_eq!(batch(&reader, 3, usize::MAX).await.len(), 3);
    assert_eq!(numbers(&batch(&reader, 3, usize::MAX).await), [7]);
}

/// G-07.
async fn a_batch_is_bounded_in_bytes(outbox: Subject) {
    let events: Vec<_> = (1..=12).map(|number| of_size(number, KIBI)).collect();
    outbox.write(&events).await;
    let reader = Reader::start(&*outbox).await;
    let read = read_bounded(&reader, 12, 3 * KIBI + KIBI / 2).await;
    assert_eq!(numbers(&read), (1..=12).collect::<Vec<_>>());
}

/// G-07: it could never come otherwise.
async fn an_event_larger_than_the_bound_comes_alone(outbox: Subject) {
    let events =
        [of_size(1, KIBI), of_size(2, PAYLOAD_BYTES_MAX), of_size(3, 0), of_size(4, 10 * KIBI)];
    outbox.write(&events).await;
    let reader = Reader::start(&*outbox).await;
    let read = read_bounded(&reader, 4, 2 * KIBI).await;
    assert_eq!(numbers(&read), [1, 2, 3, 4]);
    let sizes: Vec<_> = read
        .iter()
        .map(|record| record.event.as_ref().map_or(0, |event| event.payload().len()))
        .collect();
    assert_eq!(sizes, [KIBI, PAYLOAD_BYTES_MAX, 0, 10 * KIBI]);
}

/// G-07.
async fn released_events_are_bounded_as_well(outbox: Subject) {
    let events: Vec<_> = (1..=8).map(|number| of_size(number, KIBI)).collect();
    outbox.write(&events).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(8).await;
    reader.settle_all(&read, &Verdict::Released).await;
    assert_eq!(batch(&reader, 2, usize::MAX).await.len(), 2);
    let rest = read_bounded(&reader, 6, 2 * KIBI + KIBI / 2).await;
    assert_eq!(numbers(&rest), [3, 4, 5, 6, 7, 8]);
}

/// G-07: one key with a long queue behind it, and keys of their own.
async fn returned_events_are_bounded_as_well(outbox: Subject) {
    let in_one_key = |number| {
        building("long", number)
            .payload(vec![b'x'; KIBI], "text/plain")
            .build()
            .expect("the payload is within its limit")
    };
    let mut events: Vec<_> = (1..=8).map(in_one_key).collect();
    events.extend((9..=12).map(|number| of_size(number, KIBI)));
    outbox.write(&events).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(12).await;
    let mut settlements = vec![(&read[0], deferred(Duration::ZERO, 1))];
    settlements.extend(read[1..8].iter().map(|record| (record, Verdict::Queued)));
    settlements.extend(read[8..].iter().map(|record| (record, deferred(Duration::ZERO, 1))));
    reader.settle(&settlements).await;
    assert_eq!(batch(&reader, 1, usize::MAX).await.len(), 1);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    let mut back = Vec::new();
    while back.len() < 12 {
        let batch = read_bounded(&reader, 1, 3 * KIBI + KIBI / 2).await;
        back.extend(numbers(&batch));
        reader.deliver(&batch).await;
    }
    let in_long: Vec<_> = back.iter().filter(|number| **number <= 8).collect();
    assert!(in_long.is_sorted(), "{back:?}");
    back.sort_unstable();
    assert_eq!(back, (1..=12).collect::<Vec<_>>());
}

/// A window that is full of bytes must not bring the source to a halt.
async fn a_limit_of_nothing_still_moves(outbox: Subject) {
    outbox.write(&spread(3, 1..3)).await;
    let reader = Reader::start(&*outbox).await;
    assert_eq!(numbers(&batch(&reader, 0, 0).await), [1]);
    assert_eq!(numbers(&batch(&reader, 0, 0).await), [2]);
}
