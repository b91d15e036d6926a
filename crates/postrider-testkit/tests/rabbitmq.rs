//! What is special about RabbitMQ: exchanges and what is bound to them, returned and refused
//! messages, alarms, who is let in, and what a message looks like. All of it with real servers.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod rabbitmq {
    mod access;
    mod alarms;
    mod contents;
    mod exchanges;
    mod limits;
    mod log;
}

use std::sync::Arc;
use std::time::Duration;

use postrider::Event;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{FailureKind, Message, Sink, SinkError};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};
use postrider_testkit::suites::numbered::building;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

/// Within this time anything has happened that is going to.
const DEADLINE: Duration = Duration::from_secs(60);

/// A sink with these options, for a pipeline with this constant topic.
async fn connect_for(
    url: &str,
    options: &str,
    topic: Option<&str>,
) -> Result<Box<dyn Sink>, SinkError> {
    let spec = SinkSpec {
        options: options.parse().unwrap(),
        pipeline: PipelineFacts {
            name: "orders".to_owned(),
            topic: topic.map(str::to_owned),
            ..PipelineFacts::default()
        },
        ..SinkSpec::new(url)
    };
    spec.connect().await
}

async fn connect(url: &str, options: &str) -> Box<dyn Sink> {
    connect_for(url, options, None).await.unwrap()
}

/// The message of an event for an exchange.
fn message_of(event: Event, exchange: &str) -> Message {
    let message = Encoding::default().encode(Arc::new(event)).unwrap();
    Message { topic: exchange.to_owned(), ..message }
}

/// The message of this number for an exchange, with a routing key.
fn message(exchange: &str, key: &str, number: u32) -> Message {
    message_of(building(key, number).build().unwrap(), exchange)
}

/// What became of a single message.
async fn publish(sink: &dyn Sink, message: Message) -> Result<(), SinkError> {
    sink.publish(&[message]).await.remove(0)
}

/// An error of this kind, with all of these texts in it and without anything secret.
#[track_caller]
fn assert_error<T: std::fmt::Debug>(
    answer: Result<T, SinkError>,
    kind: FailureKind,
    texts: &[&str],
) -> String {
    let error = answer.unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    for text in texts {
        assert!(error.message.contains(text), "{:?} should contain {text:?}", error.message);
    }
    assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    error.message
}

fn new_name() -> String {
    format!("test-{}", Uuid::now_v7().simple())
}

/// Waits for something that must happen.
async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < DEADLINE, "{what}: did not happen");
        sleep(Duration::from_millis(10)).await;
    }
}
