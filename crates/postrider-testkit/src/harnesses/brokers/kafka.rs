//! A broker of Kafka.

use std::sync::Arc;

use async_trait::async_trait;
use postrider_relay::formats::Encoding;
use postrider_relay::routing::Template;
use postrider_relay::sink::{Sink, SinkError};
use postrider_relay::sinks::SinkSpec;
use tokio::sync::Mutex;

use crate::harnesses::sinks::kafka::{CAPABILITIES, EXACTLY_ONCE, arrivals, options, spec};
use crate::proxy::Proxy;
use crate::servers::kafka::{Options, Server, brokers, make_topic};
use crate::suites::broker::{Subject, TestBroker, behave_by_proxy};
use crate::suites::sink::{Arrival, Behaviour, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

const TIMEOUT: &str = "10s";

/// A broker with one topic.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("kafka", CAPABILITIES, Clock::Real, || async {
        Arc::new(Kafka::start(CAPABILITIES).await) as Subject
    })
}

/// The same, for a sink with transactions.
pub fn exactly_once_backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("kafka_exactly_once", EXACTLY_ONCE, Clock::Real, || async {
        Arc::new(Kafka::start(EXACTLY_ONCE).await) as Subject
    })
}

struct Kafka {
    capabilities: TargetCapabilities,
    /// Where records are read, past the proxy.
    internal: String,
    server: Mutex<Server>,
    proxy: Proxy,
    topic: String,
}

impl Kafka {
    async fn start(capabilities: TargetCapabilities) -> Self {
        let server = Server::start(Options::default()).await;
        // More than one partition, and each key in one of them.
        let topic = make_topic(&server.internal(), 6, &[]).await;
        let proxy = Proxy::start_before_kafka(brokers(&server.url())).await;
        let internal = server.internal();
        Self { capabilities, internal, server: Mutex::new(server), proxy, topic }
    }
}

#[async_trait]
impl TestTarget for Kafka {
    fn capabilities(&self) -> TargetCapabilities {
        self.capabilities
    }

    fn encoding(&self) -> Encoding {
        let mut encoding = Encoding::default();
        encoding.route.topic = Template::parse(&self.topic).expect("it is a template");
        encoding
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        let spec = spec(self.capabilities, &self.topic, TIMEOUT);
        let spec = SinkSpec { url: self.proxy.url("kafka://127.0.0.1:1"), ..spec };
        spec.connect().await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        arrivals(&self.internal, &self.topic).await
    }

    async fn behave(&self, behaviour: Behaviour) {
        behave_by_proxy(&self.proxy, behaviour).await;
    }
}

#[async_trait]
impl TestBroker for Kafka {
    fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    async fn configured(&self) -> (String, String) {
        let Self { capabilities, internal, topic, .. } = self;
        let options = options(*capabilities, topic, TIMEOUT);
        (format!("kafka://{internal}"), format!("topic = \"{topic}\"\n{options}"))
    }

    async fn kill9(&self) {
        self.server.lock().await.kill9().await;
    }

    async fn start_again(&self) {
        let mut server = self.server.lock().await;
        server.start_again().await;
        server.until_ready(1).await;
    }
}
