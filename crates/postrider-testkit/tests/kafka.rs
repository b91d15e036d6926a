//! What is special about Kafka: who is let in, what topics are like, where records go and what
//! they look like there, and clusters that lose brokers. All of it with real brokers.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod kafka {
    mod access;
    mod cluster;
    mod contents;
    mod exactly_once;
    mod hot_keys;
    mod limits;
    mod partitions;
    #[cfg(all(feature = "http", feature = "postgres"))]
    mod relays;
    mod topics;
}

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider::Event;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{FailureKind, Message, Sink, SinkError};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};
use postrider_testkit::servers::kafka::{brokers, url};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// Within this time anything has happened that is going to.
const DEADLINE: Duration = Duration::from_secs(120);
/// A refusal is known within this time, which is less than a sink waits for a broker.
const SOON: Duration = Duration::from_secs(20);

/// A broker takes a third of a gigabyte, and most of a processor while it starts.
static ROOM: Semaphore = Semaphore::const_new(2);

async fn room_for_broker() -> SemaphorePermit<'static> {
    ROOM.acquire().await.expect("it is never closed")
}

/// The same for a cluster.
async fn room_for_cluster() -> SemaphorePermit<'static> {
    ROOM.acquire_many(2).await.expect("it is never closed")
}

/// The shared broker.
struct Shared {
    url: String,
    brokers: String,
}

impl Shared {
    fn broker() -> Self {
        let url = url();
        Self { brokers: brokers(&url).to_owned(), url }
    }
}

fn new_name() -> String {
    format!("test-{}", Uuid::now_v7())
}

/// A sink with options in TOML.
async fn connect(url: &str, options: &str) -> Box<dyn Sink> {
    spec(url, options).connect().await.expect("the sink can be connected")
}

fn spec(url: &str, options: &str) -> SinkSpec {
    SinkSpec { options: options.parse().expect("it is TOML"), ..SinkSpec::new(url) }
}

/// A sink whose events all go to one topic, so that a check looks for it.
async fn connect_to(url: &str, topic: &str, options: &str) -> Box<dyn Sink> {
    let pipeline = PipelineFacts { topic: Some(topic.to_owned()), ..PipelineFacts::default() };
    let spec = SinkSpec { pipeline, ..spec(url, options) };
    spec.connect().await.expect("the sink can be connected")
}

fn message(topic: &str, key: &str, body: impl Into<Bytes>) -> Message {
    let event = Event::builder("Order", key, "OrderPaid").payload(body, "text/plain").topic(topic);
    encode(event.build().expect("it is an event"))
}

fn encode(event: Event) -> Message {
    Encoding::default().encode(Arc::new(event)).expect("it can be encoded")
}

/// Publishes one message.
async fn publish(sink: &dyn Sink, message: Message) -> Result<(), SinkError> {
    sink.publish(&[message]).await.pop().expect("each message has an answer")
}

/// Publishes messages, each of which is taken.
async fn publish_all(sink: &dyn Sink, messages: &[Message]) {
    assert_eq!(sink.publish(messages).await, vec![Ok(()); messages.len()]);
}

/// Publishes one message until it is taken; all refusals until then are of this kind.
async fn publish_at_last(sink: &dyn Sink, message: Message, until_then: FailureKind) {
    publish_all_at_last(sink, &[message], until_then).await;
}

/// Publishes messages, all of them again until each is taken; all refusals until then are of this
/// kind.
async fn publish_all_at_last(sink: &dyn Sink, messages: &[Message], until_then: FailureKind) {
    let started = Instant::now();
    while let Some(error) = sink.publish(messages).await.into_iter().find_map(Result::err) {
        assert_eq!(error.kind, until_then, "{error}");
        assert!(started.elapsed() < DEADLINE, "it is still not taken: {error}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until a check has nothing to say.
async fn check_at_last(sink: &dyn Sink) {
    let started = Instant::now();
    loop {
        let checked = sink.check().await;
        if checked == Ok(vec![]) {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "{checked:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

fn assert_refused<T: Debug>(
    result: Result<T, SinkError>,
    kind: FailureKind,
    expected: &str,
) -> String {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.message.contains(expected), "{expected:?} is not said: {error}");
    error.message
}

/// The command that a message tells an operator to run, at another address of the cluster.
fn command_in(message: &str, servers: &str) -> String {
    let start = message.find("kafka-").expect("there is a command");
    let command = message[start..].split(", or ").next().expect("a command has an end");
    let mut words: Vec<_> = command.split_whitespace().collect();
    let address = words.iter().position(|word| *word == "--bootstrap-server");
    words[address.expect("a command names the cluster") + 1] = servers;
    words.join(" ")
}
