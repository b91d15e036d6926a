//! How far the log is read and confirmed: never too far, and as far as can be.

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::sources::SourceSpec;
use postrider_testkit::chaos::{Bank, Writers, cdc, until};
use postrider_testkit::servers::postgres::{Options, Server};
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::sleep;

use crate::{Line, Reader, Watch, events, stubborn, until_streaming, write_elsewhere};

/// How far the slot is behind the checkpoint.
const BEHIND: &str = "SELECT (c.lsn - s.confirmed_flush_lsn)::bigint
     FROM outbox_checkpoints AS c, pg_replication_slots AS s
     WHERE s.database = current_database() AND s.slot_name LIKE 'postrider_%'";

/// G-01: commit records that touch each other. One byte too much would be one transaction.
#[tokio::test]
async fn a_kill_after_any_commit_loses_none_of_its_neighbours() {
    let bank = Bank::fresh().await;
    let spec = cdc(bank.url());
    let mut reader = Reader::start(&bank, &spec).await;
    let watch = Watch::start(&bank).await;
    let all = bank.change_often(1, 30).await;
    let mut left = all.as_slice();
    while !left.is_empty() {
        let records = reader.read(left.len()).await;
        assert_eq!(events(&records), left, "what is settled does not come again");
        let count = left.len().min(1 + left.len() % 3);
        reader.deliver(&records[..count]).await;
        left = &left[count..];
        until("it is confirmed", || async { bank.number(BEHIND).await == 0 }).await;
        drop(reader);
        reader = Reader::connect(&spec).await.unwrap();
    }
    assert!(reader.batch(300).await.is_empty(), "all of it is settled");
    let seen = watch.stop().await;
    assert_eq!(seen.missing, 0, "it was one slot all the time");
    assert!(seen.confirmed.len() > 10, "{} positions", seen.confirmed.len());
}

/// G-01, G-04: a position that was confirmed is never within a commit, or beyond the checkpoint.
#[tokio::test]
async fn no_position_is_within_a_commit() {
    let bank = Bank::fresh().await;
    let observer = format!("observer_{}", bank.database());
    let make = format!("SELECT pg_create_logical_replication_slot('{observer}', 'pgoutput')");
    let mut line = Line::start(&bank).await;
    bank.run(&make).await;
    bank.change_often(1, 10).await;
    bank.check(&line.target, 0).await;
    let watch = Watch::start(&bank).await;
    const KILLS: usize = 5;
    let writers = Writers { delay_max: Duration::ZERO, ..stubborn() };
    for _ in 0..KILLS {
        let writing = writers.start(&bank);
        sleep(Duration::from_millis(fastrand::u64(300..700))).await;
        line = line.killed(async |_| {}).await;
        writing.stop().await;
    }
    bank.until_delivered(&line.target).await;
    let seen = watch.stop().await;
    assert_eq!(seen.missing, 0, "it was one slot all the time");
    assert!(seen.confirmed.len() > KILLS, "{} positions", seen.confirmed.len());
    // The message of a commit has where its record begins and ends.
    let commits = format!(
        "SELECT ('x' || encode(substr(data, 3, 8), 'hex'))::bit(64)::bigint,
           ('x' || encode(substr(data, 11, 8), 'hex'))::bit(64)::bigint
         FROM pg_logical_slot_peek_binary_changes('{observer}', NULL, NULL, 'proto_version', '1',
           'publication_names', (SELECT string_agg(pubname, ',') FROM pg_publication))
         WHERE get_byte(data, 0) = ascii('C')"
    );
    let commits = bank.connect().await.query(&commits, &[]).await.unwrap();
    assert!(commits.len() > 50, "{} commits", commits.len());
    for row in &commits {
        let (begin, end): (i64, i64) = (row.get(0), row.get(1));
        let within = seen.confirmed.iter().find(|lsn| (begin + 1..end).contains(lsn));
        assert_eq!(within, None, "within the commit from {begin} to {end}");
    }
    bank.run(&format!("SELECT pg_drop_replication_slot('{observer}')")).await;
    line.finish_after(KILLS).await;
}

