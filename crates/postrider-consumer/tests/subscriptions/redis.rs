//! Streams of Redis.

use std::time::Duration;

use postrider::Event;
use postrider_consumer::Subscription as _;
use postrider_consumer::subscriptions::Redis;
use redis::aio::MultiplexedConnection;
use redis::{Client, cmd};
use tokio::time::timeout;
use uuid::Uuid;

use super::{event, exercise, handles, headers, mistake, receive, receives_nothing, told};
use crate::proxy::Proxy;

const VISIBILITY: Duration = Duration::from_secs(1);

/// A stream of its own, which is removed in the end.
struct Stream {
    connection: MultiplexedConnection,
    name: String,
}

fn url() -> String {
    std::env::var("POSTRIDER_TEST_REDIS").unwrap()
}

impl Stream {
    async fn make() -> Self {
        let client = Client::open(url()).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        Self { connection, name: format!("subscriptions-{}", Uuid::now_v7()) }
    }

    fn subscribe(&self, url: &str, consumer: &str) -> Redis {
        let client = Client::open(url).unwrap();
        let redis = Redis::subscribe(client, "billing", consumer, &[&self.name]).unwrap();
        redis.with_visibility(VISIBILITY)
    }

    async fn publish(&self, event: &Event) {
        let mut add = cmd("XADD");
        add.arg(&self.name).arg("*");
        for (name, value) in headers(event) {
            add.arg(name).arg(value);
        }
        add.arg("payload").arg(&event.payload()[..]);
        add.exec_async(&mut self.connection.clone()).await.unwrap();
    }

    async fn remove(self) {
        cmd("DEL").arg(&self.name).exec_async(&mut self.connection.clone()).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_not_acknowledged_comes_again() {
    let stream = Stream::make().await;
    let subscribe = async |consumer: &str| stream.subscribe(&url(), consumer);
    exercise(async |event: &Event| stream.publish(event).await, subscribe, Some(VISIBILITY)).await;
    stream.remove().await;
}

#[tokio::test]
async fn who_comes_back_begins_with_what_was_left() {
    let stream = Stream::make().await;
    for number in 1..=4 {
        stream.publish(&event("a", number)).await;
    }
    let before = stream.subscribe(&url(), "first");
    let received = receive(&before, 3).await;
    before.acknowledge(handles::<Redis>(&received[1..2])).await.unwrap();
    drop(before);
    let after = stream.subscribe(&url(), "first").with_visibility(Duration::from_secs(60));
    assert_eq!(told(&receive(&after, 3).await), "a1 a3 a4");
    stream.remove().await;
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_loses_nothing() {
    let stream = Stream::make().await;
    let redis = stream.subscribe(&url(), "first").with_visibility(Duration::from_secs(60));
    let mut received = Vec::new();
    for number in 1..=100 {
        stream.publish(&event("a", number)).await;
        if let Ok(some) = timeout(Duration::from_micros(200), redis.receive(9)).await {
            received.extend(some.unwrap());
        }
    }
    let count = received.len();
    received.extend(receive(&redis, 100 - count).await);
    let expected: Vec<_> = (1..=100).map(|number| format!("a{number}")).collect();
    assert_eq!(told(&received), expected.join(" "));
    // What is left goes to others at once.
    redis.close().await;
    let other = stream.subscribe(&url(), "second").with_visibility(Duration::from_secs(60));
    assert_eq!(told(&receive(&other, 100).await), expected.join(" "));
    stream.remove().await;
}

#[tokio::test]
async fn entries_of_many_streams_come_and_never_too_many() {
    let streams = [Stream::make().await, Stream::make().await, Stream::make().await];
    let names: Vec<&str> = streams.iter().map(|stream| stream.name.as_str()).collect();
    let client = Client::open(url()).unwrap();
    let redis = Redis::subscribe(client, "billing", "first", &names).unwrap();
    for (number, stream) in streams.iter().enumerate() {
        stream.publish(&event("a", number as u32)).await;
    }
    for _ in 0..3 {
        let one = receive(&redis, 1).await;
        redis.acknowledge(handles::<Redis>(&one)).await.unwrap();
    }
    receives_nothing(&redis, Duration::from_millis(500)).await;
    for stream in streams {
        stream.remove().await;
    }
}

#[tokio::test]
async fn entries_that_were_trimmed_away_are_dropped() {
    let stream = Stream::make().await;
    stream.publish(&event("a", 1)).await;
    stream.publish(&event("a", 2)).await;
    let before = stream.subscribe(&url(), "first");
    receive(&before, 2).await;
    drop(before);
    let mut connection = stream.connection.clone();
    let trim = cmd("XTRIM").arg(&stream.name).arg("MAXLEN").arg(1).take();
    trim.exec_async(&mut connection).await.unwrap();
    let after = stream.subscribe(&url(), "first");
    assert_eq!(told(&receive(&after, 1).await), "a2");
    let pending = cmd("XPENDING").arg(&stream.name).arg("billing").take();
    let (count, ..): (u64, String, String, Vec<(String, u64)>) =
        pending.query_async(&mut connection).await.unwrap();
    assert_eq!(count, 1);
    stream.remove().await;
}

#[tokio::test]
async fn a_key_that_is_no_stream_is_a_mistake() {
    let stream = Stream::make().await;
    let mut connection = stream.connection.clone();
    cmd("SET").arg(&stream.name).arg(1).exec_async(&mut connection).await.unwrap();
    let message = mistake(&stream.subscribe(&url(), "first")).await.message;
    assert!(message.contains("no stream"), "{message}");
    stream.remove().await;
}

#[tokio::test]
async fn a_connection_that_was_cut_and_a_stream_that_was_removed_are_survived() {
    let stream = Stream::make().await;
    let url = url();
    let (user, server) = url.rsplit_once('@').unwrap();
    let proxy = Proxy::to(server).await;
    let redis = stream.subscribe(&format!("{user}@127.0.0.1:{}", proxy.port), "first");
    stream.publish(&event("a", 1)).await;
    let one = receive(&redis, 1).await;
    redis.extend(&handles::<Redis>(&one)).await.unwrap();
    proxy.cut();
    stream.publish(&event("a", 2)).await;
    assert_eq!(told(&receive(&redis, 1).await), "a2", "a1 is under way");
    let mut connection = stream.connection.clone();
    cmd("DEL").arg(&stream.name).exec_async(&mut connection).await.unwrap();
    stream.publish(&event("a", 3)).await;
    assert_eq!(told(&receive(&redis, 1).await), "a3");
    stream.remove().await;
}
