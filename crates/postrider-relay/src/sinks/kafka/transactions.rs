//! Exactly once: each call is a transaction of Kafka, which holds the ids of its events besides
//! the events.
//!
//! # Why a reader of committed records sees each event once
//!
//! - An event that was committed and not settled in the outbox comes back after a crash, and no
//!   other does. There are at most as many of them as the pipeline's window holds, and they are the
//!   last ones that were published, because verdicts are settled in the order of their calls.
//! - So the ids of the last events are kept, as many as the window holds, in a compacted topic
//!   ([`progress`](super::progress)), written in the same transaction.
//! - A relay that starts to publish first ends what its predecessor left: the broker aborts or
//!   completes that transaction, and refuses whatever the predecessor still sends (it is *fenced*,
//!   by the `transactional.id`, which is the pipeline's). Then it reads the ids. An event that comes
//!   back and is among them is answered without being sent.
//! - A producer begins only with a call, so a relay that stands by fences nobody. One that was
//!   fenced begins anew with the next call, which there is only as long as the relay has its lease;
//!   and having begun, it looks at the lease once more before it sends: whoever took over did so
//!   after the lease, and has fenced this one, or is not there.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::sync::{Mutex, OwnedMutexGuard};
use uuid::Uuid;

use super::KafkaSink;
use super::delivery::Call;
use super::failure::failure;
use super::producer::Producer;
use super::progress::Progress;
use crate::sink::{FailureKind, Message, SinkError};

/// What transactions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExactlyOnce {
    pub(super) transactional_id: String,
    pub(super) progress_topic: String,
    /// Most events that may come back after a crash: the pipeline's window.
    pub(super) window: usize,
}

/// What makes transactions of calls.
pub(super) struct Transactions {
    config: ClientConfig,
    /// Where the ids are, and under which name.
    progress_topic: String,
    id: String,
    window: usize,
    timeout: Duration,
    /// Nothing may be sent from then on.
    until: std::sync::Mutex<Option<tokio::time::Instant>>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// `None` until the first call, and after a failure that only a new one mends.
    producer: Option<Arc<Producer>>,
    /// A transaction was begun and not ended.
    open: bool,
    /// Committed, and nobody was told.
    unanswered: HashSet<Uuid>,
    progress: Progress,
}

/// What a call works with.
type Started = (OwnedMutexGuard<State>, Arc<Producer>);

/// How a transaction ended that was not committed.
enum Ended {
    Aborted(KafkaError),
    Fenced,
    /// Only a new producer finds out.
    Unknown(KafkaError),
}

impl Transactions {
    pub(super) fn new(config: &ClientConfig, options: ExactlyOnce, timeout: Duration) -> Self {
        let ExactlyOnce { transactional_id: id, progress_topic, window } = options;
        let mut config = config.clone();
        config.set("transactional.id", &id);
        // No shorter than what a record may take.
        let longest = timeout.saturating_mul(2).max(Duration::from_secs(60));
        config.set("transaction.timeout.ms", longest.as_millis().to_string());
        let until = std::sync::Mutex::default();
        Self { config, progress_topic, id, window, timeout, until, state: Arc::default() }
    }

    pub(super) fn progress_topic(&self) -> &str {
        &self.progress_topic
    }

    pub(super) fn allow_until(&self, until: Option<tokio::time::Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    fn is_over(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| tokio::time::Instant::now() >= until)
    }

