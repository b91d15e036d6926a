//! What is special about Redis, each with a real server.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod redis {
    mod access;
    mod checks;
    mod contents;
    mod dedupe;
    mod replicas;
    mod trouble;
}

use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::Value;
use postrider::Event;
use postrider_relay::formats::{Encoding, Format};
use postrider_relay::sink::{FailureKind, Message, Sink, SinkError};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};
use postrider_testkit::servers::redis::{Entry, Options, Server, read};
use postrider_testkit::suites::numbered::{building, number};

use tokio::process::Command;
use tokio::time::sleep;

const DEADLINE: Duration = Duration::from_secs(60);

/// A server with more lines in its configuration.
async fn server(settings: &[&str]) -> Server {
    let settings = settings.iter().map(ToString::to_string).collect();
    Server::start(Options { settings, ..Options::default() }).await
}

fn spec(url: &str, options: &str) -> SinkSpec {
    SinkSpec { options: options.parse().unwrap(), ..SinkSpec::new(url) }
}

/// A sink that makes missing streams.
async fn sink(url: &str, options: &str) -> Box<dyn Sink> {
    spec(url, &format!("create_missing = true\n{options}")).connect().await.unwrap()
}

/// A sink of a pipeline whose events all go to one stream.
async fn sink_of(stream: &str, url: &str, options: &str) -> Box<dyn Sink> {
    let pipeline = PipelineFacts { topic: Some(stream.to_owned()), ..PipelineFacts::default() };
    SinkSpec { pipeline, ..spec(url, options) }.connect().await.unwrap()
}

fn encoded(event: Event, format: Format) -> Message {
    Encoding { format, ..Encoding::default() }.encode(Arc::new(event)).unwrap()
}

/// A message of this number for a stream. All have the same key.
fn message(stream: &str, number: u32) -> Message {
    encoded(building("a", number).topic(stream).build().unwrap(), Format::Payload)
}

fn messages(stream: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<Message> {
    numbers.into_iter().map(|number| message(stream, number)).collect()
}

async fn published(sink: &dyn Sink, messages: &[Message]) {
    for answer in sink.publish(messages).await {
        assert_eq!(answer, Ok(()));
    }
}

/// What a call with one message fails with.
async fn failing(sink: &dyn Sink, message: Message) -> SinkError {
    let answer = sink.publish(&[message]).await.remove(0);
    answer.expect_err("it must fail")
}

#[track_caller]
fn is(error: &SinkError, kind: FailureKind, words: &str) {
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.message.contains(words), "{words:?} is not in {error}");
}

fn numbers(entries: &[Entry]) -> Vec<u32> {
    entries.iter().map(|entry| number(entry.fields["postrider-id"].parse().unwrap())).collect()
}

/// The numbers in a stream.
async fn kept(server: &Server, stream: &str) -> Vec<u32> {
    numbers(&read(&server.url(), stream).await)
}

/// Runs a command that must work.
async fn run(server: &Server, command: &str) -> Value {
    postrider_testkit::servers::redis::run(&server.url(), command).await.unwrap()
}

/// Runs Redis' own program.
async fn redis_cli(server: &Server, args: &[&str]) -> Output {
    let mut command = Command::new("redis-cli");
    command.env("REDISCLI_AUTH", "postrider").args(["--user", "postrider", "-p"]);
    command.arg(server.port().to_string()).args(args);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < DEADLINE, "{what}: did not happen within {DEADLINE:?}");
        sleep(Duration::from_millis(5)).await;
    }
}
