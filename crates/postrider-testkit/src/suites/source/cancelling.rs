//! A future that is dropped half way loses nothing.

use std::time::Duration;

use postrider_relay::source::{BatchLimit, Record, Settlement, Source, Verdict};

use super::reader::{Reader, deferred, parked};
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{events, numbers, spread};
use crate::suites::waiting::{turns, until};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(a_read_that_is_given_up_loses_and_reorders_nothing),
        case!(a_read_that_is_given_up_keeps_to_the_next_limit),
        case!(a_read_that_is_given_up_lets_nothing_overtake),
        case!(a_settlement_that_is_given_up_happened_or_not),
    ]
}

/// A read that is dropped after so many turns, unless it ends before.
async fn impatient(source: &dyn Source, limit: BatchLimit, patience: usize) -> Vec<Record> {
    tokio::select! {
        biased;
        batch = source.next_batch(limit) => batch.expect("the source can be read"),
        () = turns(patience) => Vec::new(),
    }
}

/// G-01, G-03, while a writer writes.
async fn a_read_that_is_given_up_loses_and_reorders_nothing(outbox: Subject) {
    const EVENTS: u32 = 200;
    let reader = Reader::start(&*outbox).await;
    let writing = async {
        for first in (1..=EVENTS).step_by(5) {
            outbox.write(&spread(3, first..first + 5)).await;
            turns(3).await;
        }
    };
    let reading = async {
        let mut rng = fastrand::Rng::with_seed(3);
        let mut read = Vec::new();
        while read.len() < EVENTS as usize {
            let wait = Duration::from_millis(rng.u64(0..3));
            let limit = BatchLimit { events: rng.usize(1..8), bytes: 4096, wait };
            read.extend(impatient(&*reader.source, limit, rng.usize(0..12)).await);
        }
        read
    };
    let (read, ()) = tokio::join!(reading, writing);
    assert_eq!(numbers(&read), (1..=EVENTS).collect::<Vec<_>>());
    reader.deliver(&read).await;
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("everything was delivered").await;
}

/// G-07: what was found for a large read is not forced on a small one.
async fn a_read_that_is_given_up_keeps_to_the_next_limit(outbox: Subject) {
    outbox.write(&spread(3, 1..21)).await;
    let reader = Reader::start(&*outbox).await;
    let wait = Duration::from_secs(5);
    let large = BatchLimit { events: 20, bytes: usize::MAX, wait };
    let mut found = numbers(&impatient(&*reader.source, large, 1).await);
    while found.len() < 20 {
        let small = BatchLimit { events: 3, bytes: usize::MAX, wait };
        let batch = reader.source.next_batch(small).await;
        let batch = batch.expect("the source can be read");
        assert!((1..=3).contains(&batch.len()), "{} events", batch.len());
        found.extend(numbers(&batch));
    }
    assert_eq!(found, (1..=20).collect::<Vec<_>>());
}

/// G-03: what was found for a large read, and is beyond a small one, stays behind what fails.
async fn a_read_that_is_given_up_lets_nothing_overtake(outbox: Subject) {
    for patience in 0..20 {
        let (key, first) = (format!("key {patience}"), patience * 10 + 1);
        outbox.write(&events(&key, first..first + 6)).await;
        let reader = Reader::start(&*outbox).await;
        let set_aside = async |read: &[Record], delay| {
            let mut verdicts = vec![Verdict::Queued; read.len()];
            verdicts[0] = deferred(delay, 1);
            let settlements: Vec<_> = read
                .iter()
                .zip(verdicts)
                .map(|(record, verdict)| Settlement { handle: record.handle, verdict })
                .collect();
            reader.source.settle(&settlements).await.expect("it can be settled");
        };
        set_aside(&reader.read(6).await, Duration::ZERO).await;
        let large = BatchLimit { events: 20, bytes: usize::MAX, wait: Duration::from_secs(5) };
        let mut read = impatient(&*reader.source, large, patience as usize).await;
        if read.is_empty() {
            read = reader.batch(2, Duration::from_secs(5)).await;
        }
        assert_eq!(numbers(&read)[0], first);
        set_aside(&read, Duration::from_secs(3600)).await;
        reader.expect_nothing("the first one is not due").await;
        reader.close().await;
    }
}

/// G-01: whichever it was, the event is in one place.
async fn a_settlement_that_is_given_up_happened_or_not(outbox: Subject) {
    let admin = outbox.admin().await;
    for patience in 0..6 {
        let first = patience * 10 + 1;
        outbox.write(&spread(1, first..first + 3)).await;
        let reader = Reader::start(&*outbox).await;
        let read = reader.read(3).await;
        let verdicts = [Verdict::Delivered, deferred(Duration::ZERO, 1), parked(1)];
        let settlements: Vec<_> = read
            .iter()
            .zip(verdicts)
            .map(|(record, verdict)| Settlement { handle: record.handle, verdict })
            .collect();
        tokio::select! {
            biased;
            _ = reader.source.settle(&settlements) => {}
            () = turns(patience as usize) => {}
        }
        reader.kill();
        let reader = Reader::start(&*outbox).await;
        until("all three are settled", || async {
            reader.drain().await;
            let parked = admin.retry(&Default::default()).await;
            parked.expect("dead letters can be retried") == 0 && !reader.pending().await
        })
        .await;
        reader.close().await;
    }
    let status = admin.status().await.expect("the status can be read");
    let pipeline = &status.pipelines[0];
    let left = pipeline.unpublished + pipeline.parked + pipeline.queued + pipeline.deferred;
    assert_eq!(left, 0, "{status:?}");
}
