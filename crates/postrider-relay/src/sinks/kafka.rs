//! Publishes to Apache Kafka, and whatever speaks its protocol.
//!
//! `Ok` means that all replicas in sync have the record (`acks=all`). The producer is idempotent:
//! what librdkafka sends again, after a lost answer or to another leader, is written once and in
//! its place.
//!
//! A broker can refuse a batch for good and take the next one. So several records of a key are
//! under way only in one batch, which is taken or refused as one: such a call has a
//! producer for itself, whose [batches](batches) end where the call does. Calls with one record of
//! each key share a producer that batches across calls.
//!
//! The record's key is the message's, and the partition that of the Java client (`murmur2`), so
//! that other producers to the topic agree. An empty body becomes a tombstone. The record's time
//! is that of sending: by the event's own time, a backlog would be deleted as old on arrival.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use self::batches::BatchProducers;
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

mod batches;
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
mod waves;
mod waving;

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
/// How long the end may take to note what is settled.
const CLOSE_MAX: Duration = Duration::from_secs(2);
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
    batches: BatchProducers,
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
        let record = self.record(message)?;
        let sent = producer.send(record, Arc::clone(call), index);
        sent.map_err(|error| failure(&self.place(&message.topic), &error, None))
    }

    /// The record for a message, if its topic takes it.
    fn record<'a>(&self, message: &'a Message) -> Result<Record<'a>, SinkError> {
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
        Ok(record)
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

    /// Why messages were not delivered, of those that went to librdkafka. A refusal means their
    /// batch: of a message in company it says nothing, unless another one says who is to blame.
    fn undelivered_of(
        &self,
        answered: &[(&Message, Option<RDKafkaErrorCode>)],
        producer: &Producer,
        may_be_in_company: impl Fn(&str) -> bool,
    ) -> Vec<Result<(), SinkError>> {
        let told: HashSet<&str> = answered
            .iter()
            .filter(|(_, code)| *code == Some(RDKafkaErrorCode::InvalidDifferentRecord))
            .map(|(message, _)| message.topic.as_str())
            .collect();
        let answer = |(message, code): &(&Message, Option<RDKafkaErrorCode>)| {
            let Some(code) = *code else { return Ok(()) };
            let error = self.undelivered(message, code, producer);
            let is_refused = matches!(error.kind, FailureKind::Rejected | FailureKind::Failed);
            let topic = message.topic.as_str();
            let in_company = is_refused && !told.contains(topic) && may_be_in_company(topic);
            let in_company = in_company || error.in_company;
            Err(error.with_company(in_company))
        };
        answered.iter().map(answer).collect()
    }

    /// Why a message was not delivered.
    fn undelivered(
        &self,
        message: &Message,
        code: RDKafkaErrorCode,
        producer: &Producer,
    ) -> SinkError {
        let (topic, place) = (&message.topic, self.place(&message.topic));
        let is_too_large = code == RDKafkaErrorCode::MessageSizeTooLarge;
        self.topics.doubt(topic, is_too_large);
        if code == RDKafkaErrorCode::InvalidDifferentRecord {
            let message = format!("the topic {topic} refused a batch because of another record");
            return SinkError::new(FailureKind::Rejected, message).with_company(true);
        }
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
            ordered_by_key: true,
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
                deduplicates: true,
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
        if waving::has_order(messages) {
            return self.publish_in_waves(messages, &topics, deadline).await;
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
        // A call that is not full has everything that can be sent now, of any key.
        if messages.len() < BATCH_EVENTS_MAX {
            producer.hurry();
        }
        // After a slow look at the topics, librdkafka would go on for longer than the pipeline waits.
        let Ok(delivered) = timeout_at(deadline + ANSWER_MARGIN, call.finished()).await else {
            return unsent.into_iter().map(|own| Err(own.unwrap_or_else(|| self.late()))).collect();
        };
        let answered: Vec<_> = messages.iter().zip(delivered).collect();
        let answers = self.undelivered_of(&answered, &producer, |_| true);
        unsent.into_iter().zip(answers).map(|(own, answer)| own.map_or(answer, Err)).collect()
    }

    fn follows_settlements(&self) -> bool {
        self.transactions.is_some()
    }

    fn settled(&self, delivered: &[Uuid], set_aside: &[Uuid]) {
        if let Some(transactions) = &self.transactions {
            transactions.settled(delivered, set_aside);
        }
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        if let Some(transactions) = &self.transactions {
            transactions.close(Instant::now() + self.timeout.min(CLOSE_MAX)).await;
        }
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
            batches: BatchProducers::new(&checked.config),
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
