//! Settlements whose answer is lost, and settlements that come late.

use std::time::Duration;

use postrider_relay::failure::{Failure, FailureKind};
use postrider_relay::pipeline::Ordering;
use postrider_relay::source::{
    BatchLimit, Record, Settled, Settlement, Source, SourceErrorKind, Verdict,
};
use postrider_relay::sources::{Progress, SourceSpec};
use postrider_testkit::chaos::{Bank, spec};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(2);
const LIMIT: BatchLimit = BatchLimit { events: 100, bytes: 1 << 20, wait: Duration::from_secs(5) };

fn delivered(records: &[Record]) -> Vec<Settlement> {
    let settlement =
        |record: &Record| Settlement { handle: record.handle, verdict: Verdict::Delivered };
    records.iter().map(settlement).collect()
}

/// Settles with the answer lost, and then once more.
async fn settle_twice(proxy: &Proxy, source: &dyn Source, settlements: &[Settlement]) -> Settled {
    let lost = proxy.dropped_replies();
    proxy.drop_reply_of_commit();
    let error = source.settle(settlements).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unavailable, "{}", error.details());
    assert_eq!(proxy.dropped_replies(), lost + 1);
    source.settle(settlements).await.unwrap()
}

async fn read(source: &dyn Source, count: usize) -> Vec<Record> {
    let mut records = Vec::new();
    while records.len() < count {
        let more = source.next_batch(LIMIT).await.unwrap();
        assert!(!more.is_empty(), "{} of {count} records", records.len());
        records.extend(more);
    }
    records
}

#[tokio::test]
async fn deferred_by_cursor() {
    events_deferred_without_an_answer_are_in_one_place(Progress::Cursor).await;
}

#[tokio::test]
async fn deferred_by_mark() {
    events_deferred_without_an_answer_are_in_one_place(Progress::Mark).await;
}

/// G-01, G-05.
async fn events_deferred_without_an_answer_are_in_one_place(progress: Progress) {
    let bank = Bank::fresh().await;
    bank.change_often(1, 3).await;
    bank.change_often(2, 1).await;
    let proxy = Proxy::start(address(bank.url())).await;
    let source = spec(&proxy.url(bank.url()), progress).connect().await.unwrap();
    source.resume().await.unwrap();
    let records = read(&*source, 4).await;
    let failure = Failure { kind: FailureKind::Failed, message: "no".to_owned(), attempts: 3 };
    let delay = Duration::from_millis(500);
    let settlement = |index: usize, verdict| {
        let record: &Record = &records[index];
        Settlement { handle: record.handle, verdict }
    };
    let settlements = [
        settlement(0, Verdict::Deferred { delay, failure: Some(failure), blocks: true }),
        settlement(1, Verdict::Queued),
        settlement(2, Verdict::Queued),
        settlement(3, Verdict::Delivered),
    ];
    let settled = settle_twice(&proxy, &*source, &settlements).await;
    assert_eq!(settled.unblocked, []);
    assert_eq!(states(&bank).await, "deferred 3, queued 0, queued 0");

    let returned = read(&*source, 3).await;
    let ids = |records: &[Record]| -> Vec<_> {
        records.iter().map(|record| record.event.as_ref().unwrap().id()).collect()
    };
    assert_eq!(ids(&returned), ids(&records[..3]));
    assert_eq!(returned[0].attempts, 3);
    assert!(returned.iter().all(|record| record.returned));
    let settled = settle_twice(&proxy, &*source, &delivered(&returned)).await;
    assert_eq!(settled.unblocked.len(), 1, "the key is free again");
    assert_eq!(states(&bank).await, "");
    assert!(!source.pending().await.unwrap());
    source.close().await.unwrap();
}

/// What is set aside, in order.
async fn states(bank: &Bank) -> String {
    let query = "SELECT coalesce(string_agg(state || ' ' || attempts, ', ' ORDER BY seq), '')
         FROM outbox_failures";
    bank.connect().await.query_one(query, &[]).await.unwrap().get(0)
}

