//! A crash takes numbers of transactions back.

use std::time::Duration;

use postrider_relay::pipeline::Options as RelayOptions;
use postrider_relay::source::{BatchLimit, Record, Settlement, Source, SourceErrorKind, Verdict};
use postrider_relay::sources::{Progress, SourceSpec};
use postrider_testkit::chaos::{A_WHILE, Bank, Running, Target, spec};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::servers::pgbouncer::Pgbouncer;
use postrider_testkit::servers::postgres::{Options, Server, Stop};
use tokio::time::{Instant, sleep};

const LIMIT: BatchLimit =
    BatchLimit { events: 10, bytes: 1 << 20, wait: Duration::from_millis(500) };

#[tokio::test]
async fn cursor() {
    numbers_that_are_given_twice_lose_nothing(Progress::Cursor).await;
}

#[tokio::test]
async fn mark() {
    numbers_that_are_given_twice_lose_nothing(Progress::Mark).await;
}

/// G-01: a number that a transaction was given and that no record on disk has is given again after
/// a crash. A relay may have seen it as one of a transaction that is over.
async fn numbers_that_are_given_twice_lose_nothing(progress: Progress) {
    // Nothing else may write to the disk: no timer of the server, and no lease.
    let settings = vec!["wal_writer_delay = 10s".to_owned(), "autovacuum = off".to_owned()];
    let mut server = Server::start(Options { settings, ..Options::default() }).await;
    let bank = Bank::open(server.url("postgres")).await;
    let target = Target::start().await;
    let lease = Duration::from_secs(60);
    let proxy = Proxy::start(address(bank.url())).await;
    let spec = SourceSpec { lease, ..spec(&proxy.url(bank.url()), progress) };
    let relay = Running::start_lasting(&spec, &target, RelayOptions::default()).await;
    let events = bank.change_often(1, 3).await;
    target.until_arrived(&events).await;
    bank.until_settled().await;
    let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    for tries in 1.. {
        let client = bank.connect().await;
        for _ in 0..50 {
            client.batch_execute("BEGIN; SELECT pg_current_xact_id(); ROLLBACK").await.unwrap();
        }
        let before = bank.number(next).await;
        // So that the relay looks.
        sleep(A_WHILE).await;
        proxy.refuse(true).await;
        proxy.cut();
        server.restart(Stop::Immediate).await;
        let after = bank.number(next).await;
        if after < before - 10 {
            break;
        }
        // Every 15 s the server writes down how far it is, all the same.
        assert!(tries < 5, "no number is given again: {before}, {after}");
        proxy.refuse(false).await;
        let events = bank.change_often(1, 1).await;
        target.until_arrived(&events).await;
        bank.until_settled().await;
    }
    let mut written = Vec::new();
    for account in 0..10 {
        written.extend(bank.change_often(account, 1).await);
    }
    proxy.refuse(false).await;
    target.until_arrived(&written).await;
    bank.check(&target, 0).await;
    relay.stop().await;
}

/// Begins a new segment of the log. Were a transaction written across the end of a page, its
/// first part could reach the disk without its commit, and its number would not be given again.
const AT_THE_START_OF_A_PAGE: &str = "SELECT pg_switch_wal()";

