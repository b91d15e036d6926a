//! A pipeline: one source joined to one sink, with progress of its own.
//!
//! All decisions are made by the [engine](engine), which does no I/O. What stands here joins it
//! to a real source, sink and clock, in one task:
//!
//! ```text
//!   source ──next_batch──▶ encode ──read──▶ ┌────────┐ ──next_call──▶ sink.publish
//!      ▲                                    │ engine │                    │
//!      └────────settle◀──next_settlements── └────────┘ ◀────published─────┘
//! ```
//!
//! Reading, publishing and settling go on at the same time; each is bounded by the engine's
//! window. A source that is unavailable is asked again and again; every other error of a source,
//! and a sink that is misconfigured, end the pipeline with an error that says what to do.

pub mod breaker;
pub mod care;
pub mod decision;
pub mod engine;
mod lanes;
pub mod options;
pub mod status;

use std::future::Future;
use std::hash::BuildHasher;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use postrider::Key;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

pub use self::options::{OnDead, Options, Ordering, Retry, Window};
pub use self::status::{State, Status, Totals};

use self::decision::backoff;
use self::engine::{Call, Engine, Incoming, Policy, Progress, SettlementBatch};
use crate::failure::{FailureKind, SinkError};
use crate::shutdown::Shutdown;
use crate::sink::{Message, Sink};
use crate::source::{BatchLimit, Record, Settled, Source, SourceError, SourceErrorKind, Verdict};

/// How long a read waits for the first event.
const READ_WAIT: Duration = Duration::from_secs(1);
/// The same when the pipeline ends once nothing is pending.
const READ_WAIT_DRAIN: Duration = Duration::from_millis(50);
/// Failures of single events are logged at most this often.
const TELL_FAILURES_EVERY: Duration = Duration::from_secs(10);
/// How often the status is looked at when nothing else happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long settling may take after the grace time.
const SETTLE_GRACE: Duration = Duration::from_secs(2);
/// Later than anything that matters.
const FAR_FUTURE: Duration = Duration::from_secs(365 * 24 * 3600);
/// First and longest pause before an unavailable source is asked again.
const SOURCE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// One source joined to one sink.
pub struct Pipeline {
    name: String,
    source: Box<dyn Source>,
    sink: Box<dyn Sink>,
    options: Options,
    status: watch::Sender<Status>,
}

/// Why a pipeline ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The outbox cannot be read or settled.
    #[error("the source stopped the pipeline: {0}")]
    Source(#[source] SourceError),
    /// An operator must act on the sink.
    #[error("the sink stopped the pipeline: {0}")]
    Sink(#[source] SinkError),
    /// A stop was asked for and the source could not be reached to settle what was published.
    #[error("could not settle everything before the stop; some events will be published again")]
    Unsettled,
}

impl PipelineError {
    /// What the operator can do.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Source(error) => error.hint.as_deref(),
            Self::Sink(_) => Some("mend what the message names, then start the relay again"),
            Self::Unsettled => None,
        }
    }
}

impl Pipeline {
    /// Joins a source to a sink.
    pub fn new(
        name: impl Into<String>,
        source: Box<dyn Source>,
        sink: Box<dyn Sink>,
        options: Options,
    ) -> Self {
        let status = watch::Sender::new(Status::default());
        Self { name: name.into(), source, sink, options, status }
    }

    /// The pipeline's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Follows the pipeline while it runs.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Publishes events until a stop is asked for or, with [`Options::drain`], until nothing is
    /// pending. Answers what became of them.
    pub async fn run(self, shutdown: Shutdown) -> Result<Totals, PipelineError> {
        let Self { name, source, sink, options, status } = self;
        let result = Run::start(&name, &*source, &*sink, &options, &status, shutdown).await;
        // A source that failed cannot note an orderly end; a sink that failed still can.
        if !matches!(result, Err(PipelineError::Source(_) | PipelineError::Unsettled)) {
            source.close().await.map_err(PipelineError::Source)?;
        }
        if let Err(error) = sink.close().await {
            warn!(pipeline = name, %error, "closing the sink failed");
        }
        status.send_modify(|status| status.state = State::Stopped);
        result
    }
}

