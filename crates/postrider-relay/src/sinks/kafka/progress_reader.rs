//! Reads the topic of progress to its end.

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

/// One wait for a record.
const POLL: Duration = Duration::from_millis(200);

/// Every committed record of a producer, in order, by the key that begins with its name. It reads
/// up to where the topic ends at this moment, whoever has a transaction open there.
pub(super) fn read(
    config: &ClientConfig,
    admin: &AdminClient<DefaultClientContext>,
    topic: &str,
    name: &str,
    timeout: Duration,
) -> Result<Vec<(String, Vec<u8>)>, KafkaError> {
    let deadline = Instant::now() + timeout;
    let metadata = admin.inner().fetch_metadata(Some(topic), timeout)?;
    let partitions = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
    let mut from = TopicPartitionList::new();
    let mut ends = HashMap::new();
    for partition in 0..i32::try_from(partitions).unwrap_or(i32::MAX) {
        let (low, high) = admin.inner().fetch_watermarks(topic, partition, timeout)?;
        if low < high {
            from.add_partition_offset(topic, partition, Offset::Offset(low))?;
            ends.insert(partition, high);
        }
    }
    let mut config = config.clone();
    config
        .set("group.id", name)
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set_log_level(RDKafkaLogLevel::Emerg);
    let consumer: BaseConsumer = config.create()?;
    consumer.assign(&from)?;
    let mut found = Vec::new();
    while !ends.is_empty() {
        if Instant::now() >= deadline {
            return Err(KafkaError::Global(RDKafkaErrorCode::OperationTimedOut));
        }
        match consumer.poll(POLL) {
            Some(Ok(record)) => {
                let key = record.key().and_then(|key| std::str::from_utf8(key).ok());
                let key = key.filter(|key| is_of(key, name));
                if let (Some(key), Some(value)) = (key, record.payload()) {
                    found.push((key.to_owned(), value.to_vec()));
                }
            }
            None | Some(Err(KafkaError::PartitionEOF(_))) => {}
            Some(Err(error)) => return Err(error),
        }
        // Records at the end may be none of ours to see: the position passes them.
        for element in consumer.position()?.elements_for_topic(topic) {
            if let (Offset::Offset(next), Some(end)) =
                (element.offset(), ends.get(&element.partition()))
                && next >= *end
            {
                ends.remove(&element.partition());
            }
        }
    }
    Ok(found)
}

fn is_of(key: &str, name: &str) -> bool {
    key.rsplit_once('/').is_some_and(|(own, _)| own == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_begin_another() {
        assert!(is_of("orders/3/17", "orders/3"));
        for other in ["orders/31/17", "orders/3", "3/17", "xorders/3/17"] {
            assert!(!is_of(other, "orders/3"), "{other}");
        }
    }
}
