//! What is known of the topics: whether they are there, and how large a record they take.
//!
//! librdkafka would find out late and for whole batches, so a topic is asked about before its
//! first record.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::facts::{Facts, KnownTopics, Limits, Settings};
use super::failure::{
    Place, code_of, failure, no_progress_topic, no_topic, not_compacted, not_created,
    small_progress_topic, too_few_replicas,
};
use super::options::Options;
use super::producer::not_made;
use super::progress_reader::ProgressReader;
use super::record::topic_problem;
use crate::routing::Template;
use crate::sink::{FailureKind, Message, SinkError};

/// How a topic of progress is made. Only a segment that is no longer written to is compacted, and
/// by default that is after 1 GiB, or a week; what is left of transactions stays for a day.
pub(super) const PROGRESS_SETTINGS: [(&str, &str); 3] =
    [("cleanup.policy", "compact"), ("delete.retention.ms", "60000"), ("segment.bytes", "8388608")];

/// How often is asked for a topic that was just made.
const DESCRIBE_EVERY: Duration = Duration::from_millis(50);

/// The topics of a cluster.
pub(super) struct Topics {
    admin: Arc<AdminClient<DefaultClientContext>>,
    servers: String,
    known: KnownTopics,
    /// How to make a topic that is missing: partitions and replicas, if that is wanted.
    create: Option<(i32, i32)>,
    /// What a consumer is made with.
    config: ClientConfig,
    /// Where relays note their progress: not for events.
    progress_topics: Vec<String>,
}

impl Topics {
    pub(super) fn new(
        config: &ClientConfig,
        options: &Options,
        servers: String,
    ) -> Result<Self, SinkError> {
        let mut config = config.clone();
        for producers in ["enable.idempotence", "message.timeout.ms", "partitioner"] {
            config.remove(producers);
        }
        // A topic ends where its last record is, committed or not.
        config.set("isolation.level", "read_uncommitted");
        // What it would log, the producer says, too.
        config.set_log_level(RDKafkaLogLevel::Emerg);
        let cluster_default = -1;
        let create = options.create_missing.then(|| {
            let given = |count: Option<usize>| {
                count.and_then(|count| count.try_into().ok()).unwrap_or(cluster_default)
            };
            (given(options.partitions), given(options.replication_factor))
        });
        let admin = Arc::new(config.create().map_err(not_made)?);
        let (known, progress_topics) = (KnownTopics::default(), options.progress_topics());
        Ok(Self { admin, servers, known, create, config, progress_topics })
    }

    /// What all topics that are known allow.
    pub(super) fn limits(&self) -> Limits {
        self.known.limits()
    }

    /// What is known of a topic that was [looked up](Self::look_up).
    pub(super) fn of(&self, topic: &str) -> Option<Facts> {
        self.known.of(topic)
    }

    /// Asks about a topic again before its next record, because it did not take one, or a whole
    /// batch as too large.
    pub(super) fn doubt(&self, topic: &str, refused_batch: bool) {
        self.known.doubt(topic, refused_batch);
    }