/// A pipeline while it runs.
struct Run<'a> {
    name: &'a str,
    source: &'a dyn Source,
    sink: &'a dyn Sink,
    options: &'a Options,
    status: &'a watch::Sender<Status>,
    engine: Engine<Message>,
    started: Instant,
    reading: Option<Reading<'a>>,
    calls: FuturesUnordered<Publishing<'a>>,
    settling: Option<Settling<'a>>,
    /// The last read found nothing.
    exhausted: bool,
    totals: Totals,
    trouble: Option<String>,
    told_failure_at: Option<Instant>,
}

/// How far a stop has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// Calls under way may still end.
    Stopping {
        until: Instant,
    },
    /// They were given up; verdicts may still be settled.
    Settling {
        until: Instant,
    },
}

impl Phase {
    fn ends_at(self) -> Instant {
        match self {
            Self::Running => Instant::now() + FAR_FUTURE,
            Self::Stopping { until } | Self::Settling { until } => until,
        }
    }
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
type Reading<'a> = BoxFuture<'a, Result<Vec<Record>, SourceError>>;
type Publishing<'a> = BoxFuture<'a, (Call<Message>, Vec<Result<(), SinkError>>)>;
type Settling<'a> = BoxFuture<'a, Result<(SettlementBatch, Settled), SourceError>>;

impl<'a> Run<'a> {
    async fn start(
        name: &'a str,
        source: &'a dyn Source,
        sink: &'a dyn Sink,
        options: &'a Options,
        status: &'a watch::Sender<Status>,
        mut shutdown: Shutdown,
    ) -> Result<Totals, PipelineError> {
        let resume = tokio::select! {
            resume = patiently(name, || source.resume()) => resume.map_err(PipelineError::Source)?,
            () = shutdown.requested() => return Ok(Totals::default()),
        };
        if resume.crashes >= care::CAREFUL_AFTER {
            let crashes = resume.crashes;
            warn!(pipeline = name, crashes, "the last starts ended badly; one event at a time");
        }
        match sink.check().await {
            Err(error) if error.kind == FailureKind::Misconfigured => {
                return Err(PipelineError::Sink(error));
            }
            Err(error) => warn!(pipeline = name, %error, "the sink is not there yet"),
            Ok(()) => {}
        }
        let blocked = resume.blocked_keys.iter().map(hash);
        let run = Self {
            name,
            source,
            sink,
            options,
            status,
            engine: Engine::new(policy(sink, options), blocked, resume.crashes),
            started: Instant::now(),
            reading: None,
            calls: FuturesUnordered::new(),
            settling: None,
            exhausted: false,
            totals: Totals::default(),
            trouble: None,
            told_failure_at: None,
        };
        run.until_stopped(shutdown).await
    }

    async fn until_stopped(mut self, mut shutdown: Shutdown) -> Result<Totals, PipelineError> {
        let mut phase = Phase::Running;
        loop {
            self.begin_work().await;
            if self.engine.is_finished() {
                break;
            }
            if phase == Phase::Running && self.is_drained().await? {
                self.engine.stop();
                continue;
            }
            let wake_at = self.started + self.engine.wake_at().unwrap_or(FAR_FUTURE);
            let look_at = Instant::now() + LOOK_EVERY;
            tokio::select! {
                batch = wait(&mut self.reading) => self.read(batch)?,
                Some((call, results)) = self.calls.next() => self.published(call, results),
                settled = wait(&mut self.settling) => self.settled(settled)?,
                () = sleep_until(wake_at.min(look_at).min(phase.ends_at())) => {}
                () = shutdown.requested(), if phase == Phase::Running => {
                    info!(pipeline = self.name, "stopping");
                    self.engine.stop();
                }
            }
            phase = self.next_phase(phase)?;
            self.tell(phase != Phase::Running);
        }
        match self.engine.stopped_by() {
            Some(error) => Err(PipelineError::Sink(error.clone())),
            None => Ok(self.totals),
        }
    }

    /// Begins a stop, or ends what takes longer than the grace time.
    fn next_phase(&mut self, phase: Phase) -> Result<Phase, PipelineError> {
        let now = Instant::now();
        match phase {
            Phase::Running if self.engine.is_stopping() => {
                self.engine.stop();
                Ok(Phase::Stopping { until: now + self.options.grace })
            }
            Phase::Stopping { until } if now >= until => {
                let calls = self.calls.len();
                warn!(pipeline = self.name, calls, "the sink did not answer within the grace time");
                self.calls.clear();
                self.engine.abandon();
                Ok(Phase::Settling { until: now + SETTLE_GRACE })
            }
            Phase::Settling { until } if now >= until => Err(PipelineError::Unsettled),
            Phase::Running | Phase::Stopping { .. } | Phase::Settling { .. } => Ok(phase),
        }
    }

