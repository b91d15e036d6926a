//! Rows with numbers that no writer gets: a transaction that is still to come, because somebody
//! wrote it or the row was copied from another server, and the first and the last number there is.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::schema::TableName;
use postrider_relay::admin::Selection;
use postrider_relay::failure::{Failure, FailureKind};
use postrider_relay::source::{BatchLimit, Record, Settlement, Source, SourceErrorKind, Verdict};
use postrider_relay::sources::{Progress, SourceSpec, connect_admin};
use postrider_testkit::chaos::{Bank, spec};
use postrider_testkit::servers::postgres::Database;
use tokio::time::timeout;

const LIMIT: BatchLimit =
    BatchLimit { events: 100, bytes: 1 << 20, wait: Duration::from_millis(300) };
/// Transactions that are still to come: the last number is given to none.
const TO_COME: [&str; 2] = ["1099511627776", "18446744073709551615"];

fn foreign_row(xid: &str) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, xid)
         VALUES ('Account', 'foreign', 'AccountChanged', '{{}}', '{xid}')"
    )
}

fn numbered_row(seq: i64) -> String {
    format!(
        "INSERT INTO outbox (seq, aggregate_type, aggregate_id, event_type, payload)
         OVERRIDING SYSTEM VALUE VALUES ({seq}, 'Account', 'n{seq}', 'AccountChanged', '{{}}')"
    )
}

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

async fn park(source: &dyn Source, record: &Record) {
    let reason = record.event.as_ref().unwrap_err().reason.clone();
    let failure = Failure { kind: FailureKind::Rejected, message: reason, attempts: 1 };
    let verdict = Verdict::Parked { failure, blocks: true };
    source.settle(&[Settlement { handle: record.handle, verdict }]).await.unwrap();
}

fn foreign(records: &[Record]) -> usize {
    let key = |record: &&Record| record.event.as_ref().unwrap().key().aggregate_id == "foreign";
    records.iter().filter(key).count()
}

/// G-04: it comes once, however many events are read while it is under way, and stops nothing.
#[tokio::test]
async fn a_row_of_a_transaction_to_come_is_delivered_once() {
    for progress in [Progress::Mark, Progress::Delete, Progress::Cursor] {
        let bank = Bank::fresh().await;
        let spec = spec(bank.url(), progress);
        let source = connect(&spec).await;
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
        for xid in TO_COME {
            bank.run(&foreign_row(xid)).await;
        }
        let mut records = Vec::new();
        for account in 0..5 {
            bank.change_often(account, 1).await;
            while records.len() < usize::try_from(account).unwrap() + 3 {
                let more = source.next_batch(LIMIT).await.unwrap();
                assert!(!more.is_empty(), "{progress}: {records:?}");
                records.extend(more);
            }
        }
        records.extend(source.next_batch(LIMIT).await.unwrap());
        assert_eq!((records.len(), foreign(&records)), (7, 2), "{progress}");
        settle(&*source, &records).await;
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
        assert!(!source.pending().await.unwrap());
        source.close().await.unwrap();
        let again = connect(&spec).await;
        assert!(again.next_batch(LIMIT).await.unwrap().is_empty(), "{progress}");
        again.close().await.unwrap();
        // One that is there before the start.
        bank.run(&foreign_row(TO_COME[1])).await;
        let again = connect(&spec).await;
        let records = again.next_batch(LIMIT).await.unwrap();
        assert_eq!((records.len(), foreign(&records)), (1, 1), "{progress}");
        settle(&*again, &records).await;
        let beyond = "SELECT count(*) FROM outbox_checkpoints
             WHERE pg_snapshot_xmax(base) > pg_snapshot_xmax(pg_current_snapshot())
             OR pg_snapshot_xmax(tick) > pg_snapshot_xmax(pg_current_snapshot())";
        assert_eq!(bank.number(beyond).await, 0, "the position is of this server");
        again.close().await.unwrap();
    }
}

