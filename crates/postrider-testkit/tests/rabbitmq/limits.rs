//! Messages that are too large, answers that do not come, and calls that are given up.

use std::time::Duration;

use postrider_relay::sink::FailureKind::{Rejected, Throttled, Unavailable};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::servers::rabbitmq::{Exchange, Options, Server, shared};
use postrider_testkit::suites::numbered::building;
use tokio::time::timeout;

use crate::{DEADLINE, assert_error, connect, message, message_of, publish, until};

/// The server closes the channel for it, and tells its limit only then.
#[tokio::test]
async fn an_event_that_the_server_finds_too_large_is_rejected_with_its_size() {
    let settings = vec!["max_message_size = 10000".to_owned()];
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let exchange = Exchange::fresh_at(&server.url(), &[]).await;
    let sink = connect(&server.url(), "").await;
    let large = |number| {
        let event = building("large", number).payload(vec![b'x'; 10_001], "text/plain");
        message_of(event.build().unwrap(), &exchange.name)
    };
    let messages = [message(&exchange.name, "a", 1), large(2), message(&exchange.name, "b", 3)];
    let answers = sink.publish(&messages).await;
    assert_error(answers[1].clone(), Rejected, &["the event has 10001 bytes", "max_message_size"]);
    for answer in [&answers[0], &answers[2]] {
        // It may have been confirmed before, and else nothing is known of it.
        if answer.is_err() {
            assert_error(answer.clone(), Unavailable, &["larger than configured max size 10000"]);
        }
    }
    // From then on it is known.
    assert_eq!(sink.capabilities().event_bytes_max, 10_000);
    let answers = sink.publish(&messages).await;
    assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
    assert_error(answers[1].clone(), Rejected, &["has 10001 bytes, and at most 10000 are sent"]);
    assert!(exchange.read().await.iter().all(|read| read.body.len() <= 10_000));
}

#[tokio::test]
async fn what_amqp_cannot_carry_is_rejected_alone() {
    let exchange = Exchange::fresh().await;
    let sink = connect(&shared(), "event_bytes_max = 1000").await;
    let long = "k".repeat(256);
    let event = building("b", 3).payload(vec![b'x'; 1001], "text/plain").build().unwrap();
    let messages = [
        message(&exchange.name, "a", 1),
        message(&exchange.name, &long, 2),
        message_of(event, &exchange.name),
        message(&exchange.name, &long[..255], 4),
        message(&long, "c", 5),
    ];
    let answers = sink.publish(&messages).await;
    assert_eq!((&answers[0], &answers[3]), (&Ok(()), &Ok(())));
    assert_error(answers[1].clone(), Rejected, &["the routing key has 256 bytes"]);
    assert_error(answers[2].clone(), Rejected, &["the event has 1001 bytes"]);
    assert_error(answers[4].clone(), Rejected, &["the name of the exchange has 256 bytes"]);
    assert_eq!(exchange.read().await.len(), 2);
}

/// A queue may have lost its majority, or the network its way.
#[tokio::test]
async fn what_is_not_confirmed_in_time_is_tried_again_later() {
    let exchange = Exchange::fresh().await;
    let proxy = Proxy::start(address(&shared())).await;
    let options = "confirm_timeout = \"1s\"\nconnect_timeout = \"1s\"";
    let sink = connect(&proxy.url(&shared()), options).await;
    let is_taken = |number| {
        let (sink, message) = (&sink, message(&exchange.name, "a", number));
        async move { publish(&**sink, message).await.is_ok() }
    };
    // On a busy machine it may take longer than the sink waits.
    until("it is confirmed", || is_taken(1)).await;
    proxy.black_hole(true);
    let second = || timeout(DEADLINE, publish(&*sink, message(&exchange.name, "a", 2)));
    let answer = second().await.expect("it is not waited for any longer");
    assert_error(answer, Throttled, &["has not confirmed", "within 1s"]);
    let answer = second().await.expect("it is not waited for any longer");
    assert_error(answer, Unavailable, &["no answer within 1s"]);
    proxy.cut();
    proxy.heal();
    until("it is confirmed", || is_taken(2)).await;
}

/// A server that is silent is known to be dead by the missing heartbeats.
#[tokio::test]
async fn a_silent_server_is_noticed_by_its_heartbeat() {
    let exchange = Exchange::fresh().await;
    let proxy = Proxy::start(address(&shared())).await;
    let options = "confirm_timeout = \"1h\"\nheartbeat = \"3s\"";
    let sink = connect(&proxy.url(&shared()), options).await;
    assert_eq!(publish(&*sink, message(&exchange.name, "a", 1)).await, Ok(()));
    proxy.black_hole(true);
    let answer = timeout(DEADLINE, publish(&*sink, message(&exchange.name, "a", 2))).await;
    assert_error(answer.expect("it is noticed"), Unavailable, &["heartbeat"]);
}

/// G-07: each connection of the client has a thread.
#[tokio::test]
async fn connections_that_are_given_up_leave_no_thread() {
    const GIVEN_UP: u32 = 60;
    let exchange = Exchange::fresh().await;
    let proxy = Proxy::start(address(&shared())).await;
    let options = "confirm_timeout = \"10ms\"\nconnect_timeout = \"50ms\"";
    let sink = connect(&proxy.url(&shared()), options).await;
    // First while it connects, while it waits and when it is answered, then while the server is
    // silent.
    for round in 0..2 * GIVEN_UP {
        proxy.black_hole(round >= GIVEN_UP);
        let patience = Duration::from_millis(u64::from(round % 10) * 4);
        let _ = timeout(patience, publish(&*sink, message(&exchange.name, "a", round))).await;
    }
    // Other tests have some, too, but fewer than that.
    until("the threads end", || async { threads() < GIVEN_UP as usize / 2 }).await;
}

fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| name(task).ok()).filter(|name| name.starts_with("lapin-io")).count()
}