    /// Publishes messages in one transaction.
    pub(super) async fn publish(
        &self,
        sink: &KafkaSink,
        messages: &[Message],
        topics: &HashMap<&str, SinkError>,
    ) -> Vec<Result<(), SinkError>> {
        let all = |error: SinkError| vec![Err(error); messages.len()];
        let state = Arc::clone(&self.state).lock_owned().await;
        let (mut state, producer) = match self.producer(sink, state).await {
            Ok(ready) => ready,
            Err(error) => return all(error),
        };
        // A producer that has just begun has fenced the one before, even a relay that has taken
        // over in the meantime: then what that one has published may not be known here.
        if self.is_over() {
            let message = "not sent: the lease has run out";
            return all(SinkError::new(FailureKind::Unavailable, message));
        }
        let call = Arc::new(Call::new(messages.len()));
        let mut unsent: Vec<Option<SinkError>> = Vec::with_capacity(messages.len());
        let mut sent = Vec::new();
        // Nothing of a key may follow what was left out of it.
        let mut stopped = HashSet::new();
        if let Err(error) = producer.begin_transaction() {
            state.producer = None;
            return all(failure(&sink.place(""), &error, None));
        }
        state.open = true;
        for (index, message) in messages.iter().enumerate() {
            let queued = if state.unanswered.contains(&message.event.id()) {
                call.answer(index, None);
                Ok(())
            } else if stopped.contains(message.event.key()) {
                Err(SinkError::new(FailureKind::Unavailable, "an earlier event of its key failed"))
            } else if let Some(error) = topics.get(message.topic.as_str()) {
                Err(error.clone())
            } else {
                let queued = sink.send(&producer, &call, index, message);
                sent.extend(queued.is_ok().then(|| message.event.id()));
                queued
            };
            if queued.is_err() {
                stopped.insert(message.event.key());
                call.answer(index, None);
            }
            unsent.push(queued.err());
        }
        let noted = Arc::new(Call::new(1));
        let note = state.progress.note(&self.id, &sent);
        if let Err(error) = producer.send_note(&self.progress_topic, &note, Arc::clone(&noted)) {
            noted.answer(0, Some(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)));
        }
        let delivered = call.finished().await;
        let noted = noted.finished().await;
        let failed = delivered.iter().chain(&noted).find_map(|code| *code);
        if let Some(code) = failed {
            if let Err(error) = self.end(state, Arc::clone(&producer), None).await {
                let own = |unsent: Option<SinkError>| Err(unsent.unwrap_or(error.clone()));
                return unsent.into_iter().map(own).collect();
            }
            let given_up = format!("the transaction was given up: {code}");
            let answers = messages.iter().zip(unsent).zip(delivered);
            return answers
                .map(|((message, unsent), code)| match (unsent, code) {
                    (Some(error), _) => Err(error),
                    (None, Some(code)) => Err(sink.undelivered(message, code, &producer)),
                    (None, None) => Err(SinkError::new(FailureKind::Unavailable, &given_up)),
                })
                .collect();
        }
        match self.end(state, producer, Some(sent)).await {
            Ok(mut state) => {
                for message in messages {
                    state.unanswered.remove(&message.event.id());
                }
                let answer = |unsent: Option<SinkError>| unsent.map_or(Ok(()), Err);
                unsent.into_iter().map(answer).collect()
            }
            Err(error) => unsent.into_iter().map(|own| Err(own.unwrap_or(error.clone()))).collect(),
        }
    }

    /// The producer of the moment, once what its predecessor left is ended and read.
    async fn producer(
        &self,
        sink: &KafkaSink,
        mut state: OwnedMutexGuard<State>,
    ) -> Result<Started, SinkError> {
        let limits = sink.limits();
        // Of a call that was given up, nobody knows what was sent: a new producer ends it.
        if let Some(producer) = state.producer.clone()
            && !producer.is_broken()
            && producer.limits() == limits
            && !state.open
        {
            return Ok((state, producer));
        }
        state.producer = None;
        state.open = false;
        let producer = Arc::new(Producer::new(&self.config, limits)?);
        let starting = self.start(sink, state, producer);
        // It goes on when nobody waits for it any more, and only then lets the next call begin.
        match tokio::spawn(starting).await {
            Ok(started) => started,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Ends what the predecessor left, and reads what it has published.
    fn start(
        &self,
        sink: &KafkaSink,
        mut state: OwnedMutexGuard<State>,
        producer: Arc<Producer>,
    ) -> impl Future<Output = Result<Started, SinkError>> + Send + 'static {
        let (topics, topic) = (Arc::clone(&sink.topics), self.progress_topic.clone());
        let (id, window, timeout) = (self.id.clone(), self.window, self.timeout);
        async move {
            let starting = Arc::clone(&producer);
            let started = blocking(move || starting.init_transactions(timeout)).await;
            started.map_err(|error| topics.failure(&error, producer.trouble().as_ref()))?;
            let found = topics.read_progress(&topic, &id, timeout).await?;
            let (progress, published) = Progress::after(found, window);
            state.progress = progress;
            state.unanswered = published;
            state.producer = Some(Arc::clone(&producer));
            Ok((state, producer))
        }
    }

    /// Ends the open transaction: commits it if ids are given, or aborts it. It goes on to its
    /// end when nobody waits for it any more, and only then lets the next call begin.
    async fn end(
        &self,
        mut state: OwnedMutexGuard<State>,
        producer: Arc<Producer>,
        commit: Option<Vec<Uuid>>,
    ) -> Result<OwnedMutexGuard<State>, SinkError> {
        let timeout = self.timeout;
        let ended = blocking(move || {
            let ended = match &commit {
                Some(_) => commit_within(&producer, timeout),
                None => abort_within(&producer, timeout),
            };
            state.open = false;
            match &ended {
                Ok(()) => {
                    state.unanswered.extend(commit.unwrap_or_default());
                    state.progress.keep();
                }
                Err(Ended::Aborted(_)) => {}
                Err(Ended::Fenced | Ended::Unknown(_)) => state.producer = None,
            }
            (state, ended)
        });
        let (state, ended) = ended.await;
        match ended {
            Ok(()) => Ok(state),
            Err(Ended::Fenced) => Err(self.fenced()),
            Err(Ended::Aborted(error) | Ended::Unknown(error)) => {
                let message = format!("Kafka did not commit the transaction: {error}");
                Err(SinkError::new(FailureKind::Unavailable, message))
            }
        }
    }

    fn fenced(&self) -> SinkError {
        let message = format!(
            "another producer has taken over the transactional.id {}: if that was no other relay of \
             this pipeline, another pipeline has its name; set transactional_id",
            self.id
        );
        SinkError::new(FailureKind::Unavailable, message)
    }
}

/// Commits, as often as it takes.
fn commit_within(producer: &Producer, timeout: Duration) -> Result<(), Ended> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let error = match producer.commit_transaction(left) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if is_fenced(&error) {
            return Err(Ended::Fenced);
        }
        let KafkaError::Transaction(details) = &error else { return Err(Ended::Unknown(error)) };
        if details.txn_requires_abort() {
            return match abort_within(producer, timeout) {
                Ok(()) => Err(Ended::Aborted(error)),
                Err(ended) => Err(ended),
            };
        }
        if !details.is_retriable() || Instant::now() >= deadline {
            return Err(Ended::Unknown(error));
        }
    }
}

fn abort_within(producer: &Producer, timeout: Duration) -> Result<(), Ended> {
    match producer.abort_transaction(timeout) {
        Ok(()) => Ok(()),
        Err(error) if is_fenced(&error) => Err(Ended::Fenced),
        Err(error) => Err(Ended::Unknown(error)),
    }
}

fn is_fenced(error: &KafkaError) -> bool {
    use RDKafkaErrorCode::{Fenced, InvalidProducerEpoch, ProducerFenced};
    matches!(error.rdkafka_error_code(), Some(Fenced | InvalidProducerEpoch | ProducerFenced))
}

/// Runs what blocks, to its end whoever waits.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
