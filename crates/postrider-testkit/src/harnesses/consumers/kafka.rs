//! Kafka, with a topic of three partitions at the shared broker.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use postrider::Event;
use postrider_consumer::subscriptions::Kafka as Subscription;
use postrider_relay::formats::Format;
use postrider_relay::sinks::SinkSpec;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::servers::kafka::{brokers, make_topic, url};
use crate::suites::Backend;
use crate::suites::consumer::{Capabilities, Consuming, Subject, TestTopic, Work};

const CAPABILITIES: Capabilities = Capabilities {
    has_visibility: false,
    is_relayed: true,
    knows_redelivery: true,
    keeps_order_in_group: true,
    repeats: true,
};

/// Kafka.
pub fn backend() -> Backend<Subject, Capabilities> {
    super::backend("kafka", CAPABILITIES, || async {
        let url = url();
        let topic = make_topic(brokers(&url), 3, &[]).await;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers(&url)).set("enable.idempotence", "true");
        Kafka { producer: config.create().expect("a producer"), topic, url }
    })
}

struct Kafka {
    producer: FutureProducer,
    topic: String,
    url: String,
}

#[async_trait]
impl TestTopic for Kafka {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    /// A group reads from the beginning.
    async fn add_group(&self, _: &str) {}

    async fn publish(&self, events: &[Event]) {
        let sent = events.iter().map(|event| {
            let headers = super::headers(event);
            let headers = headers.iter().fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value) })
            });
            let record = FutureRecord::to(&self.topic)
                .key(event.aggregate_id())
                .payload(&event.payload()[..])
                .headers(headers);
            self.producer.send_result(record).expect("there is room")
        });
        for sent in join_all(sent.collect::<Vec<_>>()).await {
            sent.expect("it is answered").expect("it is taken");
        }
    }

    async fn publish_garbage(&self, body: &[u8]) {
        let record = FutureRecord::<str, [u8]>::to(&self.topic).payload(body);
        self.producer.send(record, Duration::from_secs(30)).await.expect("it is taken");
    }

    async fn relay(&self, event: Event, format: Format) {
        super::relay(SinkSpec::new(&self.url), &self.topic, event, format).await;
    }

    fn consume(&self, group: &str, work: Work) -> Consuming {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", brokers(&self.url))
            .set("group.id", format!("{}-{group}", self.topic))
            // A member that was killed is missed soon.
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "500");
        let subscription = Subscription::with_config(config, &[&self.topic]);
        Consuming::start(subscription.expect("the settings are right"), work)
    }
}
