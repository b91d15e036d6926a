//! What is in the log: large rows, large transactions, parts that are taken back, events that
//! are due later, and events of others.

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::admin::Selection;
use postrider_relay::sources::SourceSpec;
use postrider_testkit::chaos::{Bank, cdc, until};
use postrider_testkit::servers::postgres::{Options, Server};
use tokio::time::{Instant, sleep};

use crate::{Line, stubborn};

/// G-05: rows of other writers, which are too large to be sent.
#[tokio::test]
async fn a_payload_that_is_too_large_is_parked_with_its_size() {
    let server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    bank.run("ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL").await;
    let line = Line::start(&bank).await;
    for (bytes, account) in [(5_000_000, 100), (50_000_000, 101)] {
        bank.change_often(1, 5).await;
        bank.run(&format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             VALUES ('Account', '{account}', 'Large', repeat('x', {bytes})::bytea)"
        ))
        .await;
        let after = bank.change_often(1, 5).await;
        line.target.until_arrived(&after).await;
        let admin = bank.admin().await;
        until("it is parked", || async {
            !admin.dead_letters(&Selection::default(), None, 10).await.unwrap().is_empty()
        })
        .await;
        let letters = admin.dead_letters(&Selection::default(), None, 10).await.unwrap();
        assert_eq!(letters[0].key.aggregate_id, account.to_string());
        assert!(letters[0].error.contains(&bytes.to_string()), "{}", letters[0].error);
        assert_eq!(admin.discard(&Selection::default()).await.unwrap(), 1);
    }
    line.finish().await;
}

/// G-04, G-05: rows with numbers that no writer gets pass through the log, and a relay that starts
/// again, on the table or the log, is stopped by none of them.
#[tokio::test]
async fn numbers_at_their_limits_stop_nothing() {
    let server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let line = Line::start(&bank).await;
    let first = bank.change_often(1, 2).await;
    line.target.until_arrived(&first).await;
    for (seq, xid) in [
        (i64::MAX, "pg_current_xact_id()"),
        (i64::MIN, "pg_current_xact_id()"),
        (i64::MAX - 1, "'18446744073709551615'::xid8"),
        (-7, "'1099511627776'::xid8"),
    ] {
        bank.run(&format!(
            "INSERT INTO outbox (seq, aggregate_type, aggregate_id, event_type, payload, xid)
             OVERRIDING SYSTEM VALUE
             VALUES ({seq}, 'Account', 'n', 'Odd', '{{\"event\": 0}}', {xid})"
        ))
        .await;
        let after = bank.change_often(1, 2).await;
        line.target.until_arrived(&after).await;
    }
    // A start looks into the table, too.
    let line = line.killed(async |_| {}).await;
    let after = bank.change_often(2, 2).await;
    line.target.until_arrived(&after).await;
    line.relay.stop().await;
}

/// F36: what the server spills, and savepoints that are taken back.
#[tokio::test]
async fn large_transactions_come_without_what_was_taken_back() {
    let settings = vec!["logical_decoding_work_mem = '64kB'".to_owned()];
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let line = Line::start(&bank).await;
    let writing = stubborn().start(&bank);
    let client = bank.connect().await;
    client.batch_execute("BEGIN").await.unwrap();
    let mut first = 1_000_000;
    for round in 0..10 {
        let changes =
            format!("SELECT change({first} + e, 100 + e % 20) FROM generate_series(1, 300) AS e");
        first += 1000;
        client.batch_execute("SAVEPOINT here").await.unwrap();
        client.batch_execute(&changes).await.unwrap();
        if round % 3 == 0 {
            client.batch_execute("ROLLBACK TO here").await.unwrap();
        } else {
            client.batch_execute("RELEASE here").await.unwrap();
        }
    }
    client.batch_execute("COMMIT").await.unwrap();
    let spilled = "SELECT count(*) FROM pg_stat_replication_slots WHERE spill_count > 0";
    writing.stop().await;
    bank.until_delivered(&line.target).await;
    until("it was spilled", || async { bank.number(spilled).await == 1 }).await;
    let large = bank.number("SELECT count(*) FROM facts WHERE account >= 100").await;
    assert_eq!(large, 6 * 300);
    line.finish().await;
}

/// F36: a relay that dies again and again within one transaction gets through it.
#[tokio::test]
async fn a_large_transaction_outlasts_relays() {
    let bank = Bank::fresh().await;
    let mut line = Line::start(&bank).await;
    let changes = "SELECT change(1000000 + e, e % 20) FROM generate_series(1, 3000) AS e";
    bank.run(changes).await;
    const KILLS: usize = 5;
    for kill in 1..=KILLS {
        until("some arrive", || async { line.target.count() >= 300 * kill }).await;
        line = line.killed(async |_| {}).await;
    }
    line.finish_after(KILLS).await;
}

/// An event is due later, also after a restart.
#[tokio::test]
async fn events_are_not_sent_before_their_time() {
    let bank = Bank::fresh().await;
    let line = Line::start(&bank).await;
    let delay = Duration::from_secs(3);
    let begun = Instant::now();
    bank.run(
        "INSERT INTO facts VALUES (900, 50, 1), (901, 51, 1);
         SELECT outbox_publish('Account', '50', 'Later', '{\"event\": 900}'::jsonb,
             deliver_after => clock_timestamp() + interval '3 s');
         SELECT outbox_publish('Account', '51', 'Now', '{\"event\": 901}'::jsonb,
             deliver_after => clock_timestamp() - interval '3 s')",
    )
    .await;
    line.target.until_arrived(&[901]).await;
    let events = bank.change_often(1, 10).await;
    line.target.until_arrived(&events).await;
    let line = line.killed(async |_| {}).await;
    sleep(Duration::from_millis(500)).await;
    assert!(begun.elapsed() < delay && !line.target.has(900), "it is too early");
    line.target.until_arrived(&[900]).await;
    assert!(begun.elapsed() >= delay, "{:?}", begun.elapsed());
    line.finish_after(1).await;
}

/// Events of other types pass by.
#[tokio::test]
async fn events_of_other_types_pass_by() {
    let bank = Bank::fresh().await;
    let aggregate_types = vec!["Account".to_owned()];
    // What is passed over is written down with the lease.
    let lease = Duration::from_secs(3);
    let spec = SourceSpec { aggregate_types, lease, ..cdc(bank.url()) };
    let mut line = Line::start_with(&bank, spec).await;
    let others = "SELECT outbox_publish('Other', e::text, 'Other', '{}'::jsonb)
         FROM generate_series(1, 20) AS e;
         SELECT outbox_publish_message('Other', e::text, 'Other', '{}'::jsonb)
         FROM generate_series(1, 20) AS e";
    for _ in 0..3 {
        bank.run(others).await;
        let client = bank.connect().await;
        client.batch_execute("BEGIN").await.unwrap();
        client.batch_execute(others).await.unwrap();
        let event = bank.change(&client, 2).await.unwrap();
        client.batch_execute(others).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        bank.confirm(&[event]);
        bank.change_often(1, 5).await;
        bank.run(others).await;
        line = line.stopped(async |bank| bank.run(others).await).await;
    }
    line.finish().await;
}
