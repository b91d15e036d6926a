//! What is known of topics, and when it has to be asked for again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::record::Record;
use crate::routing::Template;
use crate::sink::Message;

/// What brokers take where nothing else is said.
const RECORD_BYTES_DEFAULT: usize = 1_048_588;
/// Batches are no larger: librdkafka's own default.
const BATCH_BYTES_DEFAULT: usize = 1_000_000;

/// What the producer must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The largest record of any topic.
    pub(super) record_bytes: usize,
    /// The largest batch that every topic takes. With 1 every record is a batch of its own.
    pub(super) batch_bytes: usize,
    /// How often topics were seen to have another number of partitions than before, which a
    /// producer would find out minutes later.
    pub(super) repartitions: usize,
}

/// What is known of one topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) partitions: i32,
    pub(super) replicas: usize,
    /// How many there are in the cluster.
    pub(super) brokers: usize,
    /// `None` if we may not ask.
    pub(super) settings: Option<Settings>,
}

/// The settings of a topic that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// `max.message.bytes`
    pub(super) record_bytes: usize,
    /// `min.insync.replicas`
    pub(super) in_sync_min: usize,
    /// `cleanup.policy` is `compact`, and nothing else.
    pub(super) is_compacted: bool,
}

impl Facts {
    /// The largest record.
    pub(super) fn record_bytes(&self) -> usize {
        self.settings.map_or(RECORD_BYTES_DEFAULT, |settings| settings.record_bytes)
    }

    /// Whether the topic would take a message.
    fn take(&self, message: &Message, partition: Option<&Template>) -> bool {
        if partition.is_none() && Record::is_surely_below(message, self.record_bytes()) {
            return true;
        }
        // What cannot become a record is none of the topic's business.
        Record::of(message, partition).ok().is_none_or(|record| {
            record.batch_bytes() <= self.record_bytes()
                && record.partition.is_none_or(|partition| partition < self.partitions)
        })
    }
}

/// What is known of all topics that were sent to.
#[derive(Default)]
pub(super) struct KnownTopics(Mutex<Book>);

#[derive(Default)]
struct Book {
    topics: HashMap<String, Known, foldhash::fast::RandomState>,
    repartitions: usize,
}

struct Known {
    facts: Facts,
    /// Something went wrong since: it is asked about again before its next record.
    doubted: bool,
    /// A batch was refused as too large.
    refused_batch: bool,
}

impl KnownTopics {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all of them allow.
    pub(super) fn limits(&self) -> Limits {
        let book = self.lock();
        let known = || book.topics.values();
        let record_bytes = known().map(|known| known.facts.record_bytes()).max();
        let batch_bytes = |known: &Known| match known.facts.settings {
            // How small a batch has to be cannot be asked for.
            None if known.refused_batch => 1,
            _ => known.facts.record_bytes(),
        };
        let batch_bytes = known().map(batch_bytes).min().unwrap_or(usize::MAX);
        Limits {
            record_bytes: record_bytes.unwrap_or(RECORD_BYTES_DEFAULT),
            batch_bytes: batch_bytes.min(BATCH_BYTES_DEFAULT),
            repartitions: book.repartitions,
        }
    }

    /// What is known of one of them.
    pub(super) fn of(&self, topic: &str) -> Option<Facts> {
        self.lock().topics.get(topic).map(|known| known.facts)
    }

    /// Takes in what was asked for.
    pub(super) fn learn(&self, topic: &str, facts: Facts) {
        let book = &mut *self.lock();
        let before = book.topics.get(topic);
        let refused_batch = before.is_some_and(|before| before.refused_batch);
        if before.is_some_and(|before| before.facts.partitions != facts.partitions) {
            book.repartitions += 1;
        }
        book.topics.insert(topic.to_owned(), Known { facts, doubted: false, refused_batch });
    }

    /// A topic is asked about again, because it did not take a record.
    pub(super) fn doubt(&self, topic: &str, refused_batch: bool) {
        if let Some(known) = self.lock().topics.get_mut(topic) {
            known.doubted = true;
            known.refused_batch |= refused_batch;
        }
    }

    /// The topics of these messages that have to be asked about: nothing is known of them, or
    /// they would refuse one, which may have changed.
    pub(super) fn unknown_to<'a>(
        &self,
        messages: &'a [Message],
        partition: Option<&Template>,
    ) -> Vec<&'a str> {
        let book = self.lock();
        let is_unknown = |message: &&Message| {
            book.topics
                .get(&message.topic)
                .is_none_or(|known| known.doubted || !known.facts.take(message, partition))
        };
        let unknown = messages.iter().filter(is_unknown);
        let mut topics: Vec<_> = unknown.map(|message| message.topic.as_str()).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }
}

