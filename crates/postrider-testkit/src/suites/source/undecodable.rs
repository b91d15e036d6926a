//! Rows that are not events: handed out as such, so that they can be parked and others flow.

use postrider_relay::admin::Selection;
use postrider_relay::source::{Record, Undecodable, Verdict};

use super::reader::{Reader, parked};
use super::{CANARY, OutboxCapabilities, Subject, Tampering};
use crate::case;
use crate::suites::numbered::{event, key, numbers};
use crate::suites::{Case, process};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(rows_that_are_no_events_are_handed_out_as_such),
        case!(a_parked_row_is_out_of_the_way),
        case!(a_row_that_is_no_event_blocks_its_key_only),
        case!(a_released_row_that_is_no_event_comes_back),
        case!(a_row_that_is_no_event_can_be_retried_and_discarded),
        case!(nothing_of_the_row_shows_in_messages),
        case!(an_event_over_the_limit_is_parked_without_being_read)
            .needing(holds_oversize, "it holds no such row")
            .alone(),
    ]
}

/// How much more memory a row of 60 MB may take than none.
const HUGE_ROW_BYTES_MAX: usize = 32 << 20;

fn holds_oversize(can: &OutboxCapabilities) -> bool {
    can.tamperings.contains(&Tampering::Oversize)
}

fn bad(record: &Record) -> &Undecodable {
    match &record.event {
        Err(bad) => bad,
        Ok(event) => panic!("{event:?} should not be an event"),
    }
}

async fn tamper_all(outbox: &Subject, aggregate_id: &str) -> &'static [Tampering] {
    let tamperings = outbox.capabilities().tamperings;
    for tampering in tamperings {
        outbox.tamper(aggregate_id, *tampering).await;
    }
    tamperings
}

