//! The network between a relay and its server.

use std::sync::Arc;
use std::time::Duration;

use postrider_testkit::chaos::{Bank, Setup, StandingBy, Target, for_each_progress, until};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::sleep;

use crate::{Line, stubborn};

async fn owner(bank: &Bank) -> Option<String> {
    let query = "SELECT owner FROM outbox_leases WHERE expires_at > clock_timestamp()";
    bank.connect().await.query_opt(query, &[]).await.unwrap().and_then(|row| row.get(0))
}

/// F12, F46, G-09: a relay that cannot reach its database stops sending by its own clock, although
/// it has events in memory and its sink is well. Another one takes over; the first stands by.
#[tokio::test]
async fn a_relay_that_is_cut_off_stops_sending_before_another_takes_over() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let proxy = Proxy::start(address(bank.url())).await;
        let (first_target, second_target) = (Target::start().await, Target::start().await);
        let first_setup = Setup::new(proxy.url(bank.url()), &first_target, progress);
        let second_setup = Setup::new(bank.url(), &second_target, progress);
        let first = StandingBy::start(&first_setup);
        let events = bank.change_often(1, 3).await;
        first_target.until_arrived(&events).await;
        bank.until_settled().await;
        let first_owner = owner(&bank).await;
        // The first one has events in memory that it cannot get rid of.
        first_target.behave(Behaviour::Answers(503)).await;
        let events = bank.change_often(1, 20).await;
        sleep(Duration::from_millis(200)).await;
        proxy.black_hole(true);
        let second = StandingBy::start(&second_setup);
        second_target.until_arrived(&events).await;
        first_target.behave(Behaviour::Well).await;
        sleep(Duration::from_millis(1500)).await;
        assert_eq!(first_target.count(), 3, "{progress}: it sends without a lease");
        proxy.black_hole(false);
        bank.change_often(1, 5).await;
        bank.until_settled().await;
        sleep(Duration::from_millis(500)).await;
        assert_eq!((first_target.count(), second_target.count()), (3, 25), "{progress}");
        let second_owner = owner(&bank).await;
        assert!(second_owner.is_some() && second_owner != first_owner, "{progress}");
        second.stop().await;
        let events = bank.change_often(1, 5).await;
        first_target.until_arrived(&events).await;
        bank.until_settled().await;
        assert_eq!((first_target.count(), second_target.count()), (8, 25), "{progress}");
        for outcome in first.stop().await {
            outcome.result.unwrap();
        }
    })
    .await;
}

/// F47: the server has done it, and the relay never hears of it. Some events are refused, so that
/// they are set aside, in transactions whose COMMIT is not answered.
#[tokio::test]
async fn an_answer_that_is_lost_while_settling_changes_nothing() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let proxy = Proxy::start(address(bank.url())).await;
        let mut line = Line::start(Arc::clone(&bank), &proxy.url(bank.url()), progress).await;
        line.target.behave(Behaviour::RefusesKey("3")).await;
        let mut habits = stubborn();
        habits.accounts = 6;
        let writing = habits.start(&bank);
        for round in 1..=16 {
            let before = line.relay.status().totals;
            match round % 2 {
                0 => proxy.drop_reply_of_commit(),
                _ => proxy.drop_reply_of("lease AS MATERIALIZED"),
            }
            until("the reply is lost", || async { proxy.dropped_replies() >= round }).await;
            line.relay.until("it goes on", |status| status.totals != before).await;
        }
        writing.stop().await;
        bank.until_delivered(&line.target).await;
        let parked = "SELECT count(*) FROM outbox_failures WHERE state = 'parked'";
        assert_eq!(bank.number(parked).await, 1, "{progress}: the first one is parked");
        line.target.behave(Behaviour::Well).await;
        assert_eq!(bank.retry().await, 1);
        let nothing_aside =
            || async { bank.number("SELECT count(*) FROM outbox_failures").await == 0 };
        until("everything set aside is delivered", nothing_aside).await;
        line.finish().await;
    })
    .await;
}

/// F46: slow, and in small pieces.
#[tokio::test]
async fn a_slow_connection_is_only_slow() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let proxy = Proxy::start(address(bank.url())).await;
        let line = Line::start(Arc::clone(&bank), &proxy.url(bank.url()), progress).await;
        let writing = stubborn().start(&bank);
        proxy.slice(7);
        sleep(Duration::from_millis(500)).await;
        proxy.latency(Duration::from_millis(50));
        sleep(Duration::from_millis(500)).await;
        proxy.rate(20_000);
        sleep(Duration::from_millis(500)).await;
        writing.stop().await;
        bank.until_delivered(&line.target).await;
        proxy.heal();
        line.finish().await;
    })
    .await;
}

/// F46: connections that are reset again and again.
#[tokio::test]
async fn connections_that_are_cut_are_made_anew() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let proxy = Proxy::start(address(bank.url())).await;
        let line = Line::start(Arc::clone(&bank), &proxy.url(bank.url()), progress).await;
        let writing = stubborn().start(&bank);
        for _ in 0..20 {
            sleep(Duration::from_millis(fastrand::u64(20..150))).await;
            proxy.cut();
        }
        writing.stop().await;
        line.finish().await;
    })
    .await;
}
