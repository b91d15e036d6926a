//! Subscribes to topics of Kafka, as a member of a consumer group.
//!
//! An offset is stored when everything before it in its partition is done with, and committed
//! within a second, and before a partition passes to another member. So deliveries that were
//! acknowledged out of order come again after a crash, and the inbox knows them.

mod positions;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::oneshot;

use self::positions::Positions;
use crate::subscription::{Incoming, Received, Redelivery, Subscription, SubscriptionError};

/// How long a question to the cluster may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// What the subscription itself decides.
const OWN: [(&str, &str); 2] =
    [("enable.auto.commit", "true"), ("enable.auto.offset.store", "false")];
/// What holds unless the application says otherwise.
const DEFAULTS: [(&str, &str); 3] = [
    ("allow.auto.create.topics", "false"),
    ("auto.commit.interval.ms", "1000"),
    ("auto.offset.reset", "earliest"),
];

/// A subscription to topics.
pub struct Kafka {
    consumer: Arc<StreamConsumer<Context>>,
    config: ClientConfig,
    topics: Vec<String>,
    positions: Arc<Mutex<Positions>>,
}

/// A record that was delivered.
#[derive(Clone, Debug)]
pub struct KafkaHandle {
    partition: (Arc<str>, i32),
    offset: i64,
    /// Which assignment of its partition it belongs to.
    assignment: u64,
}

impl Kafka {
    /// Joins a consumer group, which reads topics from their beginning.
    pub fn subscribe(
        bootstrap_servers: &str,
        group: &str,
        topics: &[&str],
    ) -> Result<Self, SubscriptionError> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", bootstrap_servers).set("group.id", group);
        Self::with_config(config, topics)
    }

    /// The same with settings of librdkafka, such as those of TLS and of authentication.
    pub fn with_config(config: ClientConfig, topics: &[&str]) -> Result<Self, SubscriptionError> {
        if config.get("group.id").is_none_or(str::is_empty) {
            return Err(SubscriptionError::mistake("group.id is missing; name the consumer group"));
        }
        if topics.is_empty() {
            return Err(SubscriptionError::mistake("there are no topics; name at least one"));
        }
        let mut config = config;
        for (name, value) in OWN {
            if config.get(name).is_some_and(|given| given != value) {
                let message = format!(
                    "{name} must be {value}: an offset counts as done with only after its events; leave it out"
                );
                return Err(SubscriptionError::mistake(message));
            }
            config.set(name, value);
        }
        for (name, value) in DEFAULTS {
            if config.get(name).is_none() {
                config.set(name, value);
            }
        }
        let positions = Arc::new(Mutex::new(Positions::default()));
        let context = Context { positions: Arc::clone(&positions) };
        let refused = |error: KafkaError| SubscriptionError {
            message: "librdkafka refuses the settings".to_owned(),
            source: Some(error.into()),
            is_final: true,
        };
        let consumer: StreamConsumer<_> = config.create_with_context(context).map_err(refused)?;
        consumer.subscribe(topics).map_err(refused)?;
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        Ok(Self { consumer: Arc::new(consumer), config, topics, positions })
    }

    fn positions(&self) -> std::sync::MutexGuard<'_, Positions> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(&self, message: &BorrowedMessage<'_>) -> Received<KafkaHandle> {
        let (partition, assignment) =
            self.positions().received(message.topic(), message.partition(), message.offset());
        let handle = KafkaHandle { partition, offset: message.offset(), assignment };
        Received { handle, incoming: incoming(message) }
    }

    fn failed(&self, error: KafkaError) -> SubscriptionError {
        let message = match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                format!(
                    "there is no such topic among {}; make it with kafka-topics.sh --create",
                    self.topics.join(", ")
                )
            }
            Some(RDKafkaErrorCode::TopicAuthorizationFailed) => {
                format!(
                    "no permission to read {}; allow the operation Read",
                    self.topics.join(", ")
                )
            }
            Some(RDKafkaErrorCode::GroupAuthorizationFailed) => {
                let group = self.config.get("group.id").unwrap_or_default();
                format!("no permission to join the group {group}; allow the operation Read on it")
            }
            _ => "nothing can be received from Kafka".to_owned(),
        };
        let is_final = matches!(error, KafkaError::MessageConsumptionFatal(_));
        SubscriptionError { message, source: Some(error.into()), is_final }
    }
}

#[async_trait]
impl Subscription for Kafka {
    type Handle = KafkaHandle;

