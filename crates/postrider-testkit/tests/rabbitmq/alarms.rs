//! A server that is low on memory blocks all who publish.

use std::time::Duration;

use postrider_relay::sink::FailureKind::Throttled;
use postrider_testkit::servers::rabbitmq::{Exchange, Options, Server};
use tokio::time::Instant;

use crate::{assert_error, connect, message, publish, until};

/// How long the sink would wait for the end of an alarm, if it did.
const CONFIRM_TIMEOUT: &str = "confirm_timeout = \"5m\"";
/// A call that meets an alarm, or comes while there is one, is answered within this time, however
/// busy the machine is.
const PROMPTLY: Duration = Duration::from_secs(30);

async fn set_alarm(server: &Server, is_on: bool) {
    let limit = if is_on { "1MB" } else { "512MB" };
    server.ctl(&["set_vm_memory_high_watermark", "absolute", limit]).await;
    let (wanted, what) = (is_on, if is_on { "an alarm" } else { "no alarm" });
    until(what, || async {
        let alarms = server.ctl(&["eval", "rabbit_alarm:get_alarms()."]).await;
        (alarms.trim() != "[]") == wanted
    })
    .await;
}

#[tokio::test]
async fn a_blocked_connection_is_honoured_and_used_again() {
    let server = Server::start(Options::default()).await;
    let exchange = Exchange::fresh_at(&server.url(), &[]).await;
    let sink = connect(&server.url(), CONFIRM_TIMEOUT).await;
    assert_eq!(publish(&*sink, message(&exchange.name, "a", 1)).await, Ok(()));
    set_alarm(&server, true).await;

    // The server tells of the alarm only those who publish.
    let messages: Vec<_> =
        (2..=1001).map(|number| message(&exchange.name, &format!("k{number}"), number)).collect();
    let started = Instant::now();
    let answers = sink.publish(&messages).await;
    assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
    let taken = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!(taken < 1000, "all were taken");
    for answer in answers.iter().filter(|answer| answer.is_err()) {
        assert_error(answer.clone(), Throttled, &["low on memory"]);
    }

    // Now it is known, and nothing is sent.
    for _ in 0..5 {
        let started = Instant::now();
        let answer = publish(&*sink, message(&exchange.name, "late", 5000)).await;
        assert_error(answer, Throttled, &["has blocked all who publish: low on memory"]);
        assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
    }

    set_alarm(&server, false).await;
    let late = || message(&exchange.name, "late", 5000);
    until("events are taken again", || async { publish(&*sink, late()).await.is_ok() }).await;
    let arrived = || async {
        let read = exchange.read().await;
        read.into_iter().map(|read| read.routing_key).collect::<Vec<_>>()
    };
    // What was confirmed is there, and of what was refused nothing.
    let keys = arrived().await;
    for (message, answer) in messages.iter().zip(&answers) {
        assert!(answer.is_err() || keys.contains(&message.key), "{}", message.key);
    }
    assert_eq!(keys.iter().filter(|key| *key == "late").count(), 1);
    let answers = sink.publish(&messages).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");

    // A sink that is closed meanwhile does not wait for the end of the alarm.
    set_alarm(&server, true).await;
    assert!(sink.publish(&messages).await.iter().any(Result::is_err));
    let started = Instant::now();
    sink.close().await.unwrap();
    assert!(started.elapsed() < PROMPTLY, "{:?}", started.elapsed());
}