/// G-03, G-04: events of one transaction share a position.
#[tokio::test]
async fn a_restart_within_a_transaction_repeats_what_is_left_of_it() {
    let bank = Bank::fresh().await;
    let spec = cdc(bank.url());
    let mut reader = Reader::start(&bank, &spec).await;
    let client = bank.connect().await;
    let mut left = Vec::new();
    for _ in 0..3 {
        client.batch_execute("BEGIN").await.unwrap();
        for account in 1..=10 {
            left.push(bank.change(&client, account).await.unwrap());
        }
        client.batch_execute("COMMIT").await.unwrap();
    }
    while !left.is_empty() {
        let records = reader.read(left.len()).await;
        assert_eq!(events(&records), left);
        // The first, and some that are not.
        let chosen: Vec<_> = records.iter().step_by(4).cloned().collect();
        reader.deliver(&chosen).await;
        let chosen = events(&chosen);
        left.retain(|event| !chosen.contains(event));
        drop(reader);
        reader = Reader::connect(&spec).await.unwrap();
    }
    assert!(reader.batch(300).await.is_empty(), "all of it is settled");
    let lost = "SELECT count(*) FROM outbox_checkpoints WHERE lsn IS NULL";
    assert_eq!(bank.number(lost).await, 0, "it was read from the log");
}

/// F35: what others write is not kept for an outbox in which nothing happens.
#[tokio::test]
async fn the_slot_of_an_idle_outbox_moves_on() {
    let server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let spec = SourceSpec { lease: Duration::from_secs(3), ..cdc(bank.url()) };
    let line = Line::start_with(&bank, spec).await;
    bank.change_often(1, 10).await;
    bank.check(&line.target, 0).await;
    let watch = Watch::start(&bank).await;
    write_elsewhere(&server.connect().await, 50).await;
    let far = "SELECT count(*) FROM pg_replication_slots
         WHERE pg_current_wal_lsn() - confirmed_flush_lsn < (4 << 20)";
    until("the slot moves on", || async { bank.number(far).await == 1 }).await;
    assert_eq!(watch.stop().await.missing, 0);
    let settled = "SELECT (pg_current_wal_lsn() - lsn)::bigint FROM outbox_checkpoints";
    assert!(bank.number(settled).await < 4 << 20);
    line.finish().await;
}

/// F36: a sink that takes nothing for a while costs neither the stream nor an event.
#[tokio::test]
async fn a_sink_that_is_away_does_not_end_the_stream() {
    let settings = vec!["wal_sender_timeout = '5s'".to_owned()];
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    // More than the relay receives ahead.
    bank.run(
        "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('change'::regproc),
             '(''event'', event)', '(''event'', event, ''more'', repeat(''x'', 10000))'); END $$",
    )
    .await;
    let line = Line::start(&bank).await;
    bank.change_often(1, 5).await;
    bank.check(&line.target, 0).await;
    line.target.behave(Behaviour::Away).await;
    let reader = "SELECT pid::bigint FROM pg_stat_replication";
    let before = bank.number(reader).await;
    bank.change_often(1, 1500).await;
    sleep(Duration::from_secs(11)).await;
    assert_eq!(bank.number(reader).await, before, "it is the same stream");
    line.target.behave(Behaviour::Well).await;
    bank.until_delivered(&line.target).await;
    assert_eq!(bank.number(reader).await, before, "it is the same stream");
    line.finish().await;
}

/// G-04: an orderly stop has the server know everything.
#[tokio::test]
async fn an_orderly_stop_is_visible_in_the_slot() {
    let bank = Bank::fresh().await;
    let mut line = Line::start(&bank).await;
    let writing = stubborn().start(&bank);
    for _ in 0..5 {
        sleep(Duration::from_millis(400)).await;
        let is_shown = async |bank: &Bank| assert_eq!(bank.number(BEHIND).await, 0);
        line = line.stopped(is_shown).await;
        until_streaming(&bank).await;
    }
    writing.stop().await;
    line.finish().await;
}
