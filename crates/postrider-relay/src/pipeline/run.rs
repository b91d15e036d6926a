//! A pipeline at work: joins the engine to a source, a sink and the clock.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::care;
use super::decision::backoff;
use super::engine::{Call, Engine, Policy, SettlementBatch};
use super::intake::{hash, incoming};
use super::log::Log;
use super::{Options, PipelineError, State, Status, Totals};
use crate::failure::{FailureKind, SinkError};
use crate::shutdown::Shutdown;
use crate::sink::{Message, Sink};
use crate::source::{BatchLimit, Record, Settled, Source, SourceError, SourceErrorKind};

/// How long a read waits for the first event.
const READ_WAIT: Duration = Duration::from_secs(1);
/// The same when the pipeline ends once nothing is pending.
const READ_WAIT_DRAIN: Duration = Duration::from_millis(50);
/// How often the status is looked at when nothing else happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long settling may take after the grace time.
const SETTLE_GRACE: Duration = Duration::from_secs(2);
/// Later than anything that matters.
const FAR_FUTURE: Duration = Duration::from_secs(365 * 24 * 3600);
/// First and longest pause before an unavailable source is asked again.
const SOURCE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A pipeline while it runs.
pub(super) struct Run<'a> {
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
    log: Log<'a>,
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
    /// Runs a pipeline to its end.
    pub(super) async fn start(
        name: &'a str,
        source: &'a dyn Source,
        sink: &'a dyn Sink,
        options: &'a Options,
        status: &'a watch::Sender<Status>,
        mut shutdown: Shutdown,
    ) -> Result<Totals, PipelineError> {
        let resume = tokio::select! {
            resume = patiently(name, status, || source.resume()) => resume.map_err(PipelineError::Source)?,
            () = shutdown.requested() => return Ok(Totals::default()),
        };
        if resume.crashes >= care::CAREFUL_AFTER {
            let crashes = resume.crashes;
            warn!(pipeline = name, crashes, "the last starts ended badly; one event at a time");
        }
        let check = tokio::select! {
            check = timeout(options.publish_timeout, sink.check()) => check.unwrap_or_else(|_| {
                Err(SinkError::new(FailureKind::Unavailable, "no answer to the check in time"))
            }),
            () = shutdown.requested() => return Ok(Totals::default()),
        };
        match check {
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
            log: Log::new(name),
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
                if calls > 0 {
                    let name = self.name;
                    warn!(pipeline = name, calls, "the sink did not answer within the grace time");
                }
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
                let (name, status, source) = (self.name, self.status, self.source);
                let reading =
                    async move { patiently(name, status, || source.next_batch(limit)).await };
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
            let (name, status, source) = (self.name, self.status, self.source);
            self.settling = Some(Box::pin(async move {
                let settled = patiently(name, status, || source.settle(&batch.settlements)).await?;
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
        if let Some((message, error)) = failure {
            self.log.failure(&message.event, error);
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
        self.log.parked(&batch.settlements);
        self.engine.settled(batch, settled.unblocked.iter().map(hash));
        Ok(())
    }

    /// Publishes the status.
    fn tell(&mut self, stopping: bool) {
        let progress = self.engine.progress(self.started.elapsed(), self.options.stall_after);
        let state = if stopping { State::Stopping } else { State::Running(progress) };
        self.status.send_modify(|status| {
            status.state = state;
            status.totals = self.totals;
            status.blocked_keys = self.engine.blocked_keys();
            status.trouble.clone_from(&self.trouble);
        });
        self.log.progress(progress, self.trouble.as_deref());
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
    status: &watch::Sender<Status>,
    mut call: impl FnMut() -> BoxFuture<'a, Result<T, SourceError>>,
) -> Result<T, SourceError> {
    let mut failures = 0;
    loop {
        let result = call().await;
        let Err(error) = &result else {
            if failures > 0 {
                info!(pipeline, "the source is back");
                status.send_modify(|status| status.source_trouble = None);
            }
            return result;
        };
        if error.kind != SourceErrorKind::Unavailable {
            return result;
        }
        let error = error.details();
        if failures == 0 {
            warn!(pipeline, error, "the source is not available; trying again");
        }
        status.send_modify(|status| status.source_trouble = Some(error));
        let (initial, max) = SOURCE_PAUSES;
        sleep(backoff(initial, max, failures, failures.into())).await;
        failures += 1;
    }
}

/// Waits for the future in the slot, for ever if there is none.
async fn wait<T>(slot: &mut Option<BoxFuture<'_, T>>) -> T {
    match slot {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
