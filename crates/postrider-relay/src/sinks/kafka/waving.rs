//! Publishes a call in waves, each of which is one batch for each partition.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use postrider::Key;
use rdkafka::error::RDKafkaErrorCode;
use tokio::time::Instant;

use super::KafkaSink;
use super::batches::{BatchProducer, Flushed};
use super::delivery::Call;
use super::failure::failure;
use super::record::Record;
use super::waves::{Item, Place, next_wave, room};
use crate::sink::{FailureKind, Message, SinkError};

/// Whether two of these messages are of one key.
pub(super) fn has_order(messages: &[Message]) -> bool {
    let mut keys =
        HashSet::with_capacity_and_hasher(messages.len(), foldhash::fast::RandomState::default());
    !messages.iter().all(|message| keys.insert(message.event.key()))
}

impl KafkaSink {
    /// Publishes messages; those of one key become durable in their order, and none after one
    /// that has failed.
    pub(super) async fn publish_in_waves(
        &self,
        messages: &[Message],
        topics: &HashMap<&str, SinkError>,
        deadline: Instant,
    ) -> Vec<Result<(), SinkError>> {
        let limits = self.limits();
        let mut sending = Sending::new(self, messages, topics);
        // Later no wave begins: it might not end in time, and that is no fault of the cluster.
        let last_begin = deadline - self.timeout / 2;
        let mut is_first = true;
        let mut used = None;
        while !sending.left.is_empty() && (is_first || Instant::now() < last_begin) {
            is_first = false;
            let mut producer = match used.take().map_or_else(|| self.batches.take(limits), Ok) {
                Ok(producer) => producer,
                Err(error) => {
                    sending.give_up(&error);
                    break;
                }
            };
            let wave = next_wave(&sending.items, &mut sending.left, |topic| {
                room(limits.batch_bytes).filter(|_| producer.knows(topic))
            });
            match sending.send(wave, &mut producer, deadline).await {
                Some(is_over) => used = is_over.then_some(producer),
                None => sending.give_up(&self.late()),
            }
        }
        if let Some(producer) = used {
            self.batches.give_back(producer);
        }
        sending.answers()
    }
}

/// A call on its way.
struct Sending<'a> {
    sink: &'a KafkaSink,
    messages: &'a [Message],
    /// Those that were not sent yet.
    records: Vec<Option<Record<'a>>>,
    items: Vec<Option<Item<'a>>>,
    left: Vec<usize>,
    /// Of these keys nothing is sent from this message on, which has failed.
    stopped: HashMap<&'a Key, usize>,
    answers: Vec<Option<Result<(), SinkError>>>,
}

impl<'a> Sending<'a> {
    fn new(
        sink: &'a KafkaSink,
        messages: &'a [Message],
        topics: &HashMap<&str, SinkError>,
    ) -> Self {
        let mut sending = Self {
            sink,
            messages,
            records: Vec::with_capacity(messages.len()),
            items: Vec::with_capacity(messages.len()),
            left: (0..messages.len()).collect(),
            stopped: HashMap::new(),
            answers: vec![None; messages.len()],
        };
        for (index, message) in messages.iter().enumerate() {
            let record = match topics.get(message.topic.as_str()) {
                Some(error) => Err(error.clone()),
                None => sink.record(message),
            };
            let item = record.as_ref().ok().map(|record| Item {
                lane: message.event.key(),
                place: Place { topic: record.topic, key: record.key, partition: record.partition },
                bytes: record.batch_bytes(),
            });
            sending.items.push(item);
            match record {
                Ok(record) => sending.records.push(Some(record)),
                Err(error) => {
                    sending.records.push(None);
                    sending.answer(index, Err(error));
                }
            }
        }
        sending.left.retain(|index| sending.records[*index].is_some());
        sending
    }

    fn answer(&mut self, index: usize, answer: Result<(), SinkError>) {
        if answer.is_err() {
            let first = self.stopped.entry(self.messages[index].event.key()).or_insert(index);
            *first = index.min(*first);
        }
        self.answers[index] = Some(answer);
    }

    /// Sends a wave, as far as no earlier record of its keys has failed, and takes in the answers.
    /// The answer is whether the producer can be used again, or `None` if the deadline came first.
    async fn send(
        &mut self,
        wave: Vec<usize>,
        producer: &mut BatchProducer,
        deadline: Instant,
    ) -> Option<bool> {
        let mut sent = Vec::with_capacity(wave.len());
        let call = Arc::new(Call::new(wave.len()));
        for (position, index) in wave.iter().copied().enumerate() {
            let message = &self.messages[index];
            let record = self.records[index].take().expect("a record is sent once");
            if self.is_stopped_before(index) {
                call.answer(position, None);
                continue;
            }
            match producer.inner.send(record, Arc::clone(&call), position) {
                Ok(()) => sent.push((position, index)),
                Err(error) => {
                    call.answer(position, None);
                    let place = self.sink.place(&message.topic);
                    self.answer(index, Err(failure(&place, &error, None)));
                }
            }
        }
        let Flushed { answers: codes, is_over } = producer.flush(&call, deadline).await;
        let code = |position: usize| match &codes {
            Some(codes) => codes[position],
            None => Some(RDKafkaErrorCode::MessageTimedOut),
        };
        let answered: Vec<_> = sent
            .iter()
            .map(|(position, index)| (&self.messages[*index], code(*position)))
            .collect();
        let mut of_topics: HashMap<&str, usize> = HashMap::new();
        for (message, code) in &answered {
            *of_topics.entry(&message.topic).or_default() += 1;
            if code.is_none() {
                producer.learn(&message.topic);
            }
        }
        let in_company = |topic: &str| of_topics.get(topic).is_some_and(|count| *count > 1);
        let answers = self.sink.undelivered_of(&answered, &producer.inner, in_company);
        for ((_, index), answer) in sent.into_iter().zip(answers) {
            self.answer(index, answer);
        }
        codes.map(|_| is_over)
    }

    /// Answers for all that was not sent.
    fn give_up(&mut self, error: &SinkError) {
        for index in std::mem::take(&mut self.left) {
            self.answer(index, Err(error.clone()));
        }
    }

    /// Whether an earlier message of its key has failed.
    fn is_stopped_before(&self, index: usize) -> bool {
        let key = self.messages[index].event.key();
        !self.stopped.is_empty() && self.stopped.get(key).is_some_and(|first| *first < index)
    }

    fn answers(self) -> Vec<Result<(), SinkError>> {
        let not_sent = || {
            let message = "not sent: an earlier event of its key was not taken, or took too long";
            Err(SinkError::new(FailureKind::Failed, message).with_company(true))
        };
        self.answers.into_iter().map(|answer| answer.unwrap_or_else(not_sent)).collect()
    }
}
