//! The NATS sink, with a stream of its own in the shared server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider_relay::formats::Encoding;
use postrider_relay::routing::Template;
use postrider_relay::sink::{FailureKind, Sink, SinkError};
use postrider_relay::sinks::SinkSpec;

use crate::proxy::Proxy;
use crate::servers::nats::{Read, Stream, shared};
use crate::suites::broker::behave_by_proxy;
use crate::suites::sink::{Arrival, Behaviour, Subject, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

/// The stream knows duplicates for longer than any case takes.
pub(crate) const CAPABILITIES: TargetCapabilities = TargetCapabilities {
    ordered_by_key: false,
    away: Some(FailureKind::Unavailable),
    misbehaviours: &[
        (Behaviour::Hangs, FailureKind::Unavailable),
        (Behaviour::LosesAnswer, FailureKind::Unavailable),
    ],
    refuses: false,
    exactly_once: true,
    any_topic: false,
    lacks_topics: true,
    reserved_headers: &[
        "Nats-Expected-Last-Sequence",
        "Nats-Msg-Id",
        "Nats-Rollup",
        "Nats-TTL",
        "Postrider-Id",
        "ce-type",
        "nats-schedule",
        "postrider-key",
    ],
    reserves_topics: true,
    hangs_up: true,
    body_bytes_max: 1024 * 1024 - 1024,
    too_large: Some(1024 * 1024),
    call_max: Duration::from_secs(6),
};

/// The NATS sink.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("nats", CAPABILITIES, Clock::Real, || async {
        Arc::new(Nats::make().await) as Subject
    })
}

struct Nats {
    proxy: Proxy,
    stream: Stream,
}

impl Nats {
    async fn make() -> Self {
        let stream = Stream::fresh().await;
        Self { proxy: Proxy::start(crate::servers::address(&shared())).await, stream }
    }
}

#[async_trait]
impl TestTarget for Nats {
    fn capabilities(&self) -> TargetCapabilities {
        CAPABILITIES
    }

    fn encoding(&self) -> Encoding {
        encoding(&self.stream)
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        connect(&self.proxy.url(&shared()), &self.stream).await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        self.stream.read().await.into_iter().map(arrival).collect()
    }

    async fn unusable_topic(&self) -> String {
        format!("nowhere.{}", self.stream.name)
    }

    fn reserved_topics(&self) -> Vec<String> {
        let subjects =
            ["$JS.API.STREAM.DELETE.S", "$KV.a.b", "$SYS.a", "_INBOX.x", "_INBOX", "_R_.x"];
        subjects.map(str::to_owned).into()
    }

    async fn behave(&self, behaviour: Behaviour) {
        behave_by_proxy(&self.proxy, behaviour).await;
    }
}

pub(crate) fn encoding(stream: &Stream) -> Encoding {
    let mut encoding = Encoding::default();
    let topic = stream.subject("{aggregate_type}");
    encoding.route.topic = Template::parse(&topic).expect("it is a template");
    encoding
}

/// A sink that bears a busy machine, and does not wait for long.
pub(crate) async fn connect(url: &str, stream: &Stream) -> Result<Box<dyn Sink>, SinkError> {
    let options = format!("ack_timeout = \"4s\"\nstream = \"{}\"", stream.name);
    let options = options.parse().expect("the options are TOML");
    SinkSpec { options, ..SinkSpec::new(url) }.connect().await
}

pub(crate) fn arrival(read: Read) -> Arrival {
    let header = |name: &str| {
        let value = read.headers.get(name);
        value.unwrap_or_else(|| panic!("the header {name} is missing")).clone()
    };
    Arrival {
        id: header("postrider-id").parse().expect("an id is a UUID"),
        event_type: header("postrider-event-type"),
        topic: read.subject.clone(),
        key: header("postrider-key"),
        headers: read.headers.clone(),
        body: read.payload,
    }
}
