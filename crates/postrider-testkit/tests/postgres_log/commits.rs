//! Commits that come late, in two phases, or that wait for a replica.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postrider::schema::TableName;
use postrider_relay::shutdown::shutdown;
use postrider_relay::source::SourceErrorKind;
use postrider_relay::sources::connect_slots;
use postrider_testkit::chaos::{Bank, Running, Target, cdc, until};
use postrider_testkit::servers::postgres::{Options, Server};
use tokio::time::sleep;

use crate::{Line, Reader, SLOTS, again, drop_slot, events, options};

const NONE: [u64; 0] = [];

/// A slot waits for whatever is open. Meanwhile the table is read, and a relay may die.
#[tokio::test]
async fn an_open_transaction_delays_the_slot_and_nothing_else() {
    let bank = Bank::fresh().await;
    let late = bank.connect().await;
    late.batch_execute("BEGIN").await.unwrap();
    let event = bank.change(&late, 50).await.unwrap();
    let target = Target::start().await;
    let spec = cdc(bank.url());
    let mut relay = Running::start_lasting(&spec, &target, options()).await;
    for _ in 0..2 {
        let events = bank.change_often(1, 5).await;
        target.until_arrived(&events).await;
        until("a slot is being made", || async { bank.number(SLOTS).await == 1 }).await;
        relay.kill().await;
        relay = again(&bank, &spec, &target).await;
    }
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    relay.stop().await;
    until("nothing is left of it", || async { bank.number(SLOTS).await == 0 }).await;
    let relay = again(&bank, &spec, &target).await;
    let events = bank.change_often(1, 5).await;
    target.until_arrived(&events).await;
    late.batch_execute("COMMIT").await.unwrap();
    bank.confirm(&[event]);
    target.until_arrived(&[event]).await;
    Line { bank, target, spec, relay }.finish_after(3).await;
}

/// Transactions that were prepared before the slot and after it, over restarts of relay and
/// server.
#[tokio::test]
async fn prepared_transactions_come_once_they_are_committed() {
    let server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let prepare = async |name: &str, account: u64| {
        let client = bank.connect().await;
        client.batch_execute("BEGIN").await.unwrap();
        let event = bank.change(&client, account).await.unwrap();
        client.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).await.unwrap();
        event
    };
    let mut line = Line::start(&bank).await;
    let one = prepare("one", 51).await;
    let two = prepare("two", 52).await;
    bank.change_often(1, 5).await;
    bank.until_delivered(&line.target).await;
    line = line
        .stopped(async |bank| {
            bank.change_often(1, 5).await;
            bank.run("COMMIT PREPARED 'one'").await;
        })
        .await;
    line.target.until_arrived(&[one]).await;
    let three = prepare("three", 53).await;
    line = line.killed(async |_| {}).await;
    bank.run("ROLLBACK PREPARED 'three'").await;
    bank.run("COMMIT PREPARED 'two'").await;
    line.target.until_arrived(&[two]).await;
    bank.change_often(1, 5).await;
    bank.until_delivered(&line.target).await;
    assert!(!line.target.has(three));
    line.finish_after(1).await;
}

/// A commit that waits for a replica is in the log before anybody sees it. It comes once, and is
/// not taken for one that only the log has.
#[tokio::test]
async fn commits_that_wait_for_a_replica_are_delivered_once() {
    let server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let wait = async |on: bool| {
        let names = if on { "nobody" } else { "" };
        let client = server.connect().await;
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'");
        client.batch_execute("SET synchronous_commit = local").await.unwrap();
        client.batch_execute(&set).await.unwrap();
        client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    };
    let is_waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let url = format!("{}?options=-csynchronous_commit%3Dlocal", bank.url());
    let spec = cdc(&url);
    let mut reader = Reader::start(&bank, &spec).await;
    for round in 0..4 {
        wait(true).await;
        let waiting = Arc::clone(&bank);
        let writer = tokio::spawn(async move { waiting.change_often(1, 1).await });
        until("the commit waits", || async { bank.number(is_waiting).await == 1 }).await;
        if round >= 2 {
            // On the way to the log.
            reader.close().await;
            drop_slot(&bank).await;
            reader = Reader::connect(&spec).await.unwrap();
            for _ in 0..20 {
                assert_eq!(events(&reader.batch(20).await), NONE, "nobody sees it yet");
            }
            wait(false).await;
        }
        let records = reader.read(1).await;
        reader.deliver(&records).await;
        sleep(Duration::from_millis(100)).await;
        if round == 1 {
            drop(reader);
            reader = Reader::connect(&spec).await.unwrap();
        }
        wait(false).await;
        assert_eq!(events(&records), writer.await.unwrap());
        let next = bank.change_often(1, 2).await;
        let records = reader.read(2).await;
        assert_eq!(events(&records), next, "it does not come again");
        reader.deliver(&records).await;
        reader.get_to_log(&bank).await;
    }
    let log_only = "SELECT count(*) FROM outbox_checkpoints WHERE log_only";
    assert_eq!(bank.number(log_only).await, 0);
    reader.close().await;
    drop_slot(&bank).await;
    let reader = Reader::connect(&spec).await.unwrap();
    assert!(reader.batch(300).await.is_empty(), "the table has nothing that was not settled");
    reader.get_to_log(&bank).await;
}

/// Commits would wait for the pipeline, and the pipeline for its own commits.
#[tokio::test]
async fn a_server_that_waits_for_everybody_is_refused() {
    let server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let client = server.connect().await;
    for statement in [
        "SET synchronous_commit = local",
        "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'",
        "SELECT pg_reload_conf()",
    ] {
        client.batch_execute(statement).await.unwrap();
    }
    let is_set = "SELECT count(*) FROM pg_settings
         WHERE name = 'synchronous_standby_names' AND setting LIKE '%*%'";
    until("it is set", || async { bank.number(is_set).await == 1 }).await;
    let read = cdc(bank.url()).connect().await.err().expect("it is refused");
    let slots = connect_slots(bank.url(), &TableName::default(), &BTreeMap::new()).await.unwrap();
    let (_stop, stopped) = shutdown();
    let made = slots.create("default", &stopped).await.expect_err("so is a slot");
    for error in [read, made] {
        assert_eq!(error.kind, SourceErrorKind::Misconfigured, "{}", error.details());
        assert!(error.details().contains("name the standbys"), "{}", error.details());
    }
}
