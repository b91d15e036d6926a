//! The messages of a transaction, and their answers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rdkafka::error::RDKafkaErrorCode;
use uuid::Uuid;

use super::super::KafkaSink;
use super::super::delivery::Call;
use super::super::producer::Producer;
use crate::sink::{FailureKind, Message, SinkError};

/// What was made of a call's messages.
pub(super) struct Queued {
    pub(super) call: Arc<Call>,
    /// The ids of those that are sent.
    pub(super) sent: Vec<Uuid>,
    /// For each message why it is not sent, if it should be.
    unsent: Vec<Option<SinkError>>,
}

impl Queued {
    /// Queues what is not published yet.
    pub(super) fn new(
        sink: &KafkaSink,
        producer: &Producer,
        messages: &[Message],
        topics: &HashMap<&str, SinkError>,
        is_published: impl Fn(&Uuid) -> bool,
    ) -> Self {
        let call = Arc::new(Call::new(messages.len()));
        let (mut unsent, mut sent) = (Vec::with_capacity(messages.len()), Vec::new());
        // Nothing of a key may follow what was left out of it.
        let mut stopped = HashSet::new();
        for (index, message) in messages.iter().enumerate() {
            let queued = if is_published(&message.deduplication_id) {
                call.answer(index, None);
                Ok(())
            } else if stopped.contains(message.event.key()) {
                Err(SinkError::new(FailureKind::Unavailable, "an earlier event of its key failed"))
            } else if let Some(error) = topics.get(message.topic.as_str()) {
                Err(error.clone())
            } else {
                let queued = sink.send(producer, &call, index, message);
                sent.extend(queued.is_ok().then_some(message.deduplication_id));
                queued
            };
            if queued.is_err() {
                stopped.insert(message.event.key());
                call.answer(index, None);
            }
            unsent.push(queued.err());
        }
        Self { call, sent, unsent }
    }

    /// An answer for each message: why it was not sent, or what became of all others.
    pub(super) fn answers(self, others: Result<(), SinkError>) -> Vec<Result<(), SinkError>> {
        self.unsent.into_iter().map(|own| own.map_or_else(|| others.clone(), Err)).collect()
    }

    /// The answers if the transaction was given up because of some messages.
    pub(super) fn undelivered(
        self,
        sink: &KafkaSink,
        messages: &[Message],
        codes: &[Option<RDKafkaErrorCode>],
        producer: &Producer,
    ) -> Vec<Result<(), SinkError>> {
        let first = codes.iter().find_map(|code| *code).unwrap_or(RDKafkaErrorCode::Fail);
        let given_up = format!("the transaction was given up: {first}");
        let answers = messages.iter().zip(self.unsent).zip(codes);
        let answers = answers.map(|((message, unsent), code)| match (unsent, code) {
            (Some(error), _) => Err(error),
            (None, Some(code)) => Err(sink.undelivered(message, *code, producer)),
            (None, None) => Err(SinkError::new(FailureKind::Unavailable, &given_up)),
        });
        answers.map(|answer| answer.map_err(|error| producer.judged(error))).collect()
    }
}
