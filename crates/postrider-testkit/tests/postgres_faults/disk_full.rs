//! The server has no room left for a while.

use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{Bank, Running, Target, spec};
use postrider_testkit::servers::postgres::{Limit, Options, Server, Stop, can_limit_size};
use postrider_testkit::suites::sink::Behaviour;

const ROOM: u64 = 400 << 20;

/// Publishes many events at once. They are the facts of one account.
async fn change_many(bank: &Bank) {
    bank.run("SELECT change(event, 1) FROM generate_series(1001, 6000) AS event").await;
}

/// G-01, G-04: marking rows takes room.
#[tokio::test]
async fn a_relay_waits_for_room_for_data() {
    if !can_limit_size() {
        println!("not run: this takes the right to mount");
        return;
    }
    let limit = Some(Limit::Data(60 << 20));
    let server = Server::start(Options { limit, ..Options::default() }).await;
    let bank = Bank::open(server.url("postgres")).await;
    let target = Target::start().await;
    target.behave(Behaviour::Answers(503)).await;
    change_many(&bank).await;
    let mut relay = Running::start(&spec(bank.url(), Progress::Mark), &target).await;
    let client = bank.connect().await;
    client.batch_execute("CREATE TABLE full_up (text text)").await.unwrap();
    for rows in [1000, 10, 1] {
        let fill = format!(
            "INSERT INTO full_up SELECT repeat(md5(random()::text), 50) FROM generate_series(1, {rows})"
        );
        while client.batch_execute(&fill).await.is_ok() {}
    }
    target.behave(Behaviour::Well).await;
    let is_full = |trouble: &String| trouble.contains("No space left on device");
    relay.until("it says so", |status| status.source_trouble.as_ref().is_some_and(is_full)).await;
    server.resize(ROOM);
    relay.until("it goes on", |status| status.source_trouble.is_none()).await;
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 5000);
}

#[tokio::test]
async fn cursor() {
    a_relay_outlives_a_server_without_room_for_its_log(Progress::Cursor).await;
}

#[tokio::test]
async fn mark() {
    a_relay_outlives_a_server_without_room_for_its_log(Progress::Mark).await;
}

/// G-01, G-04: a full log ends the server.
async fn a_relay_outlives_a_server_without_room_for_its_log(progress: Progress) {
    if !can_limit_size() {
        println!("not run: this takes the right to mount");
        return;
    }
    let limit = Some(Limit::Wal(40 << 20));
    let mut server = Server::start(Options { limit, ..Options::default() }).await;
    let bank = Bank::open(server.url("postgres")).await;
    let target = Target::start().await;
    let mut relay = Running::start(&spec(bank.url(), progress), &target).await;
    change_many(&bank).await;
    let fill = "CREATE TABLE full_up AS SELECT repeat('x', 1000) FROM generate_series(1, 60000)";
    assert!(bank.connect().await.batch_execute(fill).await.is_err());
    relay.until("it says so", |status| status.source_trouble.is_some()).await;
    server.stop(Stop::Immediate).await;
    server.resize(ROOM);
    server.start_again().await.unwrap();
    relay.until("it goes on", |status| status.source_trouble.is_none()).await;
    bank.change_often(2, 5).await;
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 5005);
}
