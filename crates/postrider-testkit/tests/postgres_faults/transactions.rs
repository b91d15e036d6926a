//! A crash takes numbers of transactions back.

use std::time::Duration;

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
    let relay = Running::start(&spec, &target).await;
    let events = bank.change_often(1, 3).await;
    target.until_arrived(&events).await;
    bank.until_settled().await;
    let client = bank.connect().await;
    for _ in 0..50 {
        client.batch_execute("BEGIN; SELECT pg_current_xact_id(); ROLLBACK").await.unwrap();
    }
    let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
    let before = bank.number(next).await;
    // So that the relay looks.
    sleep(A_WHILE).await;
    proxy.refuse(true).await;
    proxy.cut();
    server.restart(Stop::Immediate).await;
    let after = bank.number(next).await;
    assert!(after < before - 10, "no number is given again: {before}, {after}");
    let mut written = Vec::new();
    for account in 0..10 {
        written.extend(bank.change_often(account, 1).await);
    }
    proxy.refuse(false).await;
    target.until_arrived(&written).await;
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 13);
}
