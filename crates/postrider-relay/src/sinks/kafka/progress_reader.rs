//! Reads the topic of progress to its end, which may take several calls.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use super::progress::FoundNotes;
use crate::sink::{FailureKind, SinkError};

/// One wait for a record.
const POLL: Duration = Duration::from_millis(200);
/// Most of the topic that is in memory before it is looked at.
const QUEUED_KIB: &str = "8192";

/// Reads what a producer has noted.
pub(super) struct ProgressReader {
    /// Only the drop takes it.
    consumer: Option<BaseConsumer>,
    topic: String,
    /// Where partitions ended when the reading began, without those that are read.
    ends: HashMap<i32, i64>,
    found: FoundNotes,
    /// Somebody's open transaction hides the rest.
    is_held_up: bool,
    /// What was wrong last.
    trouble: Option<RDKafkaErrorCode>,
}

impl ProgressReader {
    /// Begins to read what the producer of this name has noted up to this moment. The admin client
    /// has to see what is not committed: a note that is behind somebody's open transaction would
    /// be missed otherwise. Blocks.
    pub(super) fn new(
        config: &ClientConfig,
        admin: &AdminClient<DefaultClientContext>,
        (topic, name): (&str, &str),
        deadline: Instant,
    ) -> Result<Self, KafkaError> {
        let mut from = TopicPartitionList::new();
        let mut ends = HashMap::new();
        for (partition, low, high) in extents(admin, topic, deadline)? {
            if low < high {
                from.add_partition_offset(topic, partition, Offset::Offset(low))?;
                ends.insert(partition, high);
            }
        }
        let mut config = config.clone();
        config
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true")
            .set("fetch.queue.backoff.ms", "10")
            // Without one librdkafka assigns nothing. It is not used otherwise.
            .set("group.id", name)
            .set("isolation.level", "read_committed")
            .set("queued.max.messages.kbytes", QUEUED_KIB)
            .set_log_level(RDKafkaLogLevel::Emerg);
        let consumer: BaseConsumer = config.create()?;
        consumer.assign(&from)?;
        Ok(Self {
            consumer: Some(consumer),
            topic: topic.to_owned(),
            ends,
            found: FoundNotes::new(name),
            is_held_up: false,
            trouble: None,
        })
    }

    /// Reads on, to the end or until the deadline; the answer is whether it has come to the end.
    /// Blocks.
    pub(super) fn read_on(&mut self, deadline: Instant) -> Result<bool, KafkaError> {
        while !self.ends.is_empty() {
            let left = left_until(deadline);
            if left.is_zero() {
                return Ok(false);
            }
            let consumer = self.consumer.as_ref().expect("only the drop takes it");
            match consumer.poll(left.min(POLL)) {
                Some(Ok(record)) => {
                    (self.is_held_up, self.trouble) = (false, None);
                    self.found.take(record.key().unwrap_or_default(), record.payload());
                    let (partition, next) = (record.partition(), record.offset() + 1);
                    self.ends.retain(|of, end| *of != partition || next < *end);
                    continue;
                }
                None => {}
                Some(Err(KafkaError::PartitionEOF(_))) => self.is_held_up = true,
                Some(Err(error)) => match error.rdkafka_error_code() {
                    // Only whoever shares the work of a group needs it.
                    Some(RDKafkaErrorCode::GroupAuthorizationFailed) => {}
                    // librdkafka goes on by itself.
                    Some(
                        code @ (RDKafkaErrorCode::AllBrokersDown
                        | RDKafkaErrorCode::BrokerTransportFailure
                        | RDKafkaErrorCode::OperationTimedOut
                        | RDKafkaErrorCode::Resolve),
                    ) => self.trouble = Some(code),
                    _ => return Err(error),
                },
            }
            // Records at the end may be none of ours to see: the position passes them.
            let position = consumer.position()?;
            for element in position.elements_for_topic(&self.topic) {
                if let Offset::Offset(next) = element.offset() {
                    self.ends.retain(|of, end| *of != element.partition() || next < *end);
                }
            }
        }
        Ok(true)
    }

    /// Why it has not come to the end. It goes on with the next call.
    pub(super) fn not_yet(&self) -> SinkError {
        let Self { topic, .. } = self;
        let message = if let Some(code) = self.trouble {
            format!("cannot read what was published before from the topic {topic}: {code}")
        } else if self.is_held_up {
            format!(
                "cannot read what was published before from the topic {topic}: somebody else has a \
                 transaction open in it, which hides what is behind it; it ends at the latest by \
                 its transaction.timeout.ms: after a minute, or `timeout`, if it is a relay's"
            )
        } else {
            format!(
                "what was published before is still being read from the topic {topic}; if that \
                 takes long, see whether it is compacted"
            )
        };
        SinkError::new(FailureKind::Unavailable, message)
    }

    /// What the producer of this name has noted.
    pub(super) fn into_found(mut self) -> FoundNotes {
        std::mem::replace(&mut self.found, FoundNotes::new(""))
    }
}

impl Drop for ProgressReader {
    /// It takes a while, as with a producer.
    fn drop(&mut self) {
        let consumer = self.consumer.take();
        let close = move || drop(consumer);
        let _ = std::thread::Builder::new().name("kafka-close".into()).spawn(close);
    }
}

/// Where each partition of a topic begins and ends. A topic that was just made may have no leader
/// yet, or none that the broker knows of: then it is asked again. Blocks.
fn extents(
    admin: &AdminClient<DefaultClientContext>,
    topic: &str,
    deadline: Instant,
) -> Result<Vec<(i32, i64, i64)>, KafkaError> {
    use RDKafkaErrorCode::{LeaderNotAvailable, NotLeaderForPartition, UnknownTopicOrPartition};
    let ask = || {
        let metadata = admin.inner().fetch_metadata(Some(topic), left_until(deadline))?;
        let partitions = metadata.topics().first().map_or(&[][..], |topic| topic.partitions());
        if partitions.is_empty() {
            // To take it for an empty one would be to forget what was published.
            return Err(KafkaError::MetadataFetch(LeaderNotAvailable));
        }
        let extent = |partition| {
            let left = left_until(deadline);
            let (low, high) = admin.inner().fetch_watermarks(topic, partition, left)?;
            Ok((partition, low, high))
        };
        partitions.iter().map(|partition| extent(partition.id())).collect()
    };
    loop {
        let asked: Result<_, KafkaError> = ask();
        let code = asked.as_ref().err().and_then(KafkaError::rdkafka_error_code);
        let is_passing = matches!(
            code,
            Some(LeaderNotAvailable | NotLeaderForPartition | UnknownTopicOrPartition)
        );
        if !is_passing || left_until(deadline) < POLL {
            return asked;
        }
        std::thread::sleep(POLL);
    }
}

fn left_until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
