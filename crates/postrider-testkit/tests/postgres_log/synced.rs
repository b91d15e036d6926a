//! A slot that follows a standby, which becomes the primary.

use std::time::Duration;

use postrider_relay::pipeline::Window;
use postrider_relay::sources::{Mode, Progress};
use postrider_testkit::chaos::{Bank, Setup, StandingBy, Target, until};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::servers::postgres::{Options, Server, shared_programs};

use tokio::time::sleep;

use crate::until_streaming;

/// From here on slots can follow a standby.
const SYNCED_SINCE: i64 = 17;

/// Waits until a query of a server answers true.
async fn until_so(server: &Server, what: &str, query: &str) {
    let client = server.connect().await;
    until(what, || async { client.query_one(query, &[]).await.unwrap().get(0) }).await;
}

async fn set(server: &Server, settings: &[String]) {
    let client = server.connect().await;
    for setting in settings {
        client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await.unwrap();
    }
    client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
}

/// G-01, F39: the relay goes on in the slot that the standby has, and nothing is lost.
#[tokio::test]
async fn a_slot_that_has_followed_the_standby_is_gone_on_with() {
    let programs = shared_programs().await;
    let mut primary = Server::start(Options { programs, ..Options::default() }).await;
    let bank = Bank::open(primary.url("postgres")).await;
    let version = bank.number("SELECT current_setting('server_version_num')::bigint / 10000").await;
    if version < SYNCED_SINCE {
        println!(
            "not run: slots follow a standby from PostgreSQL {SYNCED_SINCE} on, here is {version}"
        );
        return;
    }
    bank.run("SELECT pg_create_physical_replication_slot('standby', true)").await;
    let standby = primary.standby().await;
    let settings = [
        "primary_slot_name = 'standby'".to_owned(),
        "hot_standby_feedback = on".to_owned(),
        "sync_replication_slots = on".to_owned(),
    ];
    set(&standby, &settings).await;
    let follows = "SELECT EXISTS (SELECT FROM pg_replication_slots
         WHERE slot_name = 'standby' AND active AND xmin IS NOT NULL)";
    until_so(&primary, "the standby follows by its slot", follows).await;
    // What the standby does not have is not read from the log.
    set(&primary, &["synchronized_standby_slots = 'standby'".to_owned()]).await;
    let way_to_standby = Proxy::start(address(&standby.url("postgres"))).await;
    way_to_standby.refuse(true).await;
    let both = format!("{},{}", address(bank.url()), way_to_standby.address());
    let both = bank.url().replace(address(bank.url()), &both);
    let target = Target::start().await;
    // What is wrong must not be repaired by a lease that runs out.
    let lease = Duration::from_secs(120);
    let setup = Setup::new(both, &target, Progress::Cursor);
    let relay = StandingBy::start(&Setup { mode: Mode::Cdc, lease, ..setup });
    let events = bank.change_often(1, 10).await;
    target.until_arrived(&events).await;
    until_streaming(&bank).await;
    let synced = "SELECT count(*) = 1 FROM pg_replication_slots
         WHERE synced AND NOT temporary AND invalidation_reason IS NULL";
    // The slot is copied once it has moved on, and it moves on where the log has a snapshot.
    let client = standby.connect().await;
    let mut before = events;
    let mut tries = 0;
    while !client.query_one(synced, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(tries < 600, "the slot has not come to the standby");
        tries += 1;
        bank.run("SELECT pg_log_standby_snapshot()").await;
        before.extend(bank.change_often(1, 1).await);
        sleep(Duration::from_millis(100)).await;
    }
    before.extend(bank.change_often(1, 100).await);
    target.until_arrived(&before).await;
    bank.until_settled().await;
    let late = bank.change_often(3, 20).await;
    let at = bank.text("SELECT pg_current_wal_flush_lsn()::text").await.unwrap();
    let is_there = format!("SELECT pg_last_wal_replay_lsn() >= '{at}'::pg_lsn");
    until_so(&standby, "the standby has everything", &is_there).await;
    primary.kill9().await;
    standby.connect().await.batch_execute("SELECT pg_promote()").await.unwrap();
    let new = Bank::at(standby.url("postgres"), 1000);
    let mut written = new.change_often(2, 100).await;
    way_to_standby.refuse(false).await;
    new.until_delivered(&target).await;
    until_streaming(&new).await;
    assert_eq!(
        new.number("SELECT count(*) FROM pg_replication_slots WHERE synced").await,
        1,
        "it is the slot that has followed"
    );
    written.extend(new.change_often(2, 50).await);
    new.until_delivered(&target).await;
    new.until_settled().await;
    assert!(before.iter().chain(&late).all(|event| target.has(*event)), "nothing is lost");
    let mut arrived = target.events();
    let all = before.len() + late.len() + written.len();
    let repeated = arrived.len() - all;
    assert!(repeated <= Window::default().events_max, "{repeated} came again");
    arrived.retain(|event| written.contains(event));
    arrived.dedup();
    assert_eq!(arrived, written, "the order is that of commits");
    relay.stop().await;
}