    /// Starts whatever the engine asks for.
    async fn begin_work(&mut self) {
        match self.engine.want() {
            Some((events, bytes)) if self.reading.is_none() => {
                let wait = if self.options.drain { READ_WAIT_DRAIN } else { READ_WAIT };
                let limit = BatchLimit { events, bytes, wait };
                let (name, source) = (self.name, self.source);
                let reading = async move { patiently(name, || source.next_batch(limit)).await };
                self.reading = Some(Box::pin(reading));
            }
            // Cancel-safe: nothing is lost by not waiting any longer.
            None if self.engine.is_stopping() => self.reading = None,
            Some(_) | None => {}
        }
        while let Some(call) = self.engine.next_call(self.started.elapsed()) {
            self.calls.push(Box::pin(publish(self.sink, call, self.options.publish_timeout)));
        }
        if let Some(batch) = self.engine.next_settlements() {
            let (name, source) = (self.name, self.source);
            self.settling = Some(Box::pin(async move {
                let settled = patiently(name, || source.settle(&batch.settlements)).await?;
                Ok((batch, settled))
            }));
        }
        if self.engine.take_survived()
            && let Err(error) = self.source.survived().await
        {
            // Should it come to crashes later, the next start is careful too early: no harm.
            warn!(pipeline = self.name, %error, "could not note that the start went well");
        }
    }

    async fn is_drained(&mut self) -> Result<bool, PipelineError> {
        if !self.options.drain || !self.exhausted || !self.engine.is_empty() {
            return Ok(false);
        }
        match self.source.pending().await {
            Ok(pending) => Ok(!pending),
            Err(error) if error.kind == SourceErrorKind::Unavailable => Ok(false),
            Err(error) => Err(PipelineError::Source(error)),
        }
    }

    fn read(&mut self, batch: Result<Vec<Record>, SourceError>) -> Result<(), PipelineError> {
        self.reading = None;
        let batch = batch.map_err(PipelineError::Source)?;
        self.exhausted = batch.is_empty();
        let event_bytes_max = self.sink.capabilities().event_bytes_max;
        let options = self.options;
        let batch = batch.into_iter().map(|record| incoming(record, options, event_bytes_max));
        self.engine.read(batch, self.started.elapsed());
        Ok(())
    }

    fn published(&mut self, call: Call<Message>, results: Vec<Result<(), SinkError>>) {
        let mut failures = call.messages.iter().zip(&results);
        let failure =
            failures.find_map(|(message, result)| Some((message, result.as_ref().err()?)));
        self.trouble = failure.map(|(_, error)| error.to_string());
        if let Some((message, error)) = failure
            && self.told_failure_at.is_none_or(|at| at.elapsed() >= TELL_FAILURES_EVERY)
        {
            self.told_failure_at = Some(Instant::now());
            let (event, key, kind) = (message.event.id(), message.event.key(), error.kind.as_str());
            warn!(pipeline = self.name, %event, %key, kind, %error, "an event was not published");
        }
        self.engine.published(call, results, self.started.elapsed());
    }

    fn settled(
        &mut self,
        settled: Result<(SettlementBatch, Settled), SourceError>,
    ) -> Result<(), PipelineError> {
        self.settling = None;
        let (batch, settled) = settled.map_err(PipelineError::Source)?;
        self.totals.count(&batch.settlements);
        for settlement in &batch.settlements {
            if let Verdict::Parked { failure, .. } = &settlement.verdict {
                let (kind, attempts) = (failure.kind.as_str(), failure.attempts);
                let error = failure.message.as_str();
                warn!(pipeline = self.name, kind, attempts, error, "an event was parked");
            }
        }
        self.engine.settled(batch, settled.unblocked.iter().map(hash));
        Ok(())
    }

