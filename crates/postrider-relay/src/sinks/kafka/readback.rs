//! Reads topics back, without a group of its own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use uuid::Uuid;

use super::failure::{Place, failure, no_topic};
use super::options::Options;
use crate::formats::REPLAY_HEADER;
use crate::readback::{Kept, Readback, Scope, Unreadable};
use crate::sink::SinkError;
use crate::sinks::broker_url::BrokerUrl;
use crate::sinks::kept_ids::{id_header, id_in_body};
use crate::sinks::problem;

/// Most messages that are handed out at once.
const BATCH_MAX: usize = 10_000;
/// One wait for a message.
const POLL: Duration = Duration::from_millis(200);
/// The longest time without any message while some are missing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Reads the topics of one cluster.
pub(in crate::sinks) struct KafkaReadback {
    reader: Arc<Reader>,
    /// Where partitions end, without those that are read.
    ends: HashMap<(String, i32), i64>,
    unreadable: Vec<Unreadable>,
    kept_since: Option<SystemTime>,
}

struct Reader {
    consumer: BaseConsumer,
    servers: String,
    id_header: Option<String>,
}

impl Options {
    /// Begins to read topics back.
    pub(in crate::sinks) async fn read_back(
        &self,
        scope: &Scope,
    ) -> Result<KafkaReadback, SinkError> {
        let checked = self.check().map_err(problem::misconfigured)?;
        self.read_files()?;
        let servers = BrokerUrl::servers_shown(&checked.url);
        let (scope, timeout) = (scope.clone(), self.timeout);
        let begin = move || begin(checked.config, servers, &scope, timeout);
        let begun = tokio::task::spawn_blocking(begin).await;
        begun.map_err(|_| canceled())?
    }
}

fn begin(
    mut config: ClientConfig,
    servers: String,
    scope: &Scope,
    timeout: Duration,
) -> Result<KafkaReadback, SinkError> {
    for producers in ["enable.idempotence", "message.timeout.ms", "partitioner"] {
        config.remove(producers);
    }
    config
        .set("enable.auto.commit", "false")
        // Records at the end may be none to see: this tells that the end is there.
        .set("enable.partition.eof", "true")
        // Without one librdkafka assigns nothing. It is not used otherwise.
        .set("group.id", "postrider-verify")
        .set("isolation.level", "read_committed")
        .set_log_level(RDKafkaLogLevel::Emerg);
    let failed =
        |topic: &str, error: &KafkaError| failure(&Place { servers: &servers, topic }, error, None);
    let consumer: BaseConsumer = config.create().map_err(|error| failed("", &error))?;
    let (mut partitions, mut unreadable) = (Vec::new(), Vec::new());
    for topic in &scope.topics {
        let found = match extents(&consumer, topic, timeout) {
            Ok(found) if found.is_empty() => Err(no_topic(&Place { servers: &servers, topic })),
            found => found.map_err(|error| failed(topic, &error)),
        };
        match found {
            Ok(found) => partitions.extend(found),
            Err(error) if error.about_topic => {
                unreadable.push(Unreadable { topic: topic.clone(), error });
            }
            Err(error) => return Err(error),
        }
    }
    let begun = first_offsets(&consumer, &partitions, scope.since, timeout).and_then(|from| {
        let kept_since = kept_since(&consumer, &partitions, timeout)?;
        consumer.assign(&from)?;
        Ok((from, kept_since))
    });
    let (from, kept_since) = begun.map_err(|error| failed("", &error))?;
    // Those in which nothing is as young have nothing to read.
    let is_read = |extent: &&Extent| from.find_partition(&extent.topic, extent.partition).is_some();
    let end = |extent: &Extent| ((extent.topic.clone(), extent.partition), extent.end);
    let ends = partitions.iter().filter(is_read).map(end).collect();
    let id_header = id_header(scope.format, "ce_");
    let reader = Arc::new(Reader { consumer, servers: servers.clone(), id_header });
    Ok(KafkaReadback { reader, ends, unreadable, kept_since })
}

/// What a partition keeps.
struct Extent {
    topic: String,
    partition: i32,
    begin: i64,
    end: i64,
}

fn extents(
    consumer: &BaseConsumer,
    topic: &str,
    timeout: Duration,
) -> Result<Vec<Extent>, KafkaError> {
    let metadata = consumer.fetch_metadata(Some(topic), timeout)?;
    let partitions = metadata.topics().first().map_or(&[][..], |topic| topic.partitions());
    let extent = |partition: i32| {
        let (begin, end) = consumer.fetch_watermarks(topic, partition, timeout)?;
        Ok(Extent { topic: topic.to_owned(), partition, begin, end })
    };
    partitions.iter().map(|partition| extent(partition.id())).collect()
}

/// Where to begin in each partition that has something to read.
fn first_offsets(
    consumer: &BaseConsumer,
    partitions: &[Extent],
    since: Option<SystemTime>,
    timeout: Duration,
) -> Result<TopicPartitionList, KafkaError> {
    let mut first = TopicPartitionList::new();
    for Extent { topic, partition, begin, .. } in partitions.iter().filter(|it| it.begin < it.end) {
        first.add_partition_offset(topic, *partition, Offset::Offset(*begin))?;
    }
    // librdkafka refuses a question about no partition.
    let Some(since) = since.filter(|_| first.count() > 0) else { return Ok(first) };
    let millis = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let millis = i64::try_from(millis).unwrap_or(i64::MAX);
    first.set_all_offsets(Offset::Offset(millis))?;
    let mut young = TopicPartitionList::new();
    for element in consumer.offsets_for_times(first, timeout)?.elements() {
        if let offset @ Offset::Offset(_) = element.offset() {
            young.add_partition_offset(element.topic(), element.partition(), offset)?;
        }
    }
    Ok(young)
}

