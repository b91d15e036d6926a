//! A crash takes numbers of transactions back.

use std::time::Duration;

use postrider_relay::pipeline::Options as RelayOptions;
use postrider_relay::source::{BatchLimit, SourceErrorKind};
use postrider_relay::sources::{Progress, SourceSpec};
use postrider_testkit::chaos::{A_WHILE, Bank, Running, Target, spec};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::servers::postgres::{Options, Server, Stop};
use tokio::time::sleep;

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

/// G-01: a commit that was visible and not on disk is gone after a crash, and another transaction
/// has its number. A relay that has read the first must not take the second for it.
#[tokio::test]
async fn a_commit_that_was_lost_hides_no_other() {
    const LIMIT: BatchLimit =
        BatchLimit { events: 10, bytes: 1 << 20, wait: Duration::from_millis(500) };
    for progress in Progress::ALL {
        let settings = vec!["wal_writer_delay = 10s".to_owned(), "autovacuum = off".to_owned()];
        let mut server = Server::start(Options { settings, ..Options::default() }).await;
        let bank = Bank::open(server.url("postgres")).await;
        let spec = spec(bank.url(), progress);
        let source = spec.connect().await.unwrap();
        source.resume().await.unwrap();
        assert!(source.next_batch(LIMIT).await.unwrap().is_empty());
        let client = bank.connect().await;
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
