//! Exactly once: each call is a transaction of Kafka, which holds the ids of its events besides
//! the events.
//!
//! # Why a reader of committed records sees each event once
//!
//! - An event that was committed and not settled in the outbox comes back after a crash, and no
//!   other does: the last ones soon, and one whose key is paused, or that stands behind a bulk of
//!   others, at any time.
//! - So the ids of what was committed are kept, in a compacted topic ([`progress`](super::progress)),
//!   written in the same transaction, until the pipeline says that the event is settled. Besides,
//!   the last ones are kept, as many as the window holds: a database may lose its last settlements.
//! - A relay that starts to publish first ends what its predecessor left: the broker aborts or
//!   completes that transaction, and refuses whatever the predecessor still sends (it is *fenced*,
//!   by the `transactional.id`, which is the pipeline's). Then it reads the ids. An event that comes
//!   back and is among them is answered without being sent.
//! - A producer begins only with a call, so a relay that stands by fences nobody. One that was
//!   fenced begins anew with the next call, which there is only as long as the relay has its lease;
//!   and having begun, it looks at the lease once more before it sends: whoever took over did so
//!   after the lease, and has fenced this one, or is not there.
//!
//! # Why a call ends in time
//!
//! Whatever a call does ends by one deadline, and holds nothing beyond it: the pipeline gives up
//! soon after that, and would count an outage as a failure of the events. A transaction that is
//! open then is left to the next producer, which ends it before anything else; and ids that are
//! not all read then are read on by the next call.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use self::ending::{Ended, left_until};
use self::queued::Queued;
use super::KafkaSink;
use super::delivery::Call;
use super::facts::Limits;
use super::failure::{failure, foreign_note, not_begun, small_progress_topic};
use super::producer::Producer;
use super::progress::{ForeignNote, Note, Progress, Returning};
use super::progress_reader::ProgressReader;
use super::topics::Topics;
use crate::sink::{FailureKind, Message, SinkError};

mod ending;
mod queued;

/// What a transaction may take at least, as the brokers see it: librdkafka's own default.
const TRANSACTION_TIMEOUT_MIN: Duration = Duration::from_secs(60);

/// What transactions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExactlyOnce {
    pub(super) transactional_id: String,
    pub(super) progress_topic: String,
    /// Most events that may come back after a crash: the pipeline's window.
    pub(super) window: usize,
    /// The longest time until an event that was set aside comes back.
    pub(super) horizon: Duration,
}

/// What makes transactions of calls.
pub(super) struct Transactions {
    config: ClientConfig,
    options: ExactlyOnce,
    /// Nothing may be sent from then on.
    until: std::sync::Mutex<Option<Instant>>,
    /// Never locked while something is waited for.
    progress: Arc<std::sync::Mutex<Progress>>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// `None` until the first call, and after a failure that only a new one mends.
    producer: Option<Arc<Producer>>,
    /// One that has ended what its predecessor left, and not read all of what that has published.
    starting: Option<(Arc<Producer>, ProgressReader)>,
    /// A transaction was begun and not ended.
    open: bool,
    /// Committed before the producer began, and settled, as far as is known.
    returning: Option<Returning>,
}

/// What a call works with.
type Started = (OwnedMutexGuard<State>, Arc<Producer>);

impl Transactions {
    pub(super) fn new(config: &ClientConfig, options: ExactlyOnce, timeout: Duration) -> Self {
        let mut config = config.clone();
        config.set("transactional.id", &options.transactional_id);
        // A call has ended its transaction by then, or never will.
        let longest = timeout.max(TRANSACTION_TIMEOUT_MIN);
        config.set("transaction.timeout.ms", longest.as_millis().to_string());
        let until = std::sync::Mutex::default();
        Self { config, options, until, progress: Arc::default(), state: Arc::default() }
    }

    /// Whether the topic of progress is there, and fit for its purpose.
    pub(super) async fn check(&self, topics: &Topics, timeout: Duration) -> Result<(), SinkError> {
        let topic = &self.options.progress_topic;
        topics.look_up_progress(topic, self.note_bytes(), false, timeout).await
    }

    pub(super) fn allow_until(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    /// Takes in what is settled.
    pub(super) fn settled(&self, delivered: &[Uuid], set_aside: &[Uuid]) {
        locked(&self.progress).settled(delivered, set_aside);
    }

    /// Notes what is settled, so that nothing is in doubt for the next relay. If it cannot be, that
    /// one takes more than it needs for what may come back.
    pub(super) async fn close(&self, deadline: Instant) {
        let Ok(mut state) = timeout_at(deadline, Arc::clone(&self.state).lock_owned()).await else {
            return;
        };
        let Some(producer) = state.producer.clone().filter(|it| !it.is_broken()) else { return };
        let is_news = locked(&self.progress).has_news();
        if state.open || !is_news || self.is_over() || producer.begin_transaction().is_err() {
            return;
        }
        state.open = true;
        let noted = timeout_at(deadline, self.note(&producer, &[]).finished()).await;
        if noted.is_ok_and(|noted| noted[0].is_none()) {
            // Whoever has taken over has fenced this one, and reads what was noted before.
            drop(self.end(state, producer, Some(Vec::new()), deadline).await);
        }
    }

    fn is_over(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() >= until)
    }

