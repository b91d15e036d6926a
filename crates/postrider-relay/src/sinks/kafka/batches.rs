//! Producers whose batches end where a call does.
//!
//! librdkafka ends a batch when it is full, when it is `linger.ms` old, or while somebody flushes.
//! Here the first two never happen: a [wave](super::waves) fits into a batch, and `linger` is as
//! long as it can be. So a flush after the last record makes one batch of all records of a
//! partition, which the broker takes or refuses as one. What librdkafka sends again is the same
//! batch, and it never gives a record up: that could leave out the first records of a batch, where
//! the deadline falls between them. The call gives up all of them at its deadline instead, and the
//! producer with them.
//!
//! A call has a producer for itself, until all its records have their answers. There are no more of
//! them than calls at a time, and one is used again before another one is made. That of a producer
//! that has not sent to a topic yet sends one record of a key: until librdkafka knows the
//! partitions it keeps records aside, and moves them into their queues one by one, when the end of
//! a batch may come between them.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::RDKafkaErrorCode;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout, timeout_at};

use super::delivery::Call;
use super::facts::Limits;
use super::producer::Producer;
use crate::sink::SinkError;

/// How long the end of a flush is waited for, once all records have their answers. A thread that is
/// kept from answering, by the name of another broker that cannot be resolved, holds up nobody.
const END_MAX: Duration = Duration::from_secs(1);

/// The producers that no call has.
pub(super) struct BatchProducers {
    config: ClientConfig,
    idle: Mutex<Vec<BatchProducer>>,
}

impl BatchProducers {
    pub(super) fn new(config: &ClientConfig) -> Self {
        let mut config = config.clone();
        config
            .set("linger.ms", "900000")
            .set("message.timeout.ms", "0")
            .set("batch.num.messages", "1000000");
        Self { config, idle: Mutex::default() }
    }

    /// A producer for a call: one that is fit, or a new one.
    pub(super) fn take(&self, limits: Limits) -> Result<BatchProducer, SinkError> {
        let is_fit = |it: &BatchProducer| !it.inner.is_broken() && it.inner.limits() == limits;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(is_fit);
        if let Some(producer) = idle.pop() {
            return Ok(producer);
        }
        drop(idle);
        let inner = Arc::new(Producer::new(&self.config, limits)?);
        Ok(BatchProducer { inner, known: HashSet::new() })
    }

    /// Takes back a producer of which all records have their answers.
    pub(super) fn give_back(&self, producer: BatchProducer) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(producer);
    }
}

/// A producer, and what it has seen. With records that have no answer it is dropped: with others
/// behind them, nobody would know where their batch ends.
pub(super) struct BatchProducer {
    pub(super) inner: Arc<Producer>,
    /// Topics whose partitions it knows.
    known: HashSet<String>,
}

impl BatchProducer {
    /// Whether several records of a key may go to a topic.
    pub(super) fn knows(&self, topic: &str) -> bool {
        self.known.contains(topic)
    }

    /// A topic has taken a record.
    pub(super) fn learn(&mut self, topic: &str) {
        if !self.known.contains(topic) {
            self.known.insert(topic.to_owned());
        }
    }

    /// Ends the batches and waits for the answers, one for each record.
    pub(super) async fn flush(&self, call: &Call, deadline: Instant) -> Flushed {
        let flush = Flush::begin(Arc::clone(&self.inner), deadline);
        let Ok(answers) = timeout_at(deadline, call.finished()).await else {
            return Flushed { answers: None, is_over: false };
        };
        match timeout(END_MAX, flush.end()).await {
            // What was given up has answers that nobody gave.
            Ok(is_whole) => Flushed { answers: is_whole.then_some(answers), is_over: is_whole },
            Err(_) => Flushed { answers: Some(answers), is_over: false },
        }
    }
}

/// What became of the records of a flush.
pub(super) struct Flushed {
    /// `None` if some had none by the deadline.
    pub(super) answers: Option<Vec<Option<RDKafkaErrorCode>>>,
    /// Whether the producer can be used again: while a flush lasts, the next records would not wait
    /// for one another.
    pub(super) is_over: bool,
}

/// A flush on a thread of its own. Dropped before its end, it throws away what was not sent.
struct Flush {
    is_given_up: Arc<AtomicBool>,
    thread: JoinHandle<bool>,
}

impl Flush {
    fn begin(producer: Arc<Producer>, deadline: Instant) -> Self {
        let is_given_up = Arc::new(AtomicBool::new(false));
        let given_up = Arc::clone(&is_given_up);
        let longest = deadline.saturating_duration_since(Instant::now());
        let thread = spawn_blocking(move || {
            let is_whole = producer.flush(longest, || !given_up.load(Relaxed));
            match is_whole {
                true => producer.end_flush(),
                false => producer.give_up(),
            }
            is_whole
        });
        Self { is_given_up, thread }
    }

    /// Waits for its end. False if answers were given up.
    async fn end(mut self) -> bool {
        (&mut self.thread).await.unwrap_or(false)
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        self.is_given_up.store(true, Relaxed);
    }
}