/// G-04, G-10: a cursor that may not change the row says which one it is, and what is written down
/// relies on nothing that is still to come. What the hint says makes it work.
#[tokio::test]
async fn a_cursor_that_may_not_change_a_row_of_a_transaction_to_come_names_it() {
    let bank = Bank::fresh().await;
    bank.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           RAISE EXCEPTION 'not permitted' USING ERRCODE = 'insufficient_privilege'; END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .await;
    let spec = spec(bank.url(), Progress::Cursor);
    let source = connect(&spec).await;
    assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
    bank.change_often(1, 3).await;
    let records = source.next_batch(LIMIT).await.unwrap();
    settle(&*source, &records).await;
    bank.run(&foreign_row(TO_COME[0])).await;
    bank.change_often(2, 3).await;
    let error = loop {
        match source.next_batch(LIMIT).await {
            Ok(records) => settle(&*source, &records).await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, SourceErrorKind::Unsafe, "{}", error.details());
    assert!(error.details().contains("seq 4"), "{}", error.details());
    let hint = error.hint.unwrap();
    drop(source);
    let again = stand_by(&spec).await.resume().await.unwrap_err();
    assert_eq!(again.hint.as_ref(), Some(&hint), "the next start says the same");
    bank.run("DROP TRIGGER refuse ON outbox").await;
    let step = &hint[hint.find("UPDATE outbox").unwrap()..];
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

/// G-04, G-05: the last number there is comes once, in any progress, and can be written down while
/// others are under way. The first one has none before it, so that row is no event; it is parked.
#[tokio::test]
async fn rows_with_the_first_and_the_last_number_stop_nothing() {
    for progress in [Progress::Mark, Progress::Delete, Progress::Cursor] {
        let bank = Bank::fresh().await;
        let spec = spec(bank.url(), progress);
        bank.change_often(1, 1).await;
        for seq in [i64::MAX, i64::MIN, -1, 0] {
            bank.run(&numbered_row(seq)).await;
        }
        let source = connect(&spec).await;
        let mut records = Vec::new();
        while records.len() < 5 {
            let more = source.next_batch(LIMIT).await.unwrap();
            assert!(!more.is_empty(), "{progress}: {records:?}");
            records.extend(more);
        }
        let (bad, good): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.event.is_err());
        let reason = &bad[0].event.as_ref().unwrap_err().reason;
        assert!(bad.len() == 1 && reason.starts_with("seq is "), "{progress}: {reason}");
        let key = |record: &Record| record.event.as_ref().unwrap().key().aggregate_id.clone();
        let first = good.iter().position(|record| key(record) == "n-1").unwrap();
        // All but the first of the others, so that the numbers behind it are written down.
        let (first, rest): (Vec<_>, Vec<_>) =
            good.into_iter().enumerate().partition(|(index, _)| *index == first);
        let rest: Vec<Record> = rest.into_iter().map(|(_, record)| record).collect();
        settle(&*source, &rest).await;
        park(&*source, &bad[0]).await;
        assert_eq!(first.len(), 1);
        drop(source);

        let source = stand_by(&spec).await;
        source.resume().await.unwrap();
        let again = source.next_batch(LIMIT).await.unwrap();
        let keys: Vec<_> = again.iter().map(key).collect();
        assert_eq!(keys, ["n-1"], "{progress}");
        settle(&*source, &again).await;
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty(), "{progress}");
        assert!(!source.pending().await.unwrap(), "{progress}");
        assert_eq!(bank.number("SELECT count(*) FROM outbox_failures").await, 1, "{progress}");
        // And it goes on.
        bank.change_often(2, 2).await;
        let more = source.next_batch(LIMIT).await.unwrap();
        assert!(!more.is_empty() && more.iter().all(|record| record.event.is_ok()), "{progress}");
        source.close().await.unwrap();
    }
}

/// G-05: an id that is too long for our tables is no id. The row is parked without it, stays the
/// same row when it is settled again, and can be discarded.
#[tokio::test]
async fn an_id_that_is_too_long_is_parked_without_it() {
    let of_9600_bytes = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) AS n)";
    for progress in [Progress::Mark, Progress::Delete, Progress::Cursor] {
        let database = Database::fresh().await;
        postrider_relay::sources::migrate(&database.url(), &Default::default()).await.unwrap();
        let client = database.connect().await;
        client
            .batch_execute(&format!(
                "DROP TABLE outbox CASCADE;
                 CREATE TABLE outbox (seq bigserial PRIMARY KEY, id text NOT NULL,
                   aggregate_type text NOT NULL, aggregate_id text NOT NULL,
                   event_type text NOT NULL, payload jsonb, published_at timestamptz,
                   xid xid8 NOT NULL DEFAULT pg_current_xact_id());
                 CREATE INDEX ON outbox (xid);
                 INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
                 VALUES ('short', 'Account', 'a', 'AccountChanged', '{{}}'),
                   ({of_9600_bytes}, 'Account', 'long', 'AccountChanged', '{{}}'),
                   (repeat('x', 3000000), 'Account', 'b', 'AccountChanged', '{{}}'),
                   (repeat('y', 1024), 'Account', 'c', 'AccountChanged', '{{}}')"
            ))
            .await
            .unwrap();
        let spec = spec(&database.url(), progress);
        let source = connect(&spec).await;
        let mut records = Vec::new();
        while records.len() < 4 {
            let more = source.next_batch(LIMIT).await.unwrap();
            assert!(!more.is_empty(), "{progress}: {records:?}");
            records.extend(more);
        }
        let (bad, good): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.event.is_err());
        assert_eq!((bad.len(), good.len()), (2, 2), "{progress}");
        for record in &bad {
            let reason = &record.event.as_ref().unwrap_err().reason;
            assert!(reason.starts_with("id has more than 1024 bytes"), "{progress}: {reason}");
            park(&*source, record).await;
        }
        settle(&*source, &good).await;
        // As a relay does that was told nothing of the first try.
        source.close().await.unwrap();
        let source = connect(&spec).await;
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty(), "{progress}");
        let (table, columns) = (TableName::default(), BTreeMap::new());
        let admin = connect_admin(&database.url(), &table, &columns).await.unwrap();
        assert_eq!(admin.retry(&Selection::default()).await.unwrap(), 2);
        let again = source.next_batch(LIMIT).await.unwrap();
        for record in &again {
            park(&*source, record).await;
        }
        assert_eq!(again.len(), 2, "{progress}");
        assert_eq!(admin.discard(&Selection::default()).await.unwrap(), 2);
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty(), "{progress}");
        source.close().await.unwrap();
    }
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
