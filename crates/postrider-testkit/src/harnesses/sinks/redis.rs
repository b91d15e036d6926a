//! The Redis sink, with a stream of its own in the shared server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider_relay::formats::Encoding;
use postrider_relay::routing::Template;
use postrider_relay::sink::{FailureKind, Sink, SinkError};
use postrider_relay::sinks::SinkSpec;

use crate::proxy::Proxy;
use crate::servers::address;
use crate::servers::redis::{Entry, Stream, shared};
use crate::suites::broker::behave_by_proxy;
use crate::suites::sink::{Arrival, Behaviour, Subject, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

/// Streams can have any name, but those of tests must not be others'.
pub(crate) const CAPABILITIES: TargetCapabilities = TargetCapabilities {
    ordered_by_key: true,
    away: Some(FailureKind::Unavailable),
    misbehaviours: &[
        (Behaviour::Hangs, FailureKind::Unavailable),
        (Behaviour::LosesAnswer, FailureKind::Unavailable),
    ],
    refuses: false,
    exactly_once: true,
    any_topic: false,
    lacks_topics: true,
    reserved_headers: &["Payload", "Postrider-Id", "ce-type", "postrider-key"],
    reserves_topics: true,
    hangs_up: true,
    body_bytes_max: 1024 * 1024,
    too_large: None,
    call_max: Duration::from_secs(6),
};

/// Without a script.
const PLAIN: TargetCapabilities =
    TargetCapabilities { exactly_once: false, ordered_by_key: false, ..CAPABILITIES };

/// The Redis sink.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("redis", CAPABILITIES, Clock::Real, || target(CAPABILITIES, ""))
}

/// The Redis sink with plain commands.
pub fn plain_backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("redis_plain", PLAIN, Clock::Real, || target(PLAIN, "dedupe_events = 0"))
}

async fn target(capabilities: TargetCapabilities, options: &'static str) -> Subject {
    let proxy = Proxy::start(address(&shared())).await;
    Arc::new(Redis { capabilities, options, proxy, stream: Stream::fresh().await })
}

struct Redis {
    capabilities: TargetCapabilities,
    options: &'static str,
    proxy: Proxy,
    stream: Stream,
}

#[async_trait]
impl TestTarget for Redis {
    fn capabilities(&self) -> TargetCapabilities {
        self.capabilities
    }

    fn encoding(&self) -> Encoding {
        encoding(&self.stream.name)
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        connect(&self.proxy.url(&shared()), self.options).await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        let entries = self.stream.read().await.into_iter();
        entries.map(|entry| arrival(&self.stream.name, entry)).collect()
    }

    /// A stream that is missing is made, so this is something else.
    async fn unusable_topic(&self) -> String {
        let name = format!("{}-text", self.stream.name);
        let set = crate::servers::redis::run(&shared(), &format!("SET {name} x EX 600")).await;
        set.expect("a text can be kept");
        name
    }

    /// The ids of this stream, which are there, and those of others, which are not.
    fn reserved_topics(&self) -> Vec<String> {
        let of =
            |stream: &str| ["ids", "ids-older"].map(|ids| format!("{{{stream}}}:postrider-{ids}"));
        [of(&self.stream.name), of("another")].concat()
    }

    async fn behave(&self, behaviour: Behaviour) {
        behave_by_proxy(&self.proxy, behaviour).await;
    }
}

/// All events go to one stream.
pub(crate) fn encoding(stream: &str) -> Encoding {
    let mut encoding = Encoding::default();
    encoding.route.topic = Template::parse(stream).expect("it is a template");
    encoding
}

/// A sink that bears a busy machine, and does not wait for long.
pub(crate) async fn connect(url: &str, options: &str) -> Result<Box<dyn Sink>, SinkError> {
    let options = format!("create_missing = true\nresponse_timeout = \"5s\"\n{options}");
    let options = options.parse().expect("the options are TOML");
    SinkSpec { options, ..SinkSpec::new(url) }.connect().await
}

pub(crate) fn arrival(stream: &str, entry: Entry) -> Arrival {
    let field = |name: &str| {
        let value = entry.fields.get(name);
        value.unwrap_or_else(|| panic!("the field {name} is missing")).clone()
    };
    Arrival {
        id: field("postrider-id").parse().expect("an id is a UUID"),
        event_type: field("postrider-event-type"),
        topic: stream.to_owned(),
        key: field("postrider-key"),
        headers: entry.fields.clone(),
        body: entry.payload,
    }
}