    /// How large the largest note is.
    fn note_bytes(&self) -> usize {
        let ids = self.options.window.min(super::CALL_EVENTS_MAX);
        Note::batch_bytes_max(&self.options.transactional_id, ids)
    }

    /// Publishes messages in one transaction.
    pub(super) async fn publish(
        &self,
        sink: &KafkaSink,
        messages: &[Message],
        topics: &HashMap<&str, SinkError>,
        deadline: Instant,
    ) -> Vec<Result<(), SinkError>> {
        let all = |error: SinkError| vec![Err(error); messages.len()];
        let Ok(state) = timeout_at(deadline, Arc::clone(&self.state).lock_owned()).await else {
            let message = "not sent: what an earlier call has left is still being ended";
            return all(SinkError::new(FailureKind::Unavailable, message));
        };
        let (mut state, producer) = match self.producer(sink, state, deadline).await {
            Ok(ready) => ready,
            Err(error) => return all(error),
        };
        // A producer that has just begun has fenced the one before, even a relay that has taken
        // over in the meantime: then what that one has published may not be known here.
        if self.is_over() {
            let message = "not sent: the lease has run out";
            return all(SinkError::new(FailureKind::Unavailable, message));
        }
        if let Err(error) = producer.begin_transaction() {
            state.producer = None;
            return all(failure(&sink.place(""), &error, None));
        }
        state.open = true;
        if let Some(returning) = &mut state.returning {
            returning.forget(Instant::now().into_std());
        }
        let queued = {
            let progress = locked(&self.progress);
            let returning = state.returning.as_ref();
            let is_published = |id: &Uuid| {
                progress.is_unsettled(id) || returning.is_some_and(|ids| ids.contains(id))
            };
            Queued::new(sink, &producer, messages, topics, is_published)
        };
        let noted = match queued.sent.is_empty() {
            false => self.note(&producer, &queued.sent),
            true => {
                locked(&self.progress).note_nothing();
                Arc::new(Call::new(0))
            }
        };
        // Nothing comes to this transaction any more.
        producer.hurry();
        let Ok(delivered) = timeout_at(deadline, queued.call.finished()).await else {
            state.producer = None;
            let late = vec![Some(RDKafkaErrorCode::MessageTimedOut); messages.len()];
            return queued.undelivered(sink, messages, &late, &producer);
        };
        // A note is the last to be confirmed at times, and never by much.
        let noted = timeout_at(deadline, noted.finished()).await;
        let late = Some(RDKafkaErrorCode::MessageTimedOut);
        let noted = noted.map_or(late, |noted| noted.first().copied().flatten());
        if noted.is_none() && delivered.iter().all(Option::is_none) {
            let sent = queued.sent.clone();
            return match self.end(state, producer, Some(sent), deadline).await {
                Ok(mut state) => {
                    if let Some(returning) = &mut state.returning {
                        let ids = messages.iter().map(|message| message.deduplication_id);
                        ids.for_each(|id| returning.answered(&id));
                    }
                    queued.answers(Ok(()))
                }
                Err(ended) => queued.answers(Err(self.not_committed(ended))),
            };
        }
        match self.end(state, Arc::clone(&producer), None, deadline).await {
            Err(Ended::Fenced) => queued.answers(Err(self.fenced())),
            _ => match noted {
                Some(code) => queued.answers(Err(self.not_noted(sink, code, &producer))),
                None => queued.undelivered(sink, messages, &delivered, &producer),
            },
        }
    }