/// The latest time of the first records of partitions whose beginning is gone.
fn kept_since(
    consumer: &BaseConsumer,
    partitions: &[Extent],
    timeout: Duration,
) -> Result<Option<SystemTime>, KafkaError> {
    let mut truncated = TopicPartitionList::new();
    for Extent { topic, partition, begin, end } in partitions {
        if *begin > 0 && begin < end {
            truncated.add_partition_offset(topic, *partition, Offset::Offset(*begin))?;
        }
    }
    if truncated.count() == 0 {
        return Ok(None);
    }
    consumer.assign(&truncated)?;
    let (mut seen, mut latest) = (HashSet::new(), None);
    let deadline = Instant::now() + timeout;
    while seen.len() < truncated.count() && Instant::now() < deadline {
        let Some(Ok(record)) = consumer.poll(POLL) else { continue };
        if seen.insert((record.topic().to_owned(), record.partition())) {
            latest = latest.max(time_of(&record));
        }
    }
    Ok(latest)
}

#[async_trait]
impl Readback for KafkaReadback {
    async fn next(&mut self) -> Result<Vec<Kept>, SinkError> {
        let (reader, mut ends) = (Arc::clone(&self.reader), std::mem::take(&mut self.ends));
        let read = tokio::task::spawn_blocking(move || {
            let kept = reader.read(&mut ends);
            (kept, ends)
        });
        let (kept, ends) = read.await.map_err(|_| canceled())?;
        self.ends = ends;
        kept
    }

    fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    fn kept_since(&self) -> Option<SystemTime> {
        self.kept_since
    }
}

impl Reader {
    /// The next messages. Blocks.
    fn read(&self, ends: &mut HashMap<(String, i32), i64>) -> Result<Vec<Kept>, SinkError> {
        let mut kept = Vec::new();
        let mut heard_at = Instant::now();
        while !ends.is_empty() && kept.len() < BATCH_MAX {
            match self.consumer.poll(POLL) {
                Some(Ok(record)) => {
                    heard_at = Instant::now();
                    let of = (record.topic().to_owned(), record.partition());
                    if ends.get(&of).is_some_and(|end| record.offset() < *end) {
                        kept.push(self.kept(&record));
                    }
                    if ends.get(&of).is_some_and(|end| record.offset() + 1 >= *end) {
                        ends.remove(&of);
                    }
                }
                Some(Err(KafkaError::PartitionEOF(_))) | None => {
                    self.pass_unseen(ends)?;
                    if heard_at.elapsed() > SILENCE_MAX {
                        let late = KafkaError::Global(RDKafkaErrorCode::OperationTimedOut);
                        return Err(self.failed("", &late));
                    }
                }
                Some(Err(error)) => match error.rdkafka_error_code() {
                    // Only whoever shares the work of a group needs it; librdkafka goes on by
                    // itself after the others.
                    Some(
                        RDKafkaErrorCode::GroupAuthorizationFailed
                        | RDKafkaErrorCode::AllBrokersDown
                        | RDKafkaErrorCode::BrokerTransportFailure
                        | RDKafkaErrorCode::OperationTimedOut,
                    ) if heard_at.elapsed() < SILENCE_MAX => {}
                    _ => return Err(self.failed("", &error)),
                },
            }
        }
        Ok(kept)
    }

    /// What is at the end may be none of ours to see: the position passes it.
    fn pass_unseen(&self, ends: &mut HashMap<(String, i32), i64>) -> Result<(), SinkError> {
        let position = self.consumer.position().map_err(|error| self.failed("", &error))?;
        for element in position.elements() {
            if let Offset::Offset(next) = element.offset() {
                let of = (element.topic().to_owned(), element.partition());
                if ends.get(&of).is_some_and(|end| next >= *end) {
                    ends.remove(&of);
                }
            }
        }
        Ok(())
    }

    fn kept(&self, record: &BorrowedMessage<'_>) -> Kept {
        let header = |name: &str| {
            let found = record.headers()?.iter().find(|header| header.key == name)?;
            std::str::from_utf8(found.value?).ok()
        };
        let id = match &self.id_header {
            None => record.payload().and_then(id_in_body),
            Some(name) => header(name).and_then(|id| Uuid::parse_str(id).ok()),
        };
        let place = format!("{}@{}", record.partition(), record.offset());
        let (sent_at, is_replay) = (time_of(record), header(REPLAY_HEADER).is_some());
        Kept { id, topic: record.topic().to_owned(), place, sent_at, is_replay }
    }

    fn failed(&self, topic: &str, error: &KafkaError) -> SinkError {
        failure(&Place { servers: &self.servers, topic }, error, None)
    }
}

/// When a record was sent.
fn time_of(record: &BorrowedMessage<'_>) -> Option<SystemTime> {
    let millis = u64::try_from(record.timestamp().to_millis()?).ok()?;
    Some(UNIX_EPOCH + Duration::from_millis(millis))
}

fn canceled() -> SinkError {
    failure(&Place { servers: "", topic: "" }, &KafkaError::Canceled, None)
}
