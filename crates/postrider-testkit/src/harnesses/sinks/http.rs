//! The HTTP sink, with a real endpoint on the loopback address.

pub(crate) mod endpoint;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider_relay::sink::{FailureKind, Sink, SinkError};
use postrider_relay::sinks::SinkSpec;

use self::endpoint::{Endpoint, Request};
use crate::suites::sink::{Arrival, Behaviour, Subject, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

const CAPABILITIES: TargetCapabilities = TargetCapabilities {
    ordered_by_key: false,
    away: Some(FailureKind::Unavailable),
    misbehaviours: &[
        (Behaviour::Answers(400), FailureKind::Rejected),
        (Behaviour::Answers(401), FailureKind::Refused),
        (Behaviour::Answers(403), FailureKind::Refused),
        (Behaviour::Answers(404), FailureKind::Refused),
        (Behaviour::Answers(405), FailureKind::Refused),
        (Behaviour::Answers(408), FailureKind::Failed),
        (Behaviour::Answers(410), FailureKind::Refused),
        (Behaviour::Answers(413), FailureKind::Rejected),
        (Behaviour::Answers(429), FailureKind::Throttled),
        (Behaviour::Answers(500), FailureKind::Failed),
        (Behaviour::Answers(503), FailureKind::Unavailable),
        (Behaviour::AnswersPause(429, 7), FailureKind::Throttled),
        (Behaviour::AnswersPause(503, 7), FailureKind::Throttled),
        (Behaviour::AnswersPause(500, 7), FailureKind::Failed),
        (Behaviour::Redirects, FailureKind::Refused),
        (Behaviour::Garbage, FailureKind::Failed),
        (Behaviour::Hangs, FailureKind::Failed),
        (Behaviour::LosesAnswer, FailureKind::Failed),
    ],
    refuses: true,
    exactly_once: false,
    any_topic: true,
    lacks_topics: false,
    reserved_headers: &[
        "Authorization",
        "Cookie",
        "content-encoding",
        "content-type",
        "x-forwarded-for",
    ],
    reserves_topics: false,
    hangs_up: false,
    body_bytes_max: 1024 * 1024,
    too_large: None,
    call_max: Duration::from_secs(2),
};

/// The HTTP sink.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("http", CAPABILITIES, Clock::Real, || async {
        Arc::new(Http(Endpoint::start().await)) as Subject
    })
}

struct Http(Endpoint);

#[async_trait]
impl TestTarget for Http {
    fn capabilities(&self) -> TargetCapabilities {
        CAPABILITIES
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        let options = "allow_private = true\nconcurrency = 16\ntimeout = \"2s\"";
        let spec = SinkSpec {
            options: options.parse().expect("the options are TOML"),
            ..SinkSpec::new(format!("http://{}/hook?token=secret", self.0.address()))
        };
        spec.connect().await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        self.0.kept().into_iter().map(arrival).collect()
    }

    async fn behave(&self, behaviour: Behaviour) {
        self.0.behave(behaviour).await;
    }
}

fn arrival(request: Request) -> Arrival {
    let header = |name: &str| {
        let value = request.headers.get(name);
        value.unwrap_or_else(|| panic!("the header {name} is missing")).clone()
    };
    Arrival {
        id: header("webhook-id").parse().expect("an id is a UUID"),
        event_type: percent_decoded(&header("postrider-event-type")),
        topic: percent_decoded(&header("postrider-topic")),
        key: percent_decoded(&header("postrider-key")),
        headers: request.headers,
        body: request.body,
    }
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at(2);
        rest = after;
        let digits = std::str::from_utf8(digits).expect("digits are ASCII");
        bytes.push(u8::from_str_radix(digits, 16).expect("two hexadecimal digits follow"));
    }
    String::from_utf8(bytes).expect("it was text before")
}