    /// Publishes the status, and says aloud when it changes for better or worse.
    fn tell(&mut self, stopping: bool) {
        let progress = self.engine.progress(self.started.elapsed(), self.options.stall_after);
        let state = if stopping { State::Stopping } else { State::Running(progress) };
        let status = Status {
            state,
            totals: self.totals,
            blocked_keys: self.engine.blocked_keys(),
            trouble: self.trouble.clone(),
        };
        let before = self.status.send_replace(status).state;
        if before == state {
            return;
        }
        let error = self.trouble.as_deref().unwrap_or("none");
        match state {
            State::Running(Progress::Outage) => {
                warn!(pipeline = self.name, error, "the sink is in trouble; events wait");
            }
            State::Running(Progress::Stalled { since }) => {
                let seconds = self.started.elapsed().saturating_sub(since).as_secs();
                warn!(
                    pipeline = self.name,
                    seconds, error, "no progress: events wait, none was delivered"
                );
            }
            State::Running(Progress::Moving | Progress::Idle)
                if matches!(
                    before,
                    State::Running(Progress::Outage | Progress::Stalled { .. })
                ) =>
            {
                info!(pipeline = self.name, "events flow again");
            }
            _ => {}
        }
    }
}

fn policy(sink: &dyn Sink, options: &Options) -> Policy {
    let capabilities = sink.capabilities();
    Policy {
        ordering: options.ordering,
        on_dead: options.on_dead,
        retry: options.retry,
        window: options.window,
        ordered_by_key: capabilities.ordered_by_key,
        batch_events_max: capabilities.batch_events_max,
        batch_bytes_max: capabilities.batch_bytes_max,
        calls_max: capabilities.calls_max,
        // Several relays should not come back to a sink at the same moment.
        seed: std::process::id().into(),
    }
}

/// Works out what to send for a record, or why it can never be sent: before anything of its key
/// is under way, so that a bad event never comes to light in the middle of a call.
fn incoming(record: Record, options: &Options, event_bytes_max: usize) -> Incoming<Message> {
    let bytes = record.size_bytes();
    let Record { handle, event, attempts, returned, delay } = record;
    let (key, id, message) = match event {
        Ok(event) => {
            // A delayed event has left the order of its key.
            let ordered = event.deliver_after().is_none();
            let key = ordered.then(|| hash(event.key()));
            let id = event.id().as_u64_pair();
            let message = options.encoding.encode(event).map_err(|error| error.message);
            (key, id.0 ^ id.1, message.and_then(|message| fitting(message, event_bytes_max)))
        }
        Err(bad) => (bad.key.as_ref().map(hash), handle.0, Err(bad.reason)),
    };
    Incoming { handle, key, id, bytes, attempts, returned, delay, message }
}

fn fitting(message: Message, event_bytes_max: usize) -> Result<Message, String> {
    let bytes = message.body.len();
    if bytes <= event_bytes_max {
        return Ok(message);
    }
    Err(format!("the message has {bytes} bytes, the sink takes at most {event_bytes_max}"))
}

fn hash(key: &Key) -> u64 {
    foldhash::fast::FixedState::default().hash_one(key)
}

/// Calls the sink; whatever happens, there is an answer for every message.
async fn publish(
    sink: &dyn Sink,
    call: Call<Message>,
    longest: Duration,
) -> (Call<Message>, Vec<Result<(), SinkError>>) {
    let publishing = AssertUnwindSafe(sink.publish(&call.messages)).catch_unwind();
    let problem = match timeout(longest, publishing).await {
        Ok(Ok(results)) if results.len() == call.messages.len() => return (call, results),
        Ok(Ok(results)) => {
            let (given, wanted) = (results.len(), call.messages.len());
            format!("the sink answered for {given} of {wanted} messages; this is a bug in the sink")
        }
        Ok(Err(_)) => "the sink panicked; this is a bug in the sink".to_owned(),
        Err(_) => format!("the sink did not answer within {longest:?}"),
    };
    let error = SinkError::new(FailureKind::Failed, problem);
    let results = vec![Err(error); call.messages.len()];
    (call, results)
}

/// Calls a source until it is available.
async fn patiently<'a, T>(
    pipeline: &str,
    mut call: impl FnMut() -> BoxFuture<'a, Result<T, SourceError>>,
) -> Result<T, SourceError> {
    let mut failures = 0;
    loop {
        match call().await {
            Err(error) if error.kind == SourceErrorKind::Unavailable => {
                let pause = backoff(SOURCE_PAUSES.0, SOURCE_PAUSES.1, failures, failures.into());
                if failures == 0 {
                    warn!(pipeline, %error, "the source is not available; trying again");
                }
                failures += 1;
                sleep(pause).await;
            }
            result => return result,
        }
    }
}

/// Waits for the future in the slot, for ever if there is none.
async fn wait<T>(slot: &mut Option<BoxFuture<'_, T>>) -> T {
    match slot {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
