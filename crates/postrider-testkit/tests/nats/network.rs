//! Connections that end or stand still.

use std::time::Duration;

use postrider_relay::sink::FailureKind;
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::nats::{Options, Server};
use tokio::time::{Instant, timeout};

use crate::{
    SUBJECT, assert_refused, connected, context, event, kept, make_stream, message, publish, spec,
    to,
};

struct Line {
    server: Server,
    proxy: Proxy,
}

impl Line {
    async fn start() -> Self {
        let server = Server::start(Options::default()).await;
        make_stream(&context(&server).await, Default::default()).await;
        Self { proxy: Proxy::start(&server.address()).await, server }
    }

    fn url(&self) -> String {
        self.proxy.url(&self.server.url())
    }
}

/// What waits in the client when its connection ends must not appear after it is back: somebody
/// else may have published it, and more, by then.
#[tokio::test]
async fn what_was_given_up_does_not_appear_later() {
    let line = Line::start().await;
    let sink = connected(&line.url(), "").await;
    publish(&*sink, message()).await.unwrap();
    line.proxy.black_hole(true);
    let large = || to(SUBJECT, event().payload(vec![b'x'; 20_000], "text/plain"));
    let batch: Vec<_> = (0..1000).map(|_| large()).collect();
    // More than the line has room for, so that the rest waits in the client.
    assert!(timeout(Duration::from_secs(2), sink.publish(&batch)).await.is_err());
    line.proxy.refuse(true).await;
    line.proxy.cut();
    line.proxy.black_hole(false);
    assert_refused(publish(&*sink, message()).await, FailureKind::Unavailable, "");
    line.proxy.refuse(false).await;
    // What must not appear gives no sign: it has a while for it.
    for _ in 0..20 {
        publish(&*sink, message()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(kept(&context(&line.server).await).await, 21);
}

/// F46: neither an end of the connection nor an answer.
#[tokio::test]
async fn a_connection_that_stands_still_is_noticed_before_the_answers_are_missed() {
    let line = Line::start().await;
    // It is noticed a quarter of that time before; else it would be said that no stream has
    // confirmed.
    let sink = connected(&line.url(), "ack_timeout = \"12s\"").await;
    publish(&*sink, message()).await.unwrap();
    line.proxy.black_hole(true);
    let refused = publish(&*sink, message()).await;
    assert_refused(refused, FailureKind::Unavailable, "was lost");
    // A server that says nothing is given up, too.
    let sink = spec(&line.url(), "connect_timeout = \"500ms\"").connect().await;
    assert_refused(sink, FailureKind::Unavailable, "timed out");
}

/// Each call would wait for the connection of the one before, and fail after it.
#[tokio::test]
async fn calls_at_once_learn_together_that_a_server_is_away() {
    let line = Line::start().await;
    let sink = connected(&line.url(), "connect_timeout = \"4s\"").await;
    for is_silent in [false, true] {
        line.proxy.black_hole(is_silent);
        line.proxy.refuse(!is_silent).await;
        line.proxy.cut();
        let started = Instant::now();
        let batches: Vec<_> = (0..8).map(|_| [message()]).collect();
        let calls = batches.iter().map(|batch| sink.publish(batch));
        let answers = futures_util::future::join_all(calls).await;
        for answer in answers.into_iter().flatten() {
            assert_refused(answer, FailureKind::Unavailable, "127.0.0.1");
        }
        // One after the other, they would take half a minute.
        assert!(started.elapsed() < Duration::from_secs(16), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn another_server_of_the_url_is_used() {
    let line = Line::start().await;
    let away = Proxy::start("127.0.0.1:1").await;
    away.refuse(true).await;
    let url = format!("nats://postrider:postrider@{},{}", away.address(), line.server.address());
    let sink = connected(&url, "").await;
    publish(&*sink, message()).await.unwrap();
    let nowhere = format!("nats://{0},{0}", away.address());
    let refused = spec(&nowhere, "").connect().await;
    assert_refused(refused, FailureKind::Unavailable, &away.address().to_string());
}
