//! The stdout sink, in a process of its own whose standard output is a file.
//!
//! The test program starts itself again as that process ([`serve`]). It is told what to publish
//! on its standard input, one call a line, and gives the answers on its standard error.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use postrider::Event;
use postrider::event::PAYLOAD_BYTES_MAX;
use postrider_relay::formats::Encoding;
use postrider_relay::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};
use postrider_relay::sinks::SinkSpec;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::json_lines;
use crate::suites::sink::{Arrival, Behaviour, Subject, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

const CAPABILITIES: TargetCapabilities = TargetCapabilities {
    ordered_by_key: true,
    away: None,
    misbehaviours: &[],
    refuses: false,
    exactly_once: false,
    any_topic: true,
    lacks_topics: false,
    reserved_headers: &[],
    reserves_topics: false,
    hangs_up: false,
    body_bytes_max: PAYLOAD_BYTES_MAX,
    too_large: None,
    call_max: Duration::from_secs(5),
};

/// Set for the process that publishes.
const SERVE: &str = "POSTRIDER_TESTKIT_STDOUT";

/// The stdout sink.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("stdout", CAPABILITIES, Clock::Real, || async {
        Arc::new(Stdout::new()) as Subject
    })
}

/// If this process was started to publish, does so until its input ends. To be called first
/// thing in `main`.
pub fn serve() -> Option<ExitCode> {
    std::env::var_os(SERVE)?;
    let runtime = Clock::Real.runtime();
    runtime.block_on(async {
        let sink = spec().connect().await.expect("there is a standard output");
        // Waiting for a call blocks: between calls, there is nothing else to do here.
        for call in std::io::stdin().lines().map_while(Result::ok) {
            let events: Vec<Value> = serde_json::from_str(&call).expect("a call is JSON");
            let messages: Vec<_> = events.iter().map(from_json).collect();
            let results = sink.publish(&messages).await;
            let results: Vec<_> = results.iter().map(Result::is_ok).collect();
            let line = format!("{}\n", json!(results));
            std::io::stderr().write_all(line.as_bytes()).expect("somebody listens");
        }
    });
    Some(ExitCode::SUCCESS)
}

fn spec() -> SinkSpec {
    SinkSpec::new("stdout:")
}

struct Stdout {
    folder: TempDir,
}

impl Stdout {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a test can have a folder");
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("stdout.jsonl")
    }
}

#[async_trait]
impl TestTarget for Stdout {
    fn capabilities(&self) -> TargetCapabilities {
        CAPABILITIES
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        let output = OpenOptions::new().create(true).append(true).open(self.path());
        let program = std::env::current_exe().expect("a test is a program");
        let process = Command::new(program)
            .env(SERVE, "1")
            .stdin(Stdio::piped())
            .stdout(output.expect("a file can be made"))
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let declared = spec().connect().await?.capabilities();
        let process = process.expect("the test can be started again");
        Ok(Box::new(Elsewhere { declared, process: Arc::new(Mutex::new(process)) }))
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        json_lines::read(&self.path()).await
    }

    async fn behave(&self, behaviour: Behaviour) {
        assert_eq!(behaviour, Behaviour::Well, "nothing else is declared");
    }
}

/// The sink of the other process.
struct Elsewhere {
    declared: SinkCapabilities,
    process: Arc<Mutex<Child>>,
}

#[async_trait]
impl Sink for Elsewhere {
    fn capabilities(&self) -> SinkCapabilities {
        self.declared.clone()
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        spec().connect().await?.check().await
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let call: Vec<_> = messages.iter().map(to_json).collect();
        let call = format!("{}\n", json!(call));
        let process = Arc::clone(&self.process);
        // A call that is given up goes on there, and its answer is not taken for another's.
        let exchange = tokio::spawn(async move {
            let mut process = process.lock_owned().await;
            let input = process.stdin.as_mut().expect("the input is piped");
            input.write_all(call.as_bytes()).await.expect("the process listens");
            let mut output = BufReader::new(process.stderr.as_mut().expect("it is piped"));
            let mut answers = String::new();
            output.read_line(&mut answers).await.expect("the process answers");
            answers
        });
        let answers = exchange.await.expect("the exchange does not fail");
        let answers: Vec<bool> = serde_json::from_str(&answers).expect("answers are JSON");
        let error = || SinkError::new(FailureKind::Unavailable, "it failed in the other process");
        let answer = |ok: bool| if ok { Ok(()) } else { Err(error()) };
        answers.into_iter().map(answer).collect()
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        let mut process = Arc::clone(&self.process).lock_owned().await;
        drop(process.stdin.take());
        process.wait().await.expect("the process ends with its input");
        Ok(())
    }
}

fn to_json(message: &Message) -> Value {
    let event = &message.event;
    json!({
        "id": event.id().to_string(),
        "aggregate_type": event.aggregate_type(),
        "aggregate_id": event.aggregate_id(),
        "event_type": event.event_type(),
        "topic": event.topic(),
        "headers": event.headers(),
        "payload": BASE64.encode(event.payload()),
        "content_type": event.content_type(),
    })
}

fn from_json(event: &Value) -> Message {
    let text = |name: &str| event[name].as_str().expect("it is text").to_owned();
    let payload = BASE64.decode(text("payload")).expect("it is base64");
    let headers = event["headers"].as_object().expect("it is an object");
    let header = |(name, value): (&String, &Value)| {
        (name.clone(), value.as_str().expect("it is text").to_owned())
    };
    let mut built =
        Event::builder(text("aggregate_type"), text("aggregate_id"), text("event_type"))
            .id(text("id").parse().expect("it is a UUID"))
            .payload(payload, text("content_type"))
            .headers(headers.iter().map(header));
    if let Some(topic) = event["topic"].as_str() {
        built = built.topic(topic);
    }
    let event = built.build().expect("it was an event before");
    Encoding::default().encode(Arc::new(event)).expect("it was a message before")
}