async fn connect(spec: &SourceSpec) -> Box<dyn Source> {
    let connected = async {
        loop {
            match spec.connect().await {
                Ok(source) => return source,
                Err(error) => assert_eq!(error.kind, SourceErrorKind::Held),
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    let source = timeout(Duration::from_secs(20), connected).await.expect("the lease runs out");
    source.resume().await.unwrap();
    source
}

#[tokio::test]
async fn late_by_cursor() {
    a_settlement_that_comes_late_changes_nothing(Progress::Cursor).await;
}

#[tokio::test]
async fn late_by_mark() {
    a_settlement_that_comes_late_changes_nothing(Progress::Mark).await;
}

/// G-09: it was sent in time, and the network hands it on when another relay has taken over.
async fn a_settlement_that_comes_late_changes_nothing(progress: Progress) {
    let bank = Bank::fresh().await;
    bank.change_often(1, 10).await;
    let proxy = Proxy::start(address(bank.url())).await;
    let cut_off = SourceSpec { lease: LEASE, ..spec(&proxy.url(bank.url()), progress) };
    let first = connect(&cut_off).await;
    let records = first.next_batch(LIMIT).await.unwrap();
    assert_eq!(records.len(), 10);
    let settlements = delivered(&records);
    proxy.black_hole(true);
    let settle = first.settle(&settlements);
    let take_over = async {
        let second = connect(&SourceSpec { lease: LEASE, ..spec(bank.url(), progress) }).await;
        let records = second.next_batch(LIMIT).await.unwrap();
        assert_eq!(records.len(), 10, "the second one reads everything");
        proxy.black_hole(false);
        (second, records)
    };
    let (settled, (second, records)) = tokio::join!(settle, take_over);
    let refused = settled.unwrap_err();
    assert_eq!(refused.kind, SourceErrorKind::Lost, "{}", refused.details());
    assert!(first.lease().until.is_some_and(|until| until <= Instant::now()));
    assert!(second.pending().await.unwrap(), "nothing was settled");
    second.settle(&delivered(&records)).await.unwrap();
    assert!(!second.pending().await.unwrap());
    second.close().await.unwrap();
}

/// A full window of events is settled by their ids in no time.
#[tokio::test]
async fn a_full_window_is_settled_at_once() {
    const EVENTS: usize = 4096;
    for progress in [Progress::Mark, Progress::Delete] {
        let bank = Bank::fresh().await;
        bank.run("SELECT change(n, n) FROM generate_series(1, 4096) AS n").await;
        let source = connect(&spec(bank.url(), progress)).await;
        let mut records = Vec::new();
        while records.len() < EVENTS {
            let limit = BatchLimit { events: EVENTS, bytes: 1 << 30, ..LIMIT };
            records.extend(source.next_batch(limit).await.unwrap());
        }
        let started = Instant::now();
        source.settle(&delivered(&records)).await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(8), "{progress}: {:?}", started.elapsed());
        assert!(!source.pending().await.unwrap());
        source.close().await.unwrap();
    }
}

/// G-01: somebody resets the numbering while an event is under way. Whatever becomes of that one,
/// the next event with its number is another.
#[tokio::test]
async fn an_event_with_the_number_of_one_under_way_is_another() {
    let failure = Failure { kind: FailureKind::Failed, message: "no".to_owned(), attempts: 3 };
    let verdicts = [
        Verdict::Delivered,
        Verdict::Parked { failure, blocks: true },
        Verdict::Attempting { attempts: 1, blocks: true },
    ];
    let bank = Bank::fresh().await;
    let ways = Progress::ALL.map(|progress| (progress, Ordering::Key));
    let side_by_side = [Progress::Mark, Progress::Delete].map(|by| (by, Ordering::None));
    for (progress, ordering) in ways.into_iter().chain(side_by_side) {
        for verdict in &verdicts {
            bank.run(
                "TRUNCATE outbox, outbox_failures, outbox_checkpoints, outbox_leases,
                 outbox_claims RESTART IDENTITY",
            )
            .await;
            bank.change_often(1, 1).await;
            let spec = SourceSpec { ordering, ..spec(bank.url(), progress) };
            let source = connect(&spec).await;
            let records = read(&*source, 1).await;
            bank.run("TRUNCATE outbox RESTART IDENTITY").await;
            bank.change_often(2, 1).await;
            assert_eq!(bank.number("SELECT seq FROM outbox").await, 1, "the number of the first");
            let settlement = Settlement { handle: records[0].handle, verdict: verdict.clone() };
            source.settle(&[settlement]).await.unwrap();
            // What is tried is still under way.
            source.settle(&delivered(&records)).await.unwrap();
            assert_eq!(states(&bank).await, "", "{progress} {verdict:?}: there is nothing left");
            let other = read(&*source, 1).await;
            assert_eq!(other.len(), 1, "{progress} {ordering:?} {verdict:?}");
            let key = other[0].event.as_ref().unwrap().key();
            assert_eq!(key.aggregate_id, "2", "{progress} {ordering:?} {verdict:?}");
            assert!(!other[0].returned);
            source.give_back().await;
        }
    }
}
