//! What is changed from one run to the next: nothing is lost, and nothing that was settled comes
//! again.

use std::time::Duration;

use postrider_relay::pipeline::Ordering;
use postrider_relay::source::{BatchLimit, Record, Settlement, Source, Verdict};
use postrider_relay::sources::{Progress, Shard, SourceSpec};
use postrider_testkit::chaos::{Bank, Running, Target, spec, until};

const LIMIT: BatchLimit =
    BatchLimit { events: 100, bytes: 1 << 20, wait: Duration::from_millis(300) };
const OVER: &str = "UPDATE outbox_leases SET expires_at = '-infinity'";

async fn connect(spec: &SourceSpec) -> Box<dyn Source> {
    let source = spec.connect().await.unwrap();
    source.resume().await.unwrap();
    source
}

/// Everything that there is to read.
async fn read(source: &dyn Source) -> Vec<Record> {
    let mut all = Vec::new();
    loop {
        let batch = source.next_batch(LIMIT).await.unwrap();
        if batch.is_empty() {
            return all;
        }
        all.extend(batch);
    }
}

async fn settle(source: &dyn Source, records: &[Record]) {
    let delivered =
        |record: &Record| Settlement { handle: record.handle, verdict: Verdict::Delivered };
    source.settle(&records.iter().map(delivered).collect::<Vec<_>>()).await.unwrap();
}

/// Runs until nothing is left; answers how many events were delivered.
async fn drain(spec: &SourceSpec) -> usize {
    let source = connect(spec).await;
    let records = read(&*source).await;
    settle(&*source, &records).await;
    source.close().await.unwrap();
    records.len()
}

/// G-04: a relay can be told to stop while it starts.
#[tokio::test]
async fn a_stop_before_the_start_is_done_moves_nothing() {
    for progress in Progress::ALL {
        let bank = Bank::fresh().await;
        bank.change_often(1, 10).await;
        let spec = spec(bank.url(), progress);
        assert_eq!(drain(&spec).await, 10);
        spec.connect().await.unwrap().close().await.unwrap();
        assert_eq!(drain(&spec).await, 0, "{progress}");
    }
}

/// G-04: a transaction that commits late, with a small number, takes nothing back.
#[tokio::test]
async fn a_late_commit_takes_nothing_back() {
    let bank = Bank::fresh().await;
    let late = bank.connect().await;
    late.batch_execute("BEGIN").await.unwrap();
    bank.change(&late, 1).await.unwrap();
    bank.change_often(2, 10).await;
    let spec = spec(bank.url(), Progress::Cursor);
    let source = connect(&spec).await;
    let early = read(&*source).await;
    assert_eq!(early.len(), 10);
    settle(&*source, &early[..9]).await;
    late.batch_execute("COMMIT").await.unwrap();
    assert_eq!(read(&*source).await.len(), 1, "the late one");
    bank.change_often(3, 1).await;
    let after = read(&*source).await;
    settle(&*source, &after).await;
    source.close().await.unwrap();
    assert_eq!(drain(&spec).await, 2, "the tenth and the late one");
}

/// G-01: shards stand at different places; what one of them has not seen, the new ones read.
#[tokio::test]
async fn other_shards_go_on_from_what_all_have_settled() {
    let bank = Bank::fresh().await;
    let shard = |index| SourceSpec {
        shard: Shard { index, of: 2 },
        relay: format!("relay-{index}"),
        ..spec(bank.url(), Progress::Cursor)
    };
    // Keys of both shards, with the oldest transaction of all open, and one that has an event.
    let accounts: Vec<u64> = (1..=8).collect();
    let oldest = bank.connect().await;
    oldest.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let mut late = Vec::new();
    for account in &accounts {
        let client = bank.connect().await;
        client.batch_execute("BEGIN").await.unwrap();
        bank.change(&client, *account).await.unwrap();
        late.push(client);
    }
    for account in 11..=20 {
        bank.change_often(account, 1).await;
    }
    let sources = [connect(&shard(0)).await, connect(&shard(1)).await];
    let mut delivered = 0;
    for source in &sources {
        let records = read(&**source).await;
        assert!(!records.is_empty(), "each shard has keys");
        settle(&**source, &records).await;
        delivered += records.len();
    }
    assert_eq!(delivered, 10);
    // The first is killed before the transactions commit, the second stops after it has seen them.
    let [killed, other] = sources;
    std::mem::forget(killed);
    for client in &late {
        client.batch_execute("COMMIT").await.unwrap();
    }
    let records = read(&*other).await;
    settle(&*other, &records).await;
    other.close().await.unwrap();
    bank.run(OVER).await;
    let source = connect(&spec(bank.url(), Progress::Cursor)).await;
    let left = read(&*source).await.len();
    assert!(left >= accounts.len() - records.len(), "{left} left, {} delivered", records.len());
    source.close().await.unwrap();
    oldest.batch_execute("ROLLBACK").await.unwrap();
}

/// G-04: from one cursor to relays side by side, which have none.
#[tokio::test]
async fn a_cursor_is_behind_relays_that_read_side_by_side() {
    for progress in [Progress::Mark, Progress::Delete] {
        let bank = Bank::fresh().await;
        bank.change_often(1, 10).await;
        assert_eq!(drain(&spec(bank.url(), Progress::Cursor)).await, 10);
        bank.change_often(1, 3).await;
        let ordering = Ordering::None;
        let side_by_side = SourceSpec { ordering, ..spec(bank.url(), progress) };
        assert_eq!(drain(&side_by_side).await, 3, "{progress}");
        assert_eq!(drain(&spec(bank.url(), Progress::Cursor)).await, 0, "{progress}");
    }
}

/// A pipeline for which there is nothing must not look as if it had everything before it.
#[tokio::test]
async fn a_cursor_moves_past_events_that_are_not_for_it() {
    let bank = Bank::fresh().await;
    let spec = SourceSpec {
        aggregate_types: vec!["Nothing".to_owned()],
        lease: Duration::from_secs(5),
        ..spec(bank.url(), Progress::Cursor)
    };
    let target = Target::start().await;
    let relay = Running::start(&spec, &target).await;
    bank.change_often(1, 10).await;
    let behind = "SELECT count(*) FROM outbox AS o, outbox_checkpoints AS c
        WHERE NOT coalesce(pg_visible_in_snapshot(o.xid, c.base), false)";
    until("the cursor moves", || async { bank.number(behind).await == 0 }).await;
    relay.stop().await;
}

/// G-04: a settlement that waits for somebody's lock keeps its lease, and repeats nothing.
#[tokio::test]
async fn a_lock_costs_no_lease() {
    for progress in [Progress::Mark, Progress::Delete] {
        let bank = Bank::fresh().await;
        bank.change_often(1, 20).await;
        let somebody = bank.connect().await;
        somebody.batch_execute("BEGIN; SELECT FROM outbox WHERE seq = 7 FOR UPDATE").await.unwrap();
        let lease = Duration::from_secs(4);
        let spec = SourceSpec { lease, ..spec(bank.url(), progress) };
        let target = Target::start().await;
        let relay = Running::start(&spec, &target).await;
        until("the events arrive", || async { target.count() == 20 }).await;
        tokio::time::sleep(lease * 2).await;
        somebody.batch_execute("ROLLBACK").await.unwrap();
        bank.check(&target, 0).await;
        relay.stop().await;
    }
}
