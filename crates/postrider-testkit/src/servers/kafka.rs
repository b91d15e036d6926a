//! Kafka: the shared broker, and private ones.

mod reader;
mod script;
mod server;

use std::time::{Duration, UNIX_EPOCH};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::sync::OnceCell;
use uuid::Uuid;

pub use self::reader::{Read, has_open_transaction, read, read_uncommitted};
pub use self::script::{run_script, run_script_with};
pub use self::server::{Options, Server};

/// No answer takes so long.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What says where the shared broker is.
const SHARED: &str = "POSTRIDER_TEST_KAFKA";
/// How the names of tests' topics start.
const PREFIX: &str = "test-";
/// No test is that slow.
const LEFT_AFTER: Duration = Duration::from_secs(3600);
/// Most topics that are removed at once; the next process removes more.
const SWEPT_MAX: usize = 500;

/// The URL of the shared broker.
pub fn url() -> String {
    super::shared(SHARED)
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
    static SWEPT: OnceCell<()> = OnceCell::const_new();
    if std::env::var(SHARED).is_ok_and(|url| self::brokers(&url) == brokers) {
        SWEPT.get_or_init(|| sweep(brokers)).await;
    }
    let name = format!("{PREFIX}{}", Uuid::now_v7());
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

/// Removes the topics that earlier tests have left. Their names say how old they are.
async fn sweep(brokers: &str) {
    let client = client(brokers);
    let listed = tokio::task::spawn_blocking(move || client.fetch_metadata(None, TIMEOUT)).await;
    let metadata = listed.expect("nothing panics").expect("the broker answers");
    let names = metadata.topics().iter().map(|topic| topic.name());
    let old: Vec<_> = names.filter(|name| is_left(name)).take(SWEPT_MAX).collect();
    if !old.is_empty() {
        // Another process may sweep, too.
        drop(admin(brokers).delete_topics(&old, &AdminOptions::new()).await);
    }
}

/// Whether a topic is a test's that has ended long ago, or belongs to such a topic.
fn is_left(name: &str) -> bool {
    const ID: usize = uuid::fmt::Hyphenated::LENGTH;
    let id = name.strip_prefix(PREFIX).and_then(|id| id.get(..ID));
    let made_at = id.and_then(|id| Uuid::parse_str(id).ok()).and_then(|id| id.get_timestamp());
    let Some(made_at) = made_at else { return false };
    let made_at = UNIX_EPOCH + Duration::from_secs(made_at.to_unix().0);
    made_at.elapsed().is_ok_and(|age| age > LEFT_AFTER)
}

fn client(brokers: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config.create().expect("a client can be made")
}

/// How many partitions with a leader a topic has: none if there is none.
pub fn partitions(brokers: &str, topic: &str) -> usize {
    let metadata = client(brokers).fetch_metadata(Some(topic), TIMEOUT);
    let metadata = metadata.expect("the broker answers");
    let partitions = metadata.topics()[0].partitions();
    partitions.iter().filter(|partition| partition.leader() >= 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_old_topics_of_tests_are_left() {
        // 2023.
        let old = "test-018bcfe5-6800-7000-8000-000000000000";
        assert!(is_left(old) && is_left(&format!("{old}-progress")));
        for name in ["orders", "test-orders", &old[5..], &format!("{PREFIX}{}", Uuid::now_v7())] {
            assert!(!is_left(name), "{name}");
        }
    }
}