    fn name(&self) -> &'static str {
        "kafka"
    }

    /// A record may come again for as long as it is kept: a group that was idle for long forgets
    /// where it was.
    async fn redelivery(&self) -> Result<Redelivery, SubscriptionError> {
        let failed = |error| SubscriptionError::new("the topics' settings cannot be read", error);
        let mut config = ClientConfig::new();
        for (name, value) in self.config.config_map() {
            if !name.starts_with("enable.auto") && !name.starts_with("auto.") {
                config.set(name, value);
            }
        }
        config.remove("group.id").set_log_level(RDKafkaLogLevel::Emerg);
        let admin: AdminClient<DefaultClientContext> = config.create().map_err(failed)?;
        let topics: Vec<_> =
            self.topics.iter().map(|topic| ResourceSpecifier::Topic(topic)).collect();
        let options = AdminOptions::new().request_timeout(Some(TIMEOUT));
        let described = admin.describe_configs(&topics, &options).await.map_err(failed)?;
        let mut longest = Duration::ZERO;
        for topic in described {
            let refused = |code| KafkaError::AdminOp(code);
            match kept(&topic.map_err(refused).map_err(failed)?) {
                Some(kept) => longest = longest.max(kept),
                None => return Ok(Redelivery::Unlimited),
            }
        }
        Ok(Redelivery::Within(longest))
    }

    async fn receive(&self, max: usize) -> Result<Vec<Received<KafkaHandle>>, SubscriptionError> {
        let mut received = Vec::new();
        while received.is_empty() {
            let message = self.consumer.recv().await.map_err(|error| self.failed(error))?;
            received.push(self.take_in(&message));
        }
        // What is there already comes along.
        while received.len() < max
            && let Some(Ok(message)) = self.consumer.recv().now_or_never()
        {
            received.push(self.take_in(&message));
        }
        Ok(received)
    }

    async fn acknowledge(&self, handles: Vec<KafkaHandle>) -> Result<(), SubscriptionError> {
        let mut stored = TopicPartitionList::new();
        let done =
            handles.iter().map(|handle| (&handle.partition, handle.offset, handle.assignment));
        for ((topic, partition), offset) in self.positions().done(done) {
            // Fails only if the partition is there twice.
            let _ = stored.add_partition_offset(&topic, partition, Offset::Offset(offset));
        }
        if stored.count() > 0 {
            // Not if the partition was given to another member in this moment: then the records
            // come to that one.
            let _ = self.consumer.store_offsets(&stored);
        }
        Ok(())
    }

    fn is_lost(&self, handle: &KafkaHandle) -> bool {
        !self.positions().is_current(&handle.partition, handle.assignment)
    }

    /// Commits what is stored, so that the next member begins there, and leaves the group.
    async fn close(&self) {
        let consumer = Arc::clone(&self.consumer);
        let (closed, is_closed) = oneshot::channel();
        // It blocks for as long as the cluster is silent, which must hold up nothing.
        let close = move || {
            let _ = consumer.commit_consumer_state(rdkafka::consumer::CommitMode::Sync);
            consumer.unsubscribe();
            let _ = closed.send(());
        };
        if std::thread::Builder::new().name("kafka-close".into()).spawn(close).is_ok() {
            let _ = is_closed.await;
        }
    }
}

impl std::fmt::Debug for Kafka {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kafka").field("topics", &self.topics).finish_non_exhaustive()
    }
}

/// For how long a topic keeps records; `None` if it is for ever. A segment is removed as a whole,
/// when its last record is old enough.
fn kept(settings: &ConfigResource) -> Option<Duration> {
    let setting = |name: &str| settings.get(name)?.value.as_deref();
    let is_deleted = setting("cleanup.policy").is_some_and(|policy| policy.contains("delete"));
    let millis = |name: &str| setting(name)?.parse().ok().map(Duration::from_millis);
    let kept = millis("retention.ms").filter(|_| is_deleted)?;
    Some(kept.saturating_add(millis("segment.ms").unwrap_or_default()))
}

fn incoming(message: &BorrowedMessage<'_>) -> Incoming {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let headers = message.headers().into_iter().flat_map(|headers| headers.iter());
    Incoming {
        topic: message.topic().to_owned(),
        key: message.key().map(text),
        headers: headers
            .map(|header| (header.key.to_owned(), header.value.map(text).unwrap_or_default()))
            .collect(),
        body: message.payload().map(Bytes::copy_from_slice).unwrap_or_default(),
        place: format!("{}/{}@{}", message.topic(), message.partition(), message.offset()),
        is_revived: false,
    }
}

/// Hears which partitions come and go.
struct Context {
    positions: Arc<Mutex<Positions>>,
}

impl ClientContext for Context {}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let mut positions = self.positions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Rebalance::Revoke(partitions) = rebalance {
            for element in partitions.elements() {
                positions.revoked(element.topic(), element.partition());
            }
        }
    }
}
