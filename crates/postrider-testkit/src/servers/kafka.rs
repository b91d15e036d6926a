//! Kafka: the shared broker, and private ones.

mod reader;
mod script;
mod server;

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use uuid::Uuid;

pub use self::reader::{Read, read};
pub use self::script::{run_script, run_script_with};
pub use self::server::{Options, Server};

/// No answer takes so long.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The URL of the shared broker.
pub fn url() -> String {
    super::shared("POSTRIDER_TEST_KAFKA")
}

/// The `host:port` of the brokers in a URL.
pub fn brokers(url: &str) -> &str {
    super::address(url)
}

/// A client that makes and changes topics.
pub fn admin(brokers: &str) -> AdminClient<DefaultClientContext> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config.create().expect("a client can be made")
}

/// Makes a topic of a new name, with settings of its own.
pub async fn make_topic(brokers: &str, partitions: i32, settings: &[(&str, &str)]) -> String {
    let name = format!("test-{}", Uuid::now_v7());
    make_topic_as(brokers, &name, partitions, 1, settings).await;
    name
}

/// Makes a topic of this name.
pub async fn make_topic_as(
    brokers: &str,
    name: &str,
    partitions: i32,
    replicas: i32,
    settings: &[(&str, &str)],
) {
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(replicas));
    for (name, value) in settings {
        topic = topic.set(name, value);
    }
    let made = admin(brokers).create_topics(&[topic], &AdminOptions::new()).await;
    for made in made.expect("the broker answers") {
        made.expect("the topic can be made");
    }
    // A broker may not know of it yet.
    for broker in brokers.split(',') {
        while self::partitions(broker, name) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// How many partitions with a leader a topic has: none if there is none.
pub fn partitions(brokers: &str, topic: &str) -> usize {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    let client: BaseConsumer = config.create().expect("a client can be made");
    let metadata = client.fetch_metadata(Some(topic), TIMEOUT).expect("the broker answers");
    let partitions = metadata.topics()[0].partitions();
    partitions.iter().filter(|partition| partition.leader() >= 0).count()
}
