//! The network swallows everything for longer than a lease runs.

use std::time::Duration;

use postrider_relay::source::{BatchLimit, Settlement, Source, SourceErrorKind, Verdict};
use postrider_relay::sources::{Progress, SourceSpec};
use postrider_testkit::chaos::{A_WHILE, Setup, StandingBy, Target, spec, until};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(2);
const LIMIT: BatchLimit = BatchLimit { events: 100, bytes: 1 << 20, wait: Duration::from_secs(5) };

#[tokio::test]
async fn cursor() {
    a_relay_that_is_cut_off_sends_nothing_any_more(Progress::Cursor).await;
}

#[tokio::test]
async fn mark() {
    a_relay_that_is_cut_off_sends_nothing_any_more(Progress::Mark).await;
}

/// G-03, G-09: the first relay has events in memory that it could send.
async fn a_relay_that_is_cut_off_sends_nothing_any_more(progress: Progress) {
    let (_database, bank) = crate::bank().await;
    let target = Target::start().await;
    let proxy = Proxy::start(address(bank.url())).await;
    let setup = Setup { lease: LEASE, ..Setup::new(bank.url(), &target, progress) };
    let cut_off = Setup { url: proxy.url(bank.url()), ..setup.clone() };
    let first = StandingBy::start(&cut_off);
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    bank.until_settled().await;

    target.behave(Behaviour::Answers(503)).await;
    let waiting = bank.change_often(1, 20).await;
    sleep(A_WHILE).await;
    proxy.black_hole(true);
    let expired = "SELECT count(*) FROM outbox_leases WHERE expires_at < clock_timestamp()";
    until("the lease runs out", || async { bank.number(expired).await == 1 }).await;
    target.behave(Behaviour::Well).await;
    // Longer than the longest pause between two tries.
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(target.count(), 5, "nobody has the lease");
    let second = StandingBy::start(&setup);
    target.until_arrived(&waiting).await;
    proxy.black_hole(false);
    bank.change_often(1, 5).await;
    bank.check(&target, 0).await;

    for outcome in second.stop().await {
        outcome.result.unwrap();
    }
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    bank.check(&target, 0).await;
    assert!(!first.has_ended(), "it has stood by");
    for outcome in first.stop().await {
        outcome.result.unwrap();
    }
}

async fn connect(spec: &SourceSpec) -> Box<dyn Source> {
    let connected = async {
        loop {
            match spec.connect().await {
                Ok(source) => return source,
                Err(error) => assert_eq!(error.kind, SourceErrorKind::Unavailable),
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
    let (_database, bank) = crate::bank().await;
    bank.change_often(1, 10).await;
    let proxy = Proxy::start(address(bank.url())).await;
    let cut_off = SourceSpec { lease: LEASE, ..spec(&proxy.url(bank.url()), progress) };
    let first = connect(&cut_off).await;
    let records = first.next_batch(LIMIT).await.unwrap();
    assert_eq!(records.len(), 10);
    let settlements: Vec<_> = records
        .iter()
        .map(|record| Settlement { handle: record.handle, verdict: Verdict::Delivered })
        .collect();
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
    let settled: Vec<_> = records
        .iter()
        .map(|record| Settlement { handle: record.handle, verdict: Verdict::Delivered })
        .collect();
    second.settle(&settled).await.unwrap();
    assert!(!second.pending().await.unwrap());
    second.close().await.unwrap();
}
