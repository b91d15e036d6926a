//! The RabbitMQ sink, with an exchange and a queue of its own in the shared server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider_relay::formats::Encoding;
use postrider_relay::routing::Template;
use postrider_relay::sink::{FailureKind, Sink, SinkError};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};

use crate::proxy::Proxy;
use crate::servers::address;
use crate::servers::rabbitmq::{Exchange, Read, shared};
use crate::suites::broker::behave_by_proxy;
use crate::suites::sink::{Arrival, Behaviour, Subject, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

/// Less than an event can have, so that there are larger ones.
const EVENT_BYTES_MAX: usize = 1_000_000;

pub(crate) const CAPABILITIES: TargetCapabilities = TargetCapabilities {
    ordered_by_key: false,
    away: Some(FailureKind::Unavailable),
    misbehaviours: &[
        (Behaviour::Hangs, FailureKind::Unavailable),
        (Behaviour::LosesAnswer, FailureKind::Unavailable),
    ],
    refuses: true,
    exactly_once: false,
    any_topic: false,
    lacks_topics: true,
    reserved_headers: &[
        "BCC",
        "CC",
        "Postrider-Id",
        "cloudEvents:type",
        "x-acquired-count",
        "x-cache-ttl",
        "x-death",
        "x-deduplication-header",
        "x-delay",
        "x-delivery-count",
        "x-exchange",
        "x-first-death-queue",
        "x-last-death-reason",
        "x-mqtt-publish-qos",
        "x-opt-deliver-by",
        "x-received-from",
        "x-routing-key",
        "x-shovelled",
        "x-stream-offset",
    ],
    reserves_topics: true,
    hangs_up: true,
    body_bytes_max: EVENT_BYTES_MAX,
    too_large: Some(EVENT_BYTES_MAX + 1),
    call_max: Duration::from_secs(6),
};

/// The RabbitMQ sink.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("rabbitmq", CAPABILITIES, Clock::Real, || async {
        let proxy = Proxy::start(address(&shared())).await;
        Arc::new(RabbitMq { proxy, exchange: Exchange::fresh().await }) as Subject
    })
}

struct RabbitMq {
    proxy: Proxy,
    exchange: Exchange,
}

#[async_trait]
impl TestTarget for RabbitMq {
    fn capabilities(&self) -> TargetCapabilities {
        CAPABILITIES
    }

    fn encoding(&self) -> Encoding {
        encoding(&self.exchange)
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        connect(&self.proxy.url(&shared()), &self.exchange).await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        self.exchange.read().await.into_iter().map(arrival).collect()
    }

    async fn unusable_topic(&self) -> String {
        format!("{}-not-there", self.exchange.name)
    }

    /// By the default exchange an event would reach any queue.
    fn reserved_topics(&self) -> Vec<String> {
        let names = ["amq.default", "amq.gen-1", "amq.rabbitmq.event", "amq.rabbitmq.trace"];
        names.map(str::to_owned).into()
    }

    async fn behave(&self, behaviour: Behaviour) {
        match behaviour {
            Behaviour::RefusesKey(key) => self.exchange.refuse(key).await,
            other => behave_by_proxy(&self.proxy, other).await,
        }
    }
}

/// What is sent to an exchange.
pub(crate) fn encoding(exchange: &Exchange) -> Encoding {
    let mut encoding = Encoding::default();
    encoding.route.topic = Template::parse(&exchange.name).expect("it is a template");
    encoding
}

/// A sink that bears a busy machine, and does not wait for long.
pub(crate) async fn connect(url: &str, exchange: &Exchange) -> Result<Box<dyn Sink>, SinkError> {
    let options = format!(
        "confirm_timeout = \"5s\"\nconnect_timeout = \"5s\"\nevent_bytes_max = {EVENT_BYTES_MAX}"
    );
    let topic = Some(exchange.name.clone());
    let spec = SinkSpec {
        options: options.parse().expect("the options are TOML"),
        pipeline: PipelineFacts { topic, ..PipelineFacts::default() },
        ..SinkSpec::new(url)
    };
    spec.connect().await
}

pub(crate) fn arrival(read: Read) -> Arrival {
    let property = |value: &Option<lapin::types::ShortString>| {
        value.as_ref().expect("the property is there").to_string()
    };
    Arrival {
        id: property(read.properties.message_id()).parse().expect("an id is a UUID"),
        event_type: property(read.properties.kind()),
        topic: read.exchange,
        key: read.routing_key,
        headers: read.headers,
        body: read.body,
    }
}
