//! The Kafka sink, with a topic of its own at the shared broker.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider_relay::formats::Encoding;
use postrider_relay::routing::Template;
use postrider_relay::sink::{FailureKind, Sink, SinkError};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};

use crate::proxy::Proxy;
use crate::servers::kafka::{self, Read};
use crate::suites::broker::behave_by_proxy;
use crate::suites::sink::{Arrival, Behaviour, Subject, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

/// Longer than a broker that shares its machine needs, and as long as a case waits for one that is
/// away. A question about a topic has half of it.
const TIMEOUT: &str = "8s";
/// A broker that hangs up is told of only when a call is over.
const TIMEOUT_BRIEF: &str = "2s";
/// No pipeline of a suite has more under way.
const WINDOW_EVENTS: usize = 4096;

pub(crate) const CAPABILITIES: TargetCapabilities = TargetCapabilities {
    ordered_by_key: true,
    away: Some(FailureKind::Unavailable),
    misbehaviours: &[
        (Behaviour::Hangs, FailureKind::Unavailable),
        (Behaviour::LosesAnswer, FailureKind::Unavailable),
    ],
    refuses: false,
    exactly_once: false,
    any_topic: false,
    lacks_topics: true,
    reserved_headers: &["Postrider-Id", "ce_type", "content-type"],
    reserves_topics: true,
    // librdkafka sends again by itself, for as long as a call may take.
    hangs_up: false,
    body_bytes_max: 1_047_000,
    too_large: Some(1_048_576),
    call_max: Duration::from_secs(10),
};

/// With transactions.
pub(crate) const EXACTLY_ONCE: TargetCapabilities = TargetCapabilities {
    exactly_once: true,
    // It makes them.
    lacks_topics: false,
    // Without answers no transaction is committed.
    misbehaviours: &[(Behaviour::Hangs, FailureKind::Unavailable)],
    ..CAPABILITIES
};

/// The Kafka sink.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("kafka", CAPABILITIES, Clock::Real, || async {
        Arc::new(Kafka::make(CAPABILITIES, TIMEOUT).await) as Subject
    })
}

/// The Kafka sink with transactions.
pub fn exactly_once_backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("kafka_exactly_once", EXACTLY_ONCE, Clock::Real, || async {
        Arc::new(Kafka::make(EXACTLY_ONCE, TIMEOUT).await) as Subject
    })
}

/// The same, with calls that are soon over.
pub fn brief_backend() -> Backend<Subject, TargetCapabilities> {
    let capabilities = TargetCapabilities { hangs_up: true, ..EXACTLY_ONCE };
    Backend::new("kafka_exactly_once_brief", capabilities, Clock::Real, move || async move {
        Arc::new(Kafka::make(capabilities, TIMEOUT_BRIEF).await) as Subject
    })
}

struct Kafka {
    capabilities: TargetCapabilities,
    timeout: &'static str,
    brokers: String,
    proxy: Proxy,
    topic: String,
}

impl Kafka {
    async fn make(capabilities: TargetCapabilities, timeout: &'static str) -> Self {
        let brokers = kafka::brokers(&kafka::url()).to_owned();
        // One partition: what arrives has one order.
        let topic = kafka::make_topic(&brokers, 1, &[]).await;
        let proxy = Proxy::start_before_kafka(&brokers).await;
        Self { capabilities, timeout, proxy, brokers, topic }
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
        let spec = spec(self.capabilities, &self.topic, self.timeout);
        let spec = SinkSpec { url: self.proxy.url("kafka://127.0.0.1:1"), ..spec };
        spec.connect().await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        arrivals(&self.brokers, &self.topic).await
    }

    async fn unusable_topic(&self) -> String {
        format!("{}-not-there", self.topic)
    }

    fn reserved_topics(&self) -> Vec<String> {
        let names = ["__consumer_offsets", "__transaction_state", "postrider.progress"];
        let mut topics: Vec<_> = names.map(str::to_owned).into();
        topics.extend(self.capabilities.exactly_once.then(|| progress_topic(&self.topic)));
        topics
    }

    async fn behave(&self, behaviour: Behaviour) {
        behave_by_proxy(&self.proxy, behaviour).await;
    }
}

/// A sink for this topic.
pub(crate) fn spec(capabilities: TargetCapabilities, topic: &str, timeout: &str) -> SinkSpec {
    let options = options(capabilities, topic, timeout);
    let pipeline = PipelineFacts { window_events: WINDOW_EVENTS, ..PipelineFacts::default() };
    let options = options.parse().expect("the options are TOML");
    SinkSpec { options, pipeline, ..SinkSpec::new("") }
}

/// Its options in TOML. Its transactions have a name, and a topic for their progress, of its own.
pub(crate) fn options(capabilities: TargetCapabilities, topic: &str, timeout: &str) -> String {
    let mut options = format!("timeout = \"{timeout}\"\n");
    if capabilities.exactly_once {
        options += &format!(
            "exactly_once = true
             create_missing = true
             replication_factor = 1
             progress_topic = \"{}\"
             transactional_id = \"{topic}\"",
            progress_topic(topic)
        );
    }
    options
}

fn progress_topic(topic: &str) -> String {
    format!("{topic}-progress")
}

/// What a topic has.
pub(crate) async fn arrivals(brokers: &str, topic: &str) -> Vec<Arrival> {
    let (brokers, name) = (brokers.to_owned(), topic.to_owned());
    let read = tokio::task::spawn_blocking(move || kafka::read(&brokers, &name));
    let read = read.await.expect("the topic can be read");
    read.into_iter().map(|record| arrival(record, topic)).collect()
}

fn arrival(record: Read, topic: &str) -> Arrival {
    let header = |name: &str| {
        let value = record.header(name);
        value.unwrap_or_else(|| panic!("the header {name} is missing")).to_owned()
    };
    Arrival {
        id: header("postrider-id").parse().expect("an id is a UUID"),
        event_type: header("postrider-event-type"),
        topic: topic.to_owned(),
        key: String::from_utf8(record.key.clone().expect("there is a key")).expect("it is text"),
        headers: record.headers.iter().cloned().collect(),
        body: record.value.unwrap_or_default(),
    }
}