    /// The producer of the moment, once what its predecessor left is ended and read.
    async fn producer(
        &self,
        sink: &KafkaSink,
        mut state: OwnedMutexGuard<State>,
        deadline: Instant,
    ) -> Result<Started, SinkError> {
        let limits = sink.limits();
        let limits = Limits { record_bytes: limits.record_bytes.max(self.note_bytes()), ..limits };
        let is_fit = |producer: &Producer| !producer.is_broken() && producer.limits() == limits;
        // Of a call that was given up, nobody knows what was sent: a new producer ends it.
        if let Some(producer) = state.producer.clone()
            && is_fit(&producer)
            && !state.open
        {
            return Ok((state, producer));
        }
        state.producer = None;
        state.open = false;
        let starting = state.starting.take().filter(|(producer, _)| is_fit(producer));
        let starting = match starting {
            Some((producer, reader)) => (producer, Some(reader)),
            None => (Arc::new(Producer::new(&self.config, limits)?), None),
        };
        let starting = self.start(sink, state, starting, deadline);
        // It goes on when nobody waits for it any more, and only then lets the next call begin.
        match tokio::spawn(starting).await {
            Ok(started) => started,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Ends what the predecessor left, and reads what it has published. If there is no time to
    /// read it all, the next call goes on.
    fn start(
        &self,
        sink: &KafkaSink,
        mut state: OwnedMutexGuard<State>,
        (producer, reader): (Arc<Producer>, Option<ProgressReader>),
        deadline: Instant,
    ) -> impl Future<Output = Result<Started, SinkError>> + Send + 'static {
        let (topics, note_bytes) = (Arc::clone(&sink.topics), self.note_bytes());
        let (options, progress) = (self.options.clone(), Arc::clone(&self.progress));
        async move {
            let ExactlyOnce { transactional_id: id, progress_topic: topic, .. } = &options;
            let mut reader = match reader {
                Some(reader) => reader,
                None => {
                    let starting = Arc::clone(&producer);
                    let begin = move || starting.init_transactions(left_until(deadline));
                    blocking(begin).await.map_err(|error| {
                        not_begun(&topics.place(""), id, &error, producer.trouble().as_ref())
                    })?;
                    let begin = async {
                        let left = left_until(deadline);
                        topics.look_up_progress(topic, note_bytes, true, left).await?;
                        topics.read_progress(topic, id, deadline.into_std()).await
                    };
                    timeout_at(deadline, begin).await.unwrap_or_else(|_| {
                        let late = KafkaError::Global(RDKafkaErrorCode::OperationTimedOut);
                        Err(failure(&topics.place(topic), &late, producer.trouble().as_ref()))
                    })?
                }
            };
            let (reader, is_read) = blocking(move || {
                let is_read = reader.read_on(deadline.into_std());
                (reader, is_read)
            })
            .await;
            if !is_read.map_err(|error| failure(&topics.place(topic), &error, None))? {
                let error = reader.not_yet();
                state.starting = Some((producer, reader));
                return Err(error);
            }
            let notes = reader.into_found().into_notes();
            let (mut read, ids) = notes
                .and_then(|notes| Progress::after(notes, options.window))
                .map_err(|ForeignNote(key)| foreign_note(&topics.place(topic), &key))?;
            let now = Instant::now().into_std();
            let mut progress = locked(&progress);
            read.learn(&progress);
            *progress = read;
            drop(progress);
            state.returning = Some(Returning::new(ids, options.window, options.horizon, now));
            state.producer = Some(Arc::clone(&producer));
            Ok((state, producer))
        }
    }

    /// Queues the note of a transaction that sends these events.
    fn note(&self, producer: &Producer, sent: &[Uuid]) -> Arc<Call> {
        let noted = Arc::new(Call::new(1));
        let ExactlyOnce { transactional_id: id, progress_topic: topic, .. } = &self.options;
        let note = locked(&self.progress).note(id, sent);
        if let Err(error) = producer.send_note(topic, &note, Arc::clone(&noted)) {
            noted.answer(0, Some(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)));
        }
        noted
    }

    /// Ends the open transaction: commits it if ids are given, or aborts it. It goes on to its
    /// end when nobody waits for it any more, and only then lets the next call begin.
    async fn end(
        &self,
        mut state: OwnedMutexGuard<State>,
        producer: Arc<Producer>,
        commit: Option<Vec<Uuid>>,
        deadline: Instant,
    ) -> Result<OwnedMutexGuard<State>, Ended> {
        let progress = Arc::clone(&self.progress);
        blocking(move || {
            let ended = match &commit {
                Some(_) => ending::commit(&producer, deadline),
                None => ending::abort(&producer, deadline),
            };
            state.open = false;
            match &ended {
                Ok(()) => {
                    if let Some(sent) = commit {
                        locked(&progress).keep();
                        state.returning.iter_mut().for_each(|ids| ids.noted(sent.len()));
                    }
                }
                Err(Ended::Aborted(_)) => {}
                Err(Ended::Fenced | Ended::Unknown(_)) => state.producer = None,
            }
            ended.map(|()| state)
        })
        .await
    }

    fn not_committed(&self, ended: Ended) -> SinkError {
        let error = match ended {
            Ended::Fenced => return self.fenced(),
            Ended::Aborted(error) | Ended::Unknown(error) => error,
        };
        let message = format!("Kafka did not commit the transaction: {error}");
        SinkError::new(FailureKind::Unavailable, message)
    }

    fn fenced(&self) -> SinkError {
        let message = format!(
            "another producer has taken over the transactional.id {}: if that was no other relay of \
             this pipeline, another pipeline has its name; set transactional_id",
            self.options.transactional_id
        );
        SinkError::new(FailureKind::Unavailable, message)
    }

    /// Why the note of a transaction was not taken, and so nothing of it.
    fn not_noted(
        &self,
        sink: &KafkaSink,
        code: RDKafkaErrorCode,
        producer: &Producer,
    ) -> SinkError {
        let place = sink.place(&self.options.progress_topic);
        if code == RDKafkaErrorCode::MessageSizeTooLarge {
            return small_progress_topic(&place, self.note_bytes());
        }
        let trouble = producer.trouble();
        let error = failure(&place, &KafkaError::MessageProduction(code), trouble.as_ref());
        producer.judged(error)
    }
}

fn locked(progress: &std::sync::Mutex<Progress>) -> std::sync::MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what blocks, to its end whoever waits.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