impl Facts {
    /// What is less safe than it could be, and what would mend it.
    pub(super) fn cautions(&self, topic: &str, servers: &str) -> Vec<String> {
        if self.replicas == 1 && self.brokers > 1 {
            return vec![format!(
                "the topic {topic} has one replica: what it confirmed is gone with that broker's \
                 disk; add replicas with kafka-reassign-partitions.sh"
            )];
        }
        match self.settings {
            None => vec![format!(
                "the settings of the topic {topic} cannot be seen, such as the largest record that \
                 it takes; run kafka-acls.sh --bootstrap-server {servers} --add \
                 --allow-principal User:NAME --operation DescribeConfigs --topic {topic}"
            )],
            Some(Settings { in_sync_min: 1, .. }) if self.replicas > 1 => vec![format!(
                "the topic {topic} confirms with min.insync.replicas=1: one broker alone may have \
                 what was confirmed; run kafka-configs.sh --bootstrap-server {servers} --alter \
                 --topic {topic} --add-config min.insync.replicas=2"
            )],
            Some(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use postrider::Event;

    use super::*;
    use crate::formats::Encoding;

    const SETTINGS: Settings = Settings { record_bytes: 1, in_sync_min: 2, is_compacted: false };

    fn facts(record_bytes: Option<usize>) -> Facts {
        let settings = |record_bytes| Settings { record_bytes, ..SETTINGS };
        let settings = record_bytes.map(settings);
        Facts { partitions: 3, replicas: 3, brokers: 3, settings }
    }

    fn message(bytes: usize) -> Message {
        let event = Event::builder("Order", "42", "OrderPaid").topic("orders");
        let event = event.payload(vec![b'x'; bytes], "text/plain").header("shard", "3").build();
        Encoding::default().encode(Arc::new(event.unwrap())).unwrap()
    }

    #[test]
    fn a_topic_is_asked_about_when_something_is_not_known() {
        let topics = KnownTopics::default();
        let unknown = |bytes| topics.unknown_to(&[message(bytes), message(bytes)], None).len();
        assert_eq!(unknown(1), 1);
        topics.learn("orders", facts(Some(10_000)));
        assert_eq!(unknown(1), 0);
        assert_eq!(unknown(9000), 0, "it is below the limit, though not surely");
        assert_eq!(unknown(10_000), 1, "the limit may have been raised");
        let partition = Template::parse("{header.shard}").unwrap();
        assert_eq!(topics.unknown_to(&[message(1)], Some(&partition)).len(), 1);
        topics.doubt("orders", false);
        assert_eq!(unknown(1), 1);
        topics.learn("orders", facts(Some(10_000)));
        assert_eq!(unknown(1), 0);
    }

    #[test]
    fn batches_are_as_small_as_they_have_to_be() {
        let topics = KnownTopics::default();
        let batch_bytes = || topics.limits().batch_bytes;
        assert_eq!(batch_bytes(), BATCH_BYTES_DEFAULT);
        topics.learn("small", facts(Some(20_000)));
        topics.learn("large", facts(Some(3_000_000)));
        let limits = Limits { record_bytes: 3_000_000, batch_bytes: 20_000, repartitions: 0 };
        assert_eq!(topics.limits(), limits);
        topics.learn("hidden", facts(None));
        assert_eq!(topics.limits(), limits);
        topics.doubt("hidden", true);
        assert_eq!(batch_bytes(), 1, "there is no telling how small");
        topics.learn("hidden", facts(None));
        assert_eq!(batch_bytes(), 1);
        topics.learn("hidden", facts(Some(30_000)));
        assert_eq!(topics.limits(), limits);
        topics.learn("small", Facts { partitions: 4, ..facts(Some(20_000)) });
        assert_eq!(topics.limits(), Limits { repartitions: 1, ..limits });
    }

    #[test]
    fn a_topic_that_one_broker_may_lose_is_told_of() {
        let told = |replicas, brokers, in_sync_min: Option<usize>| {
            let settings = |in_sync_min| Settings { in_sync_min, ..SETTINGS };
            let settings = in_sync_min.map(settings);
            Facts { partitions: 1, replicas, brokers, settings }.cautions("orders", "b:1").join("")
        };
        assert!(told(1, 3, Some(1)).contains("has one replica"));
        let one_in_sync = told(3, 3, Some(1));
        let command = "kafka-configs.sh --bootstrap-server b:1 --alter --topic orders \
                       --add-config min.insync.replicas=2";
        assert!(one_in_sync.contains(command), "{one_in_sync}");
        let hidden = told(3, 3, None);
        assert!(hidden.contains("--operation DescribeConfigs --topic orders"), "{hidden}");
        for fine in [(3, 3, Some(2)), (1, 1, Some(1))] {
            assert_eq!(told(fine.0, fine.1, fine.2), "");
        }
    }
}
