//! Reads what a topic has, with a plain consumer.

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::TIMEOUT;

/// A record as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Its partition.
    pub partition: i32,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
    /// Its headers, in order.
    pub headers: Vec<(String, String)>,
}

impl Read {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// All that a topic has, partition by partition, up to its end of this moment. Records of
/// transactions that were not committed are left out.
pub fn read(brokers: &str, topic: &str) -> Vec<Read> {
    read_isolated(brokers, topic, "read_committed")
}

/// The same with the records of transactions that were given up or are still open.
pub fn read_uncommitted(brokers: &str, topic: &str) -> Vec<Read> {
    read_isolated(brokers, topic, "read_uncommitted")
}

/// Whether a transaction is open in a topic: then committed records end before the topic does.
pub fn has_open_transaction(brokers: &str, topic: &str) -> bool {
    let ends = |isolation| {
        let consumer = consumer(brokers, isolation);
        let end = |partition| consumer.fetch_watermarks(topic, partition, TIMEOUT);
        let ends = (0..partitions(&consumer, topic)).map(end);
        ends.map(|ends| ends.expect("the broker answers").1).sum::<i64>()
    };
    // In this order: what is committed in between does not look open.
    let all = ends("read_uncommitted");
    ends("read_committed") < all
}

fn consumer(brokers: &str, isolation: &str) -> BaseConsumer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", brokers)
        .set("group.id", "test")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", isolation)
        .set("fetch.wait.max.ms", "10");
    config.create().expect("a consumer can be made")
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> i32 {
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT).expect("the broker answers");
    metadata.topics()[0].partitions().len() as i32
}

fn read_isolated(brokers: &str, topic: &str, isolation: &str) -> Vec<Read> {
    let consumer = consumer(brokers, isolation);
    let partitions = partitions(&consumer, topic);
    let mut left = TopicPartitionList::new();
    for partition in 0..partitions {
        let added = left.add_partition_offset(topic, partition, Offset::Beginning);
        added.expect("a partition can be read from its beginning");
    }
    consumer.assign(&left).expect("partitions can be read");
    let mut records = Vec::new();
    let mut ended = 0;
    while ended < partitions {
        match consumer.poll(TIMEOUT).expect("the broker answers in time") {
            Ok(message) => records.push(Read {
                partition: message.partition(),
                key: message.key().map(<[u8]>::to_vec),
                value: message.payload().map(<[u8]>::to_vec),
                headers: message.headers().map(headers).unwrap_or_default(),
            }),
            Err(KafkaError::PartitionEOF(_)) => ended += 1,
            // It says so when it was slow to connect, and goes on.
            Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure,
            )) => {}
            Err(error) => panic!("{topic} cannot be read: {error}"),
        }
    }
    records.sort_by_key(|record| record.partition);
    records
}

fn headers(headers: &rdkafka::message::BorrowedHeaders) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("headers are text");
    let pair = |header: rdkafka::message::Header<'_, &[u8]>| {
        (header.key.to_owned(), text(header.value.unwrap_or_default()))
    };
    headers.iter().map(pair).collect()
}
