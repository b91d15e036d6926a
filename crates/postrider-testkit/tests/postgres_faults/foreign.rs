//! Rows with a transaction that is still to come here: somebody wrote it, or the row was copied
//! from another server.

use std::time::Duration;

use postrider_relay::source::{BatchLimit, Record, Settlement, Source, SourceErrorKind, Verdict};
use postrider_relay::sources::{Progress, SourceSpec};
use postrider_testkit::chaos::{Bank, spec};
use tokio::time::timeout;

const LIMIT: BatchLimit =
    BatchLimit { events: 100, bytes: 1 << 20, wait: Duration::from_millis(300) };
const FOREIGN: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, xid)
     VALUES ('Account', 'foreign', 'AccountChanged', '{}', '1099511627776')";

async fn connect(spec: &SourceSpec) -> Box<dyn Source> {
    let source = spec.connect().await.unwrap();
    source.resume().await.unwrap();
    source
}

/// The one before may still have the lease.
async fn stand_by(spec: &SourceSpec) -> Box<dyn Source> {
    loop {
        match spec.connect().await {
            Ok(source) => return source,
            Err(error) => assert_eq!(error.kind, SourceErrorKind::Held),
        }
    }
}

async fn settle(source: &dyn Source, records: &[Record]) {
    let delivered =
        |record: &Record| Settlement { handle: record.handle, verdict: Verdict::Delivered };
    source.settle(&records.iter().map(delivered).collect::<Vec<_>>()).await.unwrap();
}

fn foreign(records: &[Record]) -> usize {
    let key = |record: &&Record| record.event.as_ref().unwrap().key().aggregate_id == "foreign";
    records.iter().filter(key).count()
}

/// G-04: it comes once, however many events are read while it is under way.
#[tokio::test]
async fn a_row_of_a_transaction_to_come_is_delivered_once() {
    for progress in [Progress::Mark, Progress::Delete] {
        let bank = Bank::fresh().await;
        let spec = spec(bank.url(), progress);
        let source = connect(&spec).await;
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
        bank.run(FOREIGN).await;
        let mut records = Vec::new();
        for account in 0..5 {
            bank.change_often(account, 1).await;
            while records.len() < usize::try_from(account).unwrap() + 2 {
                let more = source.next_batch(LIMIT).await.unwrap();
                assert!(!more.is_empty(), "{progress}: {records:?}");
                records.extend(more);
            }
        }
        records.extend(source.next_batch(LIMIT).await.unwrap());
        assert_eq!((records.len(), foreign(&records)), (6, 1), "{progress}");
        settle(&*source, &records).await;
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
        assert!(!source.pending().await.unwrap());
        source.close().await.unwrap();
        assert!(connect(&spec).await.next_batch(LIMIT).await.unwrap().is_empty(), "{progress}");
    }
}

/// G-04, G-10: a cursor could not tell whether it has delivered it. It says which row it is, and
/// what is written down relies on nothing that is still to come. What the hint says makes it work.
#[tokio::test]
async fn a_cursor_refuses_a_row_of_a_transaction_to_come() {
    let bank = Bank::fresh().await;
    let spec = spec(bank.url(), Progress::Cursor);
    let source = connect(&spec).await;
    assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
    bank.change_often(1, 3).await;
    let records = source.next_batch(LIMIT).await.unwrap();
    settle(&*source, &records).await;
    bank.run(FOREIGN).await;
    bank.change_often(2, 3).await;
    let mut handed_out = 0;
    let error = loop {
        match source.next_batch(LIMIT).await {
            Ok(records) => {
                handed_out += foreign(&records);
                settle(&*source, &records).await;
                assert!(handed_out < 2, "it comes again and again");
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, SourceErrorKind::Unsafe, "{}", error.details());
    assert!(error.details().contains("seq 4"), "{}", error.details());
    let hint = error.hint.unwrap();
    let beyond = "SELECT count(*) FROM outbox_checkpoints
         WHERE pg_snapshot_xmax(base) > pg_snapshot_xmax(pg_current_snapshot())
         OR pg_snapshot_xmax(tick) > pg_snapshot_xmax(pg_current_snapshot())";
    assert_eq!(bank.number(beyond).await, 0, "the position is of this server");
    drop(source);
    let again = stand_by(&spec).await.resume().await.unwrap_err();
    assert_eq!(again.hint.as_ref(), Some(&hint), "the next start says the same");
    let step = &hint[hint.find("UPDATE").unwrap()..];
    bank.run(step).await;
    let source = stand_by(&spec).await;
    source.resume().await.unwrap();
    let mut left = Vec::new();
    while left.len() < 4 {
        let more = source.next_batch(LIMIT).await.unwrap();
        assert!(!more.is_empty(), "{left:?}");
        left.extend(more);
    }
    assert_eq!((left.len(), foreign(&left)), (4, 1));
    settle(&*source, &left).await;
    assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
    source.close().await.unwrap();
}

/// G-05: more rows are not read than are kept in mind behind one that is not settled, and a read
/// then ends when its time is over. Once that one is settled it goes on.
#[tokio::test]
async fn a_read_behind_too_many_unsettled_rows_ends_in_time() {
    const MOST: usize = 100_000;
    let bank = Bank::fresh().await;
    bank.run(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'Account', n::text, 'AccountChanged', '' FROM generate_series(1, 100010) AS n",
    )
    .await;
    let source = connect(&spec(bank.url(), Progress::Cursor)).await;
    let limit = BatchLimit { events: 20_000, bytes: 1 << 30, wait: Duration::from_millis(100) };
    let mut first = None;
    let mut read = 0;
    while read < MOST {
        let mut records = source.next_batch(limit).await.unwrap();
        assert!(!records.is_empty(), "{read} of {MOST}");
        read += records.len();
        if first.is_none() {
            first = Some(records.remove(0));
        }
        settle(&*source, &records).await;
    }
    for _ in 0..3 {
        let late = timeout(Duration::from_secs(20), source.next_batch(limit)).await;
        assert!(late.expect("the read has an end").unwrap().is_empty());
    }
    settle(&*source, &[first.unwrap()]).await;
    let rest = source.next_batch(limit).await.unwrap();
    assert_eq!(rest.len(), 100_010 - MOST);
}
