//! What is special about NATS: who may do what, streams and what they refuse, clusters, and what
//! becomes of calls that are given up.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod nats {
    mod access;
    mod checks;
    mod cluster;
    mod contents;
    mod limits;
    mod network;
    mod streams;
}

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, Context, stream};
use postrider::{Event, EventBuilder};
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{FailureKind, Message, Sink, SinkError};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};
use postrider_testkit::servers::nats::{Server, connect};
use tokio::time::{sleep, timeout};

/// Within this time anything has happened that is going to.
const DEADLINE: Duration = Duration::from_secs(60);
/// The subject of most events.
const SUBJECT: &str = "orders.paid";

fn spec(url: &str, options: &str) -> SinkSpec {
    SinkSpec { options: options.parse().unwrap(), ..SinkSpec::new(url) }
}

/// A sink of a pipeline that publishes everything to one subject and tries for an hour.
fn constant(url: &str, options: &str) -> SinkSpec {
    let pipeline = PipelineFacts {
        name: "test".to_owned(),
        topic: Some(SUBJECT.to_owned()),
        retry_horizon: Duration::from_secs(3600),
        ..PipelineFacts::default()
    };
    SinkSpec { pipeline, ..spec(url, options) }
}

async fn connected(url: &str, options: &str) -> Box<dyn Sink> {
    constant(url, options).connect().await.unwrap_or_else(|error| panic!("{error}"))
}

fn event() -> EventBuilder {
    Event::builder("Order", "42", "OrderPaid").json(&serde_json::json!({"amount": 5}))
}

fn to(subject: &str, event: EventBuilder) -> Message {
    let mut encoding = Encoding::default();
    encoding.route.topic = subject.parse().unwrap();
    encoding.encode(Arc::new(event.build().unwrap())).unwrap()
}

fn message() -> Message {
    to(SUBJECT, event())
}

async fn publish(sink: &dyn Sink, message: Message) -> Result<(), SinkError> {
    let answers = timeout(DEADLINE, sink.publish(&[message])).await.expect("there is an answer");
    assert_eq!(answers.len(), 1);
    answers.into_iter().next().unwrap()
}

/// Fails unless it was refused in this way, with these words and no secret.
fn assert_refused<T>(result: Result<T, SinkError>, kind: FailureKind, expected: &str) {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.message.contains(expected), "{expected:?} is not said: {error}");
    assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
}

async fn context(server: &Server) -> Context {
    jetstream::new(connect(&server.url()).await)
}

/// Makes the stream `ORDERS`, for all subjects that begin with `orders`.
async fn make_stream(context: &Context, config: stream::Config) {
    let name = "ORDERS".to_owned();
    let config = stream::Config { name, subjects: vec!["orders.>".to_owned()], ..config };
    context.create_stream(config).await.unwrap();
}

async fn kept(context: &Context) -> u64 {
    context.get_stream("ORDERS").await.unwrap().cached_info().state.messages
}

/// Waits until something works.
async fn until<F: Future<Output = bool>>(what: &str, mut is: impl FnMut() -> F) {
    let started = Instant::now();
    while !is().await {
        assert!(started.elapsed() < DEADLINE, "{what}: did not happen");
        sleep(Duration::from_millis(20)).await;
    }
}
