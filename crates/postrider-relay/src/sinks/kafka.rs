//! Publishes to Apache Kafka, and whatever speaks its protocol.
//!
//! `Ok` means that all replicas in sync have the record (`acks=all`). The producer is idempotent:
//! what librdkafka sends again, after a lost answer or to another leader, is written once and in
//! its place. One record of a key is under way at a time, because a broker can refuse a batch for
//! good and take the next one; records of all other keys are under way with it.
//!
//! The record's key is the message's, and the partition that of the Java client (`murmur2`), so
//! that other producers to the topic agree. An empty body becomes a tombstone. The record's time
//! is that of sending: by the event's own time, a backlog would be deleted as old on arrival.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::time::{Instant, timeout_at};

use self::delivery::Call;
use self::facts::Limits;
use self::failure::{Place, failure};
use self::producer::Producer;
use self::record::Record;
use self::topics::Topics;
use self::transactions::Transactions;
use super::broker_url::BrokerUrl;
use super::problem;
use crate::routing::Template;
use crate::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};

mod delivery;
mod facts;
mod failure;
mod options;
mod producer;
mod progress;
mod progress_reader;
mod readback;
mod record;
mod scratch;
mod settings;
mod topics;
mod transactions;
mod trouble;

pub use options::{Compression, Mechanism, Options};

/// What librdkafka can send at most; each topic has a limit of its own below it.
const EVENT_BYTES_MAX: usize = 1_000_000_000;
/// Several calls are under way at once, so that one is filled while another one is answered.
const BATCH_EVENTS_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
const CALLS_MAX: usize = 8;
/// How long after its `timeout` a call is answered at the latest: librdkafka says why it gave up, and
/// the pipeline gives up a little later.
const ANSWER_MARGIN: Duration = Duration::from_secs(2);
/// With exactly once there is one call at a time instead, as large as all of them.
const CALL_EVENTS_MAX: usize = BATCH_EVENTS_MAX * CALLS_MAX;

/// Publishes to one cluster.
pub struct KafkaSink {
    servers: String,
    /// What every producer is made with.
    config: ClientConfig,
    /// Batches are no larger, if it is given.
    batch_bytes: Option<usize>,
    producer: Mutex<Arc<Producer>>,
    topics: Arc<Topics>,
    /// With exactly once, which has a producer of its own.
    transactions: Option<Transactions>,
    partition: Option<Template>,
    /// The topic that a check looks for.
    topic: Option<String>,
    /// Shown by a check.
    cautions: Vec<String>,
    check_timeout: Duration,
    timeout: Duration,
}

impl KafkaSink {
    /// What a producer must keep to.
    fn limits(&self) -> Limits {
        let limits = self.topics.limits();
        let batch_bytes = limits.batch_bytes.min(self.batch_bytes.unwrap_or(usize::MAX));
        Limits { batch_bytes, ..limits }
    }

    /// The producer of the moment. One that failed for good, or that makes other batches than
    /// the topics take, is replaced.
    fn producer(&self) -> Result<Arc<Producer>, SinkError> {
        let limits = self.limits();
        let mut producer = self.producer.lock().unwrap_or_else(PoisonError::into_inner);
        if producer.is_broken() || producer.limits() != limits {
            *producer = Arc::new(Producer::new(&self.config, limits)?);
        }
        Ok(Arc::clone(&producer))
    }

    /// Why some topics of these messages cannot be sent to.
    async fn look_up<'a>(
        &self,
        messages: &'a [Message],
    ) -> Result<HashMap<&'a str, SinkError>, SinkError> {
        let producer = self.producer()?;
        let look = self.topics.look_up(messages, self.partition.as_ref(), self.check_timeout);
        let mut refused = self.answer(&producer, look).await?;
        for error in refused.values_mut() {
            *error = failure::because(error.clone(), producer.trouble().as_ref());
        }
        Ok(refused)
    }

    fn place<'a>(&'a self, topic: &'a str) -> Place<'a> {
        Place { servers: &self.servers, topic }
    }

    /// Queues a message; the answer comes to the call.
    fn send(
        &self,
        producer: &Producer,
        call: &Arc<Call>,
        index: usize,
        message: &Message,
    ) -> Result<(), SinkError> {
        let place = self.place(&message.topic);
        let record = Record::of(message, self.partition.as_ref())?;
        if let Some(facts) = self.topics.of(&message.topic) {
            let (bytes, most) = (record.batch_bytes(), facts.record_bytes());
            if bytes > most {
                return Err(failure::too_large(&place, bytes, most));
            }
            if record.partition.is_some_and(|partition| partition >= facts.partitions) {
                return Err(failure::no_partition(&place, facts.partitions));
            }
        }
        producer
            .send(record, Arc::clone(call), index)
            .map_err(|error| failure(&place, &error, None))
    }

    /// Nobody has answered by the end of a call.
    fn late(&self) -> SinkError {
        let error = KafkaError::Global(RDKafkaErrorCode::OperationTimedOut);
        failure(&self.place(""), &error, None)
    }

    /// Waits for the answer to a question, unless the cluster does not let us in.
    async fn answer<T>(
        &self,
        producer: &Producer,
        question: impl Future<Output = T>,
    ) -> Result<T, SinkError> {
        tokio::select! {
            biased;
            answer = question => Ok(answer),
            trouble = producer.refused() => Err(failure::refused(&self.servers, &trouble)),
        }
    }

    /// Why a message was not delivered. A refusal of the size means the batch: of a message in
    /// company it says nothing.
    fn undelivered(
        &self,
        message: &Message,
        code: RDKafkaErrorCode,
        producer: &Producer,
    ) -> SinkError {
        let (topic, place) = (&message.topic, self.place(&message.topic));
        let is_too_large = code == RDKafkaErrorCode::MessageSizeTooLarge;
        self.topics.doubt(topic, is_too_large);
        if is_too_large && producer.limits().batch_bytes == 1 {
            let record = Record::of(message, self.partition.as_ref());
            return record.map_or_else(
                |error| error,
                |record| failure::refused_alone(&place, record.batch_bytes()),
            );
        }
        if is_too_large {
            let message = format!(
                "the topic {topic} refused a batch as too large: its max.message.bytes was lowered, \
                 or may not be seen; the next batches are smaller"
            );
            return SinkError::new(FailureKind::Failed, message);
        }
        let error = KafkaError::MessageProduction(code);
        failure(&place, &error, producer.trouble().as_ref())
    }
}

