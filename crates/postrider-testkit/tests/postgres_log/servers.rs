//! The server crashes, or another one takes its place.

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::sources::{Mode, Progress};
use postrider_testkit::chaos::{Bank, Setup, StandingBy, Target, cdc, until};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::servers::postgres::{Options, Server, Stop};
use tokio::time::sleep;

use crate::{Line, stubborn, until_streaming};

/// F45: a slot comes back at an older position than was confirmed.
#[tokio::test]
async fn a_server_that_crashes_again_and_again_loses_nothing() {
    let mut server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let line = Line::start(&bank).await;
    let writing = stubborn().start(&bank);
    const RESTARTS: usize = 8;
    for round in 0..RESTARTS {
        sleep(Duration::from_millis(fastrand::u64(200..800))).await;
        if round % 2 == 0 {
            server.restart(Stop::Immediate).await;
        } else {
            server.restart(Stop::Fast).await;
        }
    }
    until_streaming(&bank).await;
    sleep(Duration::from_millis(300)).await;
    writing.stop().await;
    assert!(bank.facts().await.len() > 20, "hardly anything was written");
    line.finish_after(RESTARTS).await;
}

/// F45: while the relay is down, so that it has nothing in memory.
#[tokio::test]
async fn a_crash_between_two_runs_repeats_nothing() {
    let mut server = Server::start(Options::default()).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let Line { target, spec, relay, .. } = Line::start(&bank).await;
    bank.change_often(1, 50).await;
    bank.check(&target, 0).await;
    relay.stop().await;
    bank.change_often(1, 10).await;
    server.restart(Stop::Immediate).await;
    bank.change_often(1, 10).await;
    let relay = crate::again(&bank, &spec, &target).await;
    Line { bank, target, spec, relay }.finish().await;
}

/// F45: connections that are cut again and again.
#[tokio::test]
async fn a_stream_that_is_cut_goes_on() {
    let bank = Bank::fresh().await;
    let proxy = Proxy::start(address(bank.url())).await;
    let line = Line::start_with(&bank, cdc(&proxy.url(bank.url()))).await;
    let writing = stubborn().start(&bank);
    const CUTS: usize = 10;
    for _ in 0..CUTS {
        sleep(Duration::from_millis(fastrand::u64(50..400))).await;
        proxy.cut();
    }
    // Only the stream.
    for _ in 0..CUTS {
        sleep(Duration::from_millis(fastrand::u64(50..200))).await;
        let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
             WHERE active_pid IS NOT NULL AND database = current_database()";
        bank.run(end).await;
    }
    writing.stop().await;
    line.finish().await;
}

/// F39: the new primary has no slot, lacks commits, and gives their numbers again.
#[tokio::test]
async fn a_failover_is_healed_from_the_table() {
    let mut primary = Server::start(Options::default()).await;
    let standby = primary.standby().await;
    let bank = Bank::open(primary.url("postgres")).await;
    let way_to_standby = Proxy::start(address(&standby.url("postgres"))).await;
    way_to_standby.refuse(true).await;
    let both = format!("{},{}", address(bank.url()), way_to_standby.address());
    let both = bank.url().replace(address(bank.url()), &both);
    let target = Target::start().await;
    // What is wrong must not be mended by a lease that runs out.
    let lease = Duration::from_secs(120);
    let setup = Setup::new(both, &target, Progress::Cursor);
    let relay = StandingBy::start(&Setup { mode: Mode::Cdc, lease, ..setup });
    let events = bank.change_often(1, 10).await;
    target.until_arrived(&events).await;
    until_streaming(&bank).await;
    let events = bank.change_often(1, 10).await;
    target.until_arrived(&events).await;
    bank.until_settled().await;
    let at = bank.text("SELECT pg_current_wal_flush_lsn()::text").await.unwrap();
    let replica = standby.connect().await;
    let is_there = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
    until("the replica follows", || async {
        replica.query_one(&is_there, &[]).await.unwrap().get(0)
    })
    .await;
    for statement in ["ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"] {
        replica.batch_execute(statement).await.unwrap();
    }
    let is_alone = "SELECT count(*) = 0 FROM pg_stat_wal_receiver";
    until("the replica is cut off", || async {
        replica.query_one(is_alone, &[]).await.unwrap().get(0)
    })
    .await;
    let lost = bank.change_often(1, 100).await;
    target.until_arrived(&lost).await;
    bank.until_settled().await;
    primary.kill9().await;
    replica.batch_execute("SELECT pg_promote()").await.unwrap();
    let new = Bank::at(standby.url("postgres"), 1000);
    assert_eq!(new.number(crate::SLOTS).await, 0, "slots do not follow");
    let mut written = new.change_often(2, 200).await;
    way_to_standby.refuse(false).await;
    new.until_delivered(&target).await;
    until_streaming(&new).await;
    written.extend(new.change_often(2, 50).await);
    new.until_delivered(&target).await;
    new.until_settled().await;
    let mut arrived = target.events();
    arrived.retain(|event| written.contains(event));
    arrived.dedup();
    assert_eq!(arrived, written, "the order is that of commits, and nothing comes twice");
    relay.stop().await;
}