    /// Asks about the topics of these messages where that is needed. The answer is why some of
    /// them cannot be sent to.
    pub(super) async fn look_up<'a>(
        &self,
        messages: &'a [Message],
        partition: Option<&Template>,
        timeout: Duration,
    ) -> HashMap<&'a str, SinkError> {
        let unknown = self.known.unknown_to(messages, partition);
        let mut refused = HashMap::new();
        for (index, topic) in unknown.iter().enumerate() {
            let Err(error) = self.ask(topic, timeout).await else { continue };
            if error.kind == FailureKind::Unavailable {
                // One answer is enough to know that nobody answers.
                refused.extend(unknown[index..].iter().map(|topic| (*topic, error.clone())));
                return refused;
            }
            refused.insert(*topic, error);
        }
        refused
    }

    /// Finds out whether the cluster, and the topic, can be reached, and what is less safe than
    /// it could be.
    pub(super) async fn check(
        &self,
        topic: Option<&str>,
        timeout: Duration,
    ) -> Result<Vec<String>, SinkError> {
        let Some(topic) = topic else {
            self.cluster(timeout).await?;
            return Ok(Vec::new());
        };
        if let Some(problem) = topic_problem(topic, &self.progress_topics) {
            return Err(SinkError { kind: FailureKind::Misconfigured, ..problem });
        }
        match self.describe(topic, timeout).await? {
            Some(facts) => Ok(facts.cautions(topic, &self.servers)),
            None if self.create.is_some() => Ok(Vec::new()),
            None => Err(no_topic(&self.place(topic))),
        }
    }

    /// Learns of a topic, and makes it if that is wanted.
    pub(super) async fn ask(&self, topic: &str, timeout: Duration) -> Result<(), SinkError> {
        if let Some(problem) = topic_problem(topic, &self.progress_topics) {
            return Err(problem);
        }
        let mut facts = self.describe(topic, timeout).await?;
        if let (None, Some((partitions, replicas))) = (facts, self.create) {
            self.create(topic, partitions, replicas, &[], timeout).await?;
            facts = self.describe_new(topic, timeout).await?;
        }
        let facts = facts.ok_or_else(|| match self.create {
            None => no_topic(&self.place(topic)),
            Some(_) => {
                let message = format!("the topic {topic} was made, and not every broker knows it");
                SinkError::new(FailureKind::Unavailable, message)
            }
        })?;
        self.known.learn(topic, facts);
        Ok(())
    }

    /// Describes a topic that was just made, as soon as the broker that is asked knows it.
    async fn describe_new(
        &self,
        topic: &str,
        timeout: Duration,
    ) -> Result<Option<Facts>, SinkError> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let described = self.describe(topic, left.max(DESCRIBE_EVERY)).await;
            let may_come = match &described {
                Ok(facts) => facts.is_none(),
                Err(error) => error.kind == FailureKind::Unavailable,
            };
            if !may_come || Instant::now() >= deadline {
                return described;
            }
            tokio::time::sleep(DESCRIBE_EVERY).await;
        }
    }

    async fn cluster(&self, timeout: Duration) -> Result<(), SinkError> {
        let admin = Arc::clone(&self.admin);
        let asked = tokio::task::spawn_blocking(move || admin.inner().fetch_cluster_id(timeout));
        match asked.await {
            Ok(Some(_)) => Ok(()),
            Ok(None) | Err(_) => {
                let error = KafkaError::Global(RDKafkaErrorCode::AllBrokersDown);
                Err(failure(&self.place(""), &error, None))
            }
        }
    }

    /// What a topic is like; `None` if there is none.
    async fn describe(&self, topic: &str, timeout: Duration) -> Result<Option<Facts>, SinkError> {
        let (admin, name) = (Arc::clone(&self.admin), topic.to_owned());
        let asked = tokio::task::spawn_blocking(move || {
            let metadata = admin.inner().fetch_metadata(Some(&name), timeout)?;
            let topic = metadata.topics().first();
            let found = topic.map(|topic| {
                let replicas = topic.partitions().iter().map(|one| one.replicas().len()).min();
                (topic.error(), topic.partitions().len(), replicas.unwrap_or(0))
            });
            Ok((found, metadata.brokers().len()))
        });
        let asked = asked.await.unwrap_or(Err(KafkaError::Canceled));
        let failed = |error: KafkaError| failure(&self.place(topic), &error, None);
        let (found, brokers) = asked.map_err(failed)?;
        let Some((error, partitions, replicas)) = found else { return Ok(None) };
        match error.map(RDKafkaErrorCode::from) {
            Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => {
                return Ok(None);
            }
            Some(code) => return Err(failed(KafkaError::MetadataFetch(code))),
            None => {}
        }
        let settings = self.settings(topic, timeout).await.map_err(failed)?;
        if let Some(Settings { in_sync_min, .. }) = settings
            && (1..in_sync_min).contains(&replicas)
        {
            return Err(too_few_replicas(&self.place(topic), replicas, in_sync_min));
        }
        let partitions = partitions.try_into().unwrap_or(i32::MAX);
        Ok(Some(Facts { partitions, replicas, brokers, settings }))
    }

    /// The settings of a topic, if we may ask.
    async fn settings(
        &self,
        topic: &str,
        timeout: Duration,
    ) -> Result<Option<Settings>, KafkaError> {
        use RDKafkaErrorCode::UnsupportedFeature;
        let resource = [ResourceSpecifier::Topic(topic)];
        let options = AdminOptions::new().request_timeout(Some(timeout));
        let described = match self.admin.describe_configs(&resource, &options).await {
            Ok(mut described) => described.pop().and_then(Result::ok),
            // Not everything that speaks the protocol can tell.
            Err(error) if code_of(&error) == UnsupportedFeature => None,
            Err(error) => return Err(error),
        };
        Ok(described.and_then(|settings| {
            let number = |name| settings.get(name)?.value.as_deref()?.parse().ok();
            let policy = settings.get("cleanup.policy")?.value.as_deref()?;
            Some(Settings {
                record_bytes: number("max.message.bytes")?,
                in_sync_min: number("min.insync.replicas")?,
                is_compacted: policy == "compact",
            })
        }))
    }

    /// Whether the topic of progress is there and takes a note of so many bytes. One that is
    /// missing is made if `may_make`, and if that is wanted.
    pub(super) async fn look_up_progress(
        &self,
        topic: &str,
        note_bytes: usize,
        may_make: bool,
        timeout: Duration,
    ) -> Result<(), SinkError> {
        let place = self.place(topic);
        match (self.describe(topic, timeout).await?, self.create) {
            (Some(Facts { settings: Some(settings), .. }), _) if !settings.is_compacted => {
                Err(not_compacted(&place))
            }
            (Some(facts), _) if facts.record_bytes() < note_bytes => {
                Err(small_progress_topic(&place, note_bytes))
            }
            (Some(_), _) => Ok(()),
            (None, Some(_)) if !may_make => Ok(()),
            (None, Some((_, replicas))) => {
                self.create(topic, 1, replicas, &PROGRESS_SETTINGS, timeout).await
            }
            (None, None) => Err(no_progress_topic(&place)),
        }
    }

    /// Begins to read what the producer of this name has noted in the topic of progress.
    pub(super) async fn read_progress(
        &self,
        topic: &str,
        name: &str,
        deadline: Instant,
    ) -> Result<ProgressReader, SinkError> {
        let (config, admin) = (self.config.clone(), Arc::clone(&self.admin));
        let (of, name) = (topic.to_owned(), name.to_owned());
        let begin = move || ProgressReader::new(&config, &admin, (&of, &name), deadline);
        let begun = tokio::task::spawn_blocking(begin).await.unwrap_or(Err(KafkaError::Canceled));
        begun.map_err(|error| failure(&self.place(topic), &error, None))
    }

    async fn create(
        &self,
        topic: &str,
        partitions: i32,
        replicas: i32,
        settings: &[(&str, &str)],
        timeout: Duration,
    ) -> Result<(), SinkError> {
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(replicas));
        for (name, value) in settings {
            new = new.set(name, value);
        }
        let new = [new];
        // Until every broker knows it.
        let options =
            AdminOptions::new().request_timeout(Some(timeout)).operation_timeout(Some(timeout));
        let failed = |error: KafkaError| failure(&self.place(topic), &error, None);
        let created = self.admin.create_topics(&new, &options).await.map_err(failed)?;
        match created.into_iter().next() {
            // Another relay was quicker.
            Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) | Some(Ok(_)) | None => Ok(()),
            Some(Err((_, code))) => Err(not_created(&self.place(topic), code)),
        }
    }

    /// The names of all topics.
    pub(super) async fn all(&self, timeout: Duration) -> Result<Vec<String>, SinkError> {
        let admin = Arc::clone(&self.admin);
        let asked = tokio::task::spawn_blocking(move || {
            let metadata = admin.inner().fetch_metadata(None, timeout)?;
            Ok(metadata.topics().iter().map(|topic| topic.name().to_owned()).collect())
        });
        let asked = asked.await.unwrap_or(Err(KafkaError::Canceled));
        asked.map_err(|error| failure(&self.place(""), &error, None))
    }

    /// Deletes topics. One that is not there is no error.
    pub(super) async fn delete(
        &self,
        topics: &[String],
        timeout: Duration,
    ) -> Result<(), SinkError> {
        let names: Vec<&str> = topics.iter().map(String::as_str).collect();
        let options = AdminOptions::new().request_timeout(Some(timeout));
        let failed = |error: KafkaError| failure(&self.place(""), &error, None);
        for deleted in self.admin.delete_topics(&names, &options).await.map_err(failed)? {
            use RDKafkaErrorCode::{UnknownTopic, UnknownTopicOrPartition};
            match deleted {
                Ok(_) | Err((_, UnknownTopic | UnknownTopicOrPartition)) => {}
                Err((topic, code)) => {
                    let message = format!("the topic {topic} cannot be deleted: {code}");
                    return Err(SinkError::new(FailureKind::Misconfigured, message));
                }
            }
        }
        Ok(())
    }

    pub(super) fn place<'a>(&'a self, topic: &'a str) -> Place<'a> {
        Place { servers: &self.servers, topic }
    }
}