#[async_trait]
impl Sink for KafkaSink {
    fn capabilities(&self) -> SinkCapabilities {
        let capabilities = SinkCapabilities {
            name: "kafka",
            ordered_by_key: false,
            deduplicates: false,
            event_bytes_max: EVENT_BYTES_MAX,
            batch_events_max: BATCH_EVENTS_MAX,
            batch_bytes_max: BATCH_BYTES_MAX,
            calls_max: CALLS_MAX,
        };
        match self.transactions {
            None => capabilities,
            // A transaction is whole or not at all, and takes longer than a call without one.
            Some(_) => SinkCapabilities {
                ordered_by_key: true,
                batch_events_max: CALL_EVENTS_MAX,
                batch_bytes_max: BATCH_BYTES_MAX * CALLS_MAX,
                calls_max: 1,
                ..capabilities
            },
        }
    }

    /// Asks for the cluster and the topic. The client that asks never lets a broker make a topic.
    async fn check(&self) -> Result<Vec<String>, SinkError> {
        let producer = self.producer()?;
        let look = async {
            let found = self.topics.check(self.topic.as_deref(), self.check_timeout).await?;
            if let Some(transactions) = &self.transactions {
                transactions.check(&self.topics, self.check_timeout).await?;
            }
            Ok(found)
        };
        let found = self.answer(&producer, look).await?;
        let found = found.map_err(|error| failure::because(error, producer.trouble().as_ref()))?;
        Ok(self.cautions.iter().cloned().chain(found).collect())
    }

    fn allow_until(&self, until: Option<Instant>) {
        if let Some(transactions) = &self.transactions {
            transactions.allow_until(until);
        }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let deadline = Instant::now() + self.timeout;
        let looked_up = timeout_at(deadline, self.look_up(messages)).await;
        let topics = match looked_up.unwrap_or_else(|_| Err(self.late())) {
            Ok(topics) => topics,
            Err(error) => return vec![Err(error); messages.len()],
        };
        if let Some(transactions) = &self.transactions {
            return transactions.publish(self, messages, &topics, deadline).await;
        }
        let producer = match self.producer() {
            Ok(producer) => producer,
            Err(error) => return vec![Err(error); messages.len()],
        };
        let call = Arc::new(Call::new(messages.len()));
        let mut unsent: Vec<Option<SinkError>> = Vec::with_capacity(messages.len());
        for (index, message) in messages.iter().enumerate() {
            let sent = match topics.get(message.topic.as_str()) {
                Some(error) => Err(error.clone()),
                None => self.send(&producer, &call, index, message),
            };
            if sent.is_err() {
                call.answer(index, None);
            }
            unsent.push(sent.err());
        }
        // After a slow look at the topics, librdkafka would go on for longer than the pipeline waits.
        let Ok(delivered) = timeout_at(deadline + ANSWER_MARGIN, call.finished()).await else {
            return unsent.into_iter().map(|own| Err(own.unwrap_or_else(|| self.late()))).collect();
        };
        let answers = messages.iter().zip(unsent).zip(delivered);
        answers
            .map(|((message, unsent), code)| match (unsent, code) {
                (Some(error), _) => Err(error),
                (None, Some(code)) => Err(self.undelivered(message, code, &producer)),
                (None, None) => Ok(()),
            })
            .collect()
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

impl std::fmt::Debug for KafkaSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSink").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl Options {
    /// Whether the files of TLS can be read, of which librdkafka would say less.
    fn read_files(&self) -> Result<(), SinkError> {
        let Some(tls) = &self.tls else { return Ok(()) };
        for (option, file) in [
            ("ca_file", &tls.ca_file),
            ("certificate_file", &tls.certificate_file),
            ("key_file", &tls.key_file),
        ] {
            let Some(file) = file else { continue };
            if let Err(error) = std::fs::read(file) {
                let message = format!("cannot read {} ({option} of tls): {error}", file.display());
                return Err(SinkError::new(FailureKind::Misconfigured, message));
            }
        }
        Ok(())
    }

    /// Makes a producer. Whether the cluster can be reached shows when it is used.
    pub async fn connect(&self) -> Result<KafkaSink, SinkError> {
        let checked = self.check().map_err(problem::misconfigured)?;
        self.read_files()?;
        let servers = BrokerUrl::servers_shown(&checked.url);
        let topics = Topics::new(&checked.config, self, servers.clone())?;
        let transactions = self.exactly_once();
        let transactions =
            transactions.map(|options| Transactions::new(&checked.config, options, self.timeout));
        let producer = Producer::new(&checked.config, topics.limits())?;
        Ok(KafkaSink {
            servers,
            config: checked.config,
            batch_bytes: checked.batch_bytes,
            producer: Mutex::new(Arc::new(producer)),
            topics: Arc::new(topics),
            transactions,
            partition: checked.partition,
            topic: self.pipeline.topic.clone(),
            cautions: checked.cautions,
            check_timeout: self.timeout / 2,
            timeout: self.timeout,
        })
    }
}