/// G-01, G-05: each kind, in its place.
async fn rows_that_are_no_events_are_handed_out_as_such(outbox: Subject) {
    outbox.write(&[event("a", 1)]).await;
    let tamperings = tamper_all(&outbox, "bad").await;
    outbox.write(&[event("a", 2)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(tamperings.len() + 2).await;
    assert_eq!(numbers(read.first()), [1]);
    assert_eq!(numbers(read.last()), [2]);
    for (record, tampering) in read[1..].iter().zip(tamperings) {
        let bad = bad(record);
        assert!(!bad.reason.is_empty(), "{tampering:?} has no reason");
        let expected = tampering.keeps_key().then(|| key("bad"));
        assert_eq!(bad.key, expected, "{tampering:?}: {}", bad.reason);
        assert!(record.size_bytes() < 10_000, "{tampering:?} takes memory");
    }
}

/// G-05, over a restart.
async fn a_parked_row_is_out_of_the_way(outbox: Subject) {
    let tamperings = tamper_all(&outbox, "bad").await;
    outbox.write(&[event("a", 1)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(tamperings.len() + 1).await;
    let (good, rows) = read.split_last().expect("something was read");
    reader.settle_all(rows, &parked(1)).await;
    reader.settle(&[(good, Verdict::Delivered)]).await;
    assert!(!reader.pending().await);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("all are settled").await;
    let admin = outbox.admin().await;
    let letters = admin.dead_letters(&Selection::default(), None, 100).await;
    let letters = letters.expect("dead letters can be listed");
    assert_eq!(letters.len(), tamperings.len());
    assert!(letters.iter().all(|letter| letter.attempts == 1));
}

/// G-05.
async fn a_row_that_is_no_event_blocks_its_key_only(outbox: Subject) {
    let tampering = outbox.capabilities().tamperings[0];
    outbox.tamper("bad", tampering).await;
    outbox.write(&[event("bad", 1), event("a", 2)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(3).await;
    let settlements =
        [(&read[0], parked(1)), (&read[1], Verdict::Queued), (&read[2], Verdict::Delivered)];
    reader.settle(&settlements).await;
    reader.expect_nothing("one is parked, one waits behind it").await;
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.blocked_at_start(), ["bad"]);
    let admin = outbox.admin().await;
    let discarded = admin.discard(&Selection::default()).await;
    assert_eq!(discarded.expect("dead letters can be discarded"), 1);
    assert_eq!(reader.drain().await, [1]);
}

/// G-01.
async fn a_released_row_that_is_no_event_comes_back(outbox: Subject) {
    let tamperings = tamper_all(&outbox, "bad").await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(tamperings.len()).await;
    reader.settle_all(&read, &Verdict::Released).await;
    for record in reader.read(tamperings.len()).await {
        bad(&record);
    }
}

/// A row that was mended by nobody is parked again; the operator decides.
async fn a_row_that_is_no_event_can_be_retried_and_discarded(outbox: Subject) {
    let tamperings = tamper_all(&outbox, "bad").await;
    let count = tamperings.len();
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(count).await;
    reader.settle_all(&read, &parked(1)).await;
    let admin = outbox.admin().await;
    let retried = admin.retry(&Selection::default()).await;
    assert_eq!(retried.expect("dead letters can be retried"), count as u64);
    let read = reader.read(count).await;
    assert!(read.iter().all(|record| record.returned));
    read.iter().for_each(|record| drop(bad(record).clone()));
    reader.settle_all(&read, &parked(2)).await;
    let discarded = admin.discard(&Selection::default()).await;
    assert_eq!(discarded.expect("dead letters can be discarded"), count as u64);
    reader.expect_nothing("all are discarded").await;
    assert!(!reader.pending().await);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("all are discarded").await;
    assert!(reader.resume.blocked_keys.is_empty());
}

/// G-11.
async fn nothing_of_the_row_shows_in_messages(outbox: Subject) {
    let tamperings = tamper_all(&outbox, "bad").await;
    let reader = Reader::start(&*outbox).await;
    for record in reader.read(tamperings.len()).await {
        let reason = &bad(&record).reason;
        assert!(!reason.contains(CANARY), "{reason}");
    }
}

/// G-07: it is found, parked, retried and discarded within the memory that any event may take.
async fn an_event_over_the_limit_is_parked_without_being_read(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    outbox.write(&[event("a", 1)]).await;
    let first = reader.read(1).await;
    reader.deliver(&first).await;
    outbox.tamper("bad", Tampering::Huge).await;
    outbox.write(&[event("bad", 2), event("a", 3)]).await;
    process::forget_peak();
    let before = process::peak_bytes();

    let read = reader.read(3).await;
    let reason = &bad(&read[0]).reason;
    assert!(reason.starts_with("payload has 60000000 bytes, the limit is 1048576"), "{reason}");
    let settlements =
        [(&read[0], parked(1)), (&read[1], Verdict::Queued), (&read[2], Verdict::Delivered)];
    reader.settle(&settlements).await;
    reader.expect_nothing("one is parked, one waits behind it").await;
    assert!(!reader.pending().await);
    reader.kill();

    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("it is not read again").await;
    assert_eq!(reader.blocked_at_start(), ["bad"]);
    let admin = outbox.admin().await;
    let letters = admin.dead_letters(&Selection::default(), None, 100).await;
    assert_eq!(letters.expect("dead letters can be listed").len(), 1);
    let retried = admin.retry(&Selection::default()).await;
    assert_eq!(retried.expect("dead letters can be retried"), 1);
    let read = reader.read(2).await;
    assert_eq!(&bad(&read[0]).reason, reason, "it is looked at where it is");
    reader.settle(&[(&read[0], parked(2)), (&read[1], Verdict::Queued)]).await;
    let discarded = admin.discard(&Selection::default()).await;
    assert_eq!(discarded.expect("dead letters can be discarded"), 1);
    assert_eq!(reader.drain().await, [2]);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("it was discarded").await;

    let grown = process::peak_bytes().saturating_sub(before);
    assert!(grown < HUGE_ROW_BYTES_MAX, "a row of 60 MB took {} MiB", grown >> 20);
}
