//! A relay that lost its lease.

use std::time::Duration;

use postrider_relay::failure::{Failure, FailureKind};
use postrider_relay::source::{
    BatchLimit, Record, Settlement, Source, SourceError, SourceErrorKind, Verdict,
};
use postrider_relay::sources::{Progress, Shard, SourceSpec};
use postrider_testkit::chaos::{Bank, spec, until};

const LIMIT: BatchLimit = BatchLimit { events: 100, bytes: 1 << 20, wait: Duration::from_secs(5) };

/// Everything that a relay can change.
async fn state(bank: &Bank) -> String {
    let query = "SELECT concat_ws(E'\\n',
        (SELECT string_agg(o::text, ';' ORDER BY seq) FROM outbox AS o),
        (SELECT string_agg(f::text, ';' ORDER BY seq) FROM outbox_failures AS f),
        (SELECT string_agg(c::text, ';' ORDER BY shard) FROM outbox_checkpoints AS c),
        (SELECT string_agg(l::text, ';' ORDER BY shard) FROM outbox_leases AS l),
        (SELECT string_agg(c::text, ';' ORDER BY seq) FROM outbox_claims AS c))";
    bank.connect().await.query_one(query, &[]).await.unwrap().get(0)
}

async fn connect(spec: &SourceSpec) -> Box<dyn Source> {
    let source = spec.connect().await.unwrap();
    source.resume().await.unwrap();
    source
}

const EMPTY: &str = "TRUNCATE outbox, outbox_failures, outbox_checkpoints, outbox_leases,
     outbox_claims, facts, accounts";

/// A source that has read ten events and was taken over without knowing it.
async fn deposed(bank: &Bank, progress: Progress) -> (Vec<Record>, Sources) {
    bank.run(EMPTY).await;
    bank.change_often(1, 5).await;
    bank.change_often(2, 5).await;
    let old = connect(&spec(bank.url(), progress)).await;
    let records = old.next_batch(LIMIT).await.unwrap();
    assert_eq!(records.len(), 10);
    bank.run("UPDATE outbox_leases SET expires_at = '-infinity'").await;
    let new = connect(&spec(bank.url(), progress)).await;
    (records, Sources { old, new })
}

struct Sources {
    old: Box<dyn Source>,
    new: Box<dyn Source>,
}

fn failure() -> Failure {
    Failure { kind: FailureKind::Failed, message: "no".to_owned(), attempts: 1 }
}

async fn settle(
    source: &dyn Source,
    records: &[Record],
    verdict: Verdict,
) -> Result<(), SourceError> {
    let settlement =
        |record: &Record| Settlement { handle: record.handle, verdict: verdict.clone() };
    let settlements: Vec<_> = records.iter().map(settlement).collect();
    source.settle(&settlements).await.map(drop)
}

/// G-09: whatever it says of an event, nothing is written.
#[tokio::test]
async fn a_deposed_relay_settles_nothing() {
    let verdicts = [
        Verdict::Delivered,
        Verdict::Parked { failure: failure(), blocks: true },
        Verdict::Deferred { delay: Duration::ZERO, failure: Some(failure()), blocks: true },
        Verdict::Queued,
        Verdict::Attempting { attempts: 1, blocks: true },
    ];
    let bank = Bank::fresh().await;
    for progress in Progress::ALL {
        for verdict in verdicts.clone() {
            let (records, Sources { old, new }) = deposed(&bank, progress).await;
            let before = state(&bank).await;
            let refused = settle(&*old, &records, verdict.clone()).await.unwrap_err();
            assert_eq!(refused.kind, SourceErrorKind::Lost, "{progress} {verdict:?}");
            assert_eq!(state(&bank).await, before, "{progress} {verdict:?}");
            let refused = old.next_batch(LIMIT).await.unwrap_err();
            assert_eq!(refused.kind, SourceErrorKind::Lost);
            assert!(old.lease().until.is_some_and(|until| until <= tokio::time::Instant::now()));
            let records = new.next_batch(LIMIT).await.unwrap();
            assert_eq!(records.len(), 10, "the new owner reads everything");
            settle(&*new, &records, Verdict::Delivered).await.unwrap();
            assert!(!new.pending().await.unwrap());
        }
    }
}

/// G-09: nor does its good-bye take anything from the new owner.
#[tokio::test]
async fn a_deposed_relay_gives_nothing_back() {
    let bank = Bank::fresh().await;
    for progress in Progress::ALL {
        let (records, Sources { old, new }) = deposed(&bank, progress).await;
        let before = state(&bank).await;
        let _ = old.survived().await;
        let _ = old.close().await;
        assert_eq!(state(&bank).await, before, "{progress}");
        assert_eq!(new.next_batch(LIMIT).await.unwrap().len(), records.len());
        settle(&*new, &[], Verdict::Delivered).await.unwrap();
        drop(new);
        let (_, Sources { old, new }) = deposed(&bank, progress).await;
        let before = state(&bank).await;
        drop(old);
        // What a drop does is done in the background.
        tokio::time::sleep(postrider_testkit::chaos::A_WHILE).await;
        assert_eq!(state(&bank).await, before, "{progress}");
        drop(new);
    }
}

/// G-09: it stood still beyond its lease, and others have changed the number of shards. Nobody has
/// taken its shard yet, which has fewer keys now.
#[tokio::test]
async fn a_relay_that_knows_another_number_of_shards_is_deposed() {
    const OVER: &str = "UPDATE outbox_leases SET expires_at = '-infinity' WHERE shard = 0";
    let bank = Bank::fresh().await;
    for progress in Progress::ALL {
        for lease in [Duration::from_secs(60), Duration::from_secs(2)] {
            bank.run(EMPTY).await;
            for account in 1..=10 {
                bank.change_often(account, 1).await;
            }
            let old = connect(&SourceSpec { lease, ..spec(bank.url(), progress) }).await;
            let records = old.next_batch(LIMIT).await.unwrap();
            assert_eq!(records.len(), 10);
            let other = SourceSpec {
                shard: Shard { index: 1, of: 2 },
                relay: "other".to_owned(),
                ..spec(bank.url(), progress)
            };
            let new = loop {
                bank.run(OVER).await;
                match other.connect().await {
                    Ok(new) => break new,
                    // It was renewed in between.
                    Err(error) => assert_eq!(error.kind, SourceErrorKind::Unavailable),
                }
            };
            new.resume().await.unwrap();
            if lease < Duration::from_secs(60) {
                // It finds out when it renews the lease.
                let renewed = "SELECT count(*) FROM outbox_leases
                     WHERE shard = 0 AND expires_at > clock_timestamp()";
                until("the old relay has no lease", || async {
                    assert_eq!(bank.number(renewed).await, 0, "{progress}: it was renewed");
                    old.lease().until.is_some_and(|until| until <= tokio::time::Instant::now())
                })
                .await;
            } else {
                // It finds out when it settles.
                let before = state(&bank).await;
                let refused = settle(&*old, &records, Verdict::Delivered).await.unwrap_err();
                assert_eq!(refused.kind, SourceErrorKind::Lost, "{progress}");
                assert_eq!(state(&bank).await, before, "{progress}");
            }
            let refused = old.next_batch(LIMIT).await.unwrap_err();
            assert_eq!(refused.kind, SourceErrorKind::Lost, "{progress}");
            let of_other = new.next_batch(LIMIT).await.unwrap().len();
            assert!(0 < of_other && of_other < 10, "{progress}: {of_other} of 10");
        }
    }
}