/// G-01: a commit that was visible and not on disk is gone after a crash, and another transaction
/// has its number. A relay that has read the first must not take the second for it.
#[tokio::test]
async fn a_commit_that_was_lost_hides_no_other() {
    for progress in Progress::ALL {
        let settings = vec!["wal_writer_delay = 10s".to_owned(), "autovacuum = off".to_owned()];
        let mut server = Server::start(Options { settings, ..Options::default() }).await;
        let bank = Bank::open(server.url("postgres")).await;
        let spec = spec(bank.url(), progress);
        let source = spec.connect().await.unwrap();
        source.resume().await.unwrap();
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
        let client = bank.connect().await;
        client.batch_execute(AT_THE_START_OF_A_PAGE).await.unwrap();
        client.batch_execute("SET synchronous_commit = off").await.unwrap();
        bank.change(&client, 1).await.unwrap();
        let xid = "SELECT max(xid)::text::bigint FROM outbox";
        let lost = bank.number(xid).await;
        assert_eq!(source.next_batch(LIMIT).await.unwrap().len(), 1, "it is read");
        server.restart(Stop::Immediate).await;
        assert_eq!(bank.number("SELECT count(*) FROM outbox").await, 0, "it is lost");
        bank.change_often(2, 1).await;
        assert_eq!(bank.number(xid).await, lost, "its number is given again");
        // At first it may only notice that the connection is gone.
        let refused = loop {
            match source.next_batch(LIMIT).await {
                Err(error) if error.kind == SourceErrorKind::Unavailable => {}
                other => break other.unwrap_err(),
            }
        };
        assert_eq!(refused.kind, SourceErrorKind::Lost, "{progress}");
        source.give_back().await;
        let source = spec.connect().await.unwrap();
        source.resume().await.unwrap();
        assert_eq!(source.next_batch(LIMIT).await.unwrap().len(), 1, "{progress}");
    }
}

async fn connect(spec: &SourceSpec) -> Box<dyn Source> {
    let source = spec.connect().await.unwrap();
    source.resume().await.unwrap();
    source
}

/// Reads on as a relay does: after a loss it starts anew.
async fn read_on(spec: &SourceSpec, mut source: Box<dyn Source>) -> Vec<Record> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        match source.next_batch(LIMIT).await {
            Ok(records) if records.is_empty() => {}
            Ok(records) => return records,
            Err(error) if error.kind == SourceErrorKind::Lost => {
                source.give_back().await;
                source = connect(spec).await;
            }
            Err(error) => assert_eq!(error.kind, SourceErrorKind::Unavailable),
        }
    }
    Vec::new()
}

/// G-01: one session is killed, so the server recovers without a new start, and loses a commit
/// that was not on disk. Behind a pooler no session of the relay ends. The next event has number
/// and transaction of the one that was lost, and is not settled with it.
#[tokio::test]
async fn a_crash_behind_a_pooler_settles_no_other_event() {
    for progress in Progress::ALL {
        // Images of whole pages would fill some of the log, and full pages are written soon.
        let settings = ["wal_writer_delay = 10s", "autovacuum = off", "full_page_writes = off"];
        let settings = settings.map(str::to_owned).to_vec();
        let server = Server::start(Options { settings, ..Options::default() }).await;
        let bank = Bank::open(server.url("postgres")).await;
        let pooler = Pgbouncer::start(bank.url()).await;
        // Nothing else may write to the disk.
        let lease = Duration::from_secs(60);
        let spec = SourceSpec { lease, ..spec(pooler.url(), progress) };
        let source = connect(&spec).await;
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
        let client = bank.connect().await;
        client.batch_execute(AT_THE_START_OF_A_PAGE).await.unwrap();
        client.batch_execute("SET synchronous_commit = off").await.unwrap();
        bank.change(&client, 1).await.unwrap();
        let number = "SELECT 1000000 * max(xid)::text::bigint + max(seq) FROM outbox";
        let lost = bank.number(number).await;
        let records = source.next_batch(LIMIT).await.unwrap();
        assert_eq!(records.len(), 1, "it is read");
        server.crash().await;
        assert_eq!(bank.number("SELECT count(*) FROM outbox").await, 0, "it is lost");
        bank.change_often(2, 1).await;
        assert_eq!(bank.number(number).await, lost, "its numbers are given again");
        let settlement = Settlement { handle: records[0].handle, verdict: Verdict::Delivered };
        loop {
            // At first it may only notice that the connection of the pooler is gone.
            match source.settle(std::slice::from_ref(&settlement)).await {
                Err(error) if error.kind == SourceErrorKind::Unavailable => {}
                Err(error) => break assert_eq!(error.kind, SourceErrorKind::Lost, "{progress}"),
                Ok(_) => break,
            }
        }
        let left = read_on(&spec, source).await;
        assert_eq!(left.len(), 1, "{progress}: the other event was settled with it");
        assert_eq!(left[0].event.as_ref().unwrap().key().aggregate_id, "2");
    }
}
