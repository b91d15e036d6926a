//! A pipeline at work: joins the engine to a source, a sink and the clock.

use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use self::troubling::note_last;
use super::breaker::outage_lanes;
use super::calling::{
    BoxFuture, Published, check, is_over, lease_end, patiently, publish, until_there, wait,
};
use super::care;
use super::decision::random_jitter;
use super::engine::{Engine, Policy, Progress, SettlementBatch};
use super::intake::{hash, incoming};
use super::log::Log;
use super::unsettled::Unsettled;
use super::{Options, PipelineError, State, Status, Totals};
use crate::failure::FailureKind;
use crate::pauses::{Pause, PauseWatch};
use crate::shutdown::Shutdown;
use crate::sink::{Message, Sink};
use crate::source::{BatchLimit, Record, Settled, Source, SourceError, SourceErrorKind};
use crate::telemetry::counters::Counters;
use crate::telemetry::spans::Spans;

/// How long a read waits for the first event.
const READ_WAIT: Duration = Duration::from_secs(1);
/// The same when the pipeline ends once nothing is pending.
const READ_WAIT_DRAIN: Duration = Duration::from_millis(50);
/// How often the status is looked at when nothing else happens.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long settling may take after the grace time.
const SETTLE_GRACE: Duration = Duration::from_secs(2);

/// What was written down as the sink's trouble, and whether it could be.
type NotedTrouble = (Option<String>, Result<(), SourceError>);

/// A pipeline while it runs.
pub(super) struct Run<'a> {
    name: &'a str,
    source: &'a dyn Source,
    sink: &'a dyn Sink,
    options: &'a Options,
    pauses: PauseWatch,
    /// An operator has stopped the pipeline.
    pause: Option<Pause>,
    /// Why it is not known yet what an operator has stopped.
    pauses_unknown: Option<String>,
    status: &'a watch::Sender<Status>,
    counters: &'a Counters,
    spans: &'a Spans,
    engine: Engine<Message>,
    started: Instant,
    reading: Option<Reading<'a>>,
    calls: FuturesUnordered<Publishing<'a>>,
    settling: Option<Settling<'a>>,
    /// On the way to note that the start went well.
    noting: Option<BoxFuture<'a, Result<(), SourceError>>>,
    /// On the way to note what is wrong with the sink, or that nothing is.
    noting_trouble: Option<BoxFuture<'a, NotedTrouble>>,
    /// What is noted, and when that was last tried.
    noted_trouble: Option<String>,
    trouble_noted_at: Option<Instant>,
    /// On the way to learn whether anything is left.
    asking: Option<BoxFuture<'a, Result<bool, SourceError>>>,
    /// On the way to learn that the sink is there, if it was not at the start.
    sink_away: Option<BoxFuture<'a, ()>>,
    /// The ids of what was read and is not settled, if the sink wants to hear what is.
    unsettled: Option<Unsettled>,
    /// The last read found nothing.
    exhausted: bool,
    /// Another relay asked for the lease, and this is why the run stops.
    handing_over: bool,
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
    fn ends_at(self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::Stopping { until } | Self::Settling { until } => Some(until),
        }
    }
}

type Reading<'a> = BoxFuture<'a, Result<Vec<Record>, SourceError>>;
type Publishing<'a> = BoxFuture<'a, Published>;
type Settling<'a> = BoxFuture<'a, Result<(SettlementBatch, Settled), SourceError>>;

impl<'a> Run<'a> {
    /// Runs a pipeline to its end.
    pub(super) async fn start(
        name: &'a str,
        source: &'a dyn Source,
        sink: &'a dyn Sink,
        options: &'a Options,
        pauses: PauseWatch,
        (status, counters, spans): (&'a watch::Sender<Status>, &'a Counters, &'a Spans),
        mut shutdown: Shutdown,
    ) -> Result<Totals, PipelineError> {
        let resume = tokio::select! {
            resume = patiently(name, status, || source.resume()) => resume?,
            () = lease_end(source) => return Err(ran_out(status)),
            () = shutdown.requested() => return Ok(Totals::default()),
        };
        if resume.crashes >= care::CAREFUL_AFTER {
            let crashes = resume.crashes;
            warn!(pipeline = name, crashes, "the last starts ended badly; one event at a time");
        }
        let longest = options.publish_timeout;
        let checked = tokio::select! {
            checked = check(sink, longest) => checked,
            () = shutdown.requested() => return Ok(Totals::default()),
        };
        let sink_away: Option<BoxFuture<'a, ()>> = match checked {
            Ok(_) => None,
            Err(_) => Some(Box::pin(until_there(sink, longest))),
        };
        let trouble = checked.as_ref().err().map(ToString::to_string);
        match checked {
            Err(error) if error.kind == FailureKind::Misconfigured => {
                note_last(source, Some(&error.message)).await;
                return Err(PipelineError::Sink(error));
            }
            Err(error) => warn!(pipeline = name, %error, "the sink is not there yet"),
            Ok(cautions) => {
                for caution in cautions {
                    warn!(pipeline = name, "{caution}");
                }
            }
        }
        let blocked = resume.blocked_keys.iter().map(hash);
        let mut run = Self {
            name,
            source,
            sink,
            options,
            pauses,
            pause: None,
            pauses_unknown: None,
            status,
            counters,
            spans,
            engine: Engine::new(policy(sink, options), blocked, resume.crashes),
            started: Instant::now(),
            reading: None,
            calls: FuturesUnordered::new(),
            settling: None,
            noting: None,
            noting_trouble: None,
            noted_trouble: resume.is_troubled.then(String::new),
            trouble_noted_at: None,
            asking: None,
            sink_away,
            unsettled: sink.follows_settlements().then(Unsettled::default),
            exhausted: false,
            handing_over: false,
            totals: Totals::default(),
            trouble,
            log: Log::new(name),
        };
        run.look_at_pauses()?;
        let result = run.until_stopped(&mut shutdown).await;
        run.tell(true);
        result?;
        run.note_trouble_at_the_end().await;
        match run.engine.stopped_by() {
            Some(error) => Err(PipelineError::Sink(error.clone())),
            None if run.handing_over && !shutdown.is_requested() => Err(PipelineError::HandedOver),
            None => Ok(run.totals),
        }
    }

    async fn until_stopped(&mut self, shutdown: &mut Shutdown) -> Result<(), PipelineError> {
        let mut phase = Phase::Running;
        loop {
            phase = self.next_phase(phase)?;
            if self.engine.is_finished() {
                return Ok(());
            }
            let lease = self.source.lease();
            if is_over(lease) {
                return Err(ran_out(self.status));
            }
            if lease.wanted && !self.engine.is_stopping() {
                info!(pipeline = self.name, "another relay asks for the lease; handing over");
                self.handing_over = true;
                self.engine.stop();
                continue;
            }
            // Before anything is sent: what has come back since a key goes on must not be taken for
            // paused.
            if self.pauses.take_changed() {
                self.look_at_pauses()?;
            }
            self.begin_work();
            self.tell(phase != Phase::Running);
            let now = Instant::now();
            let wake_at = [
                // While nothing may be sent, it does not matter when something could be.
                self.engine
                    .wake_at()
                    .filter(|_| self.may_send())
                    .map(|wake_at| self.started + wake_at),
                phase.ends_at(),
                lease.until,
            ];
            let wake_at = wake_at.into_iter().flatten().fold(now + LOOK_EVERY, Instant::min);
            tokio::select! {
                batch = wait(&mut self.reading) => self.read(batch)?,
                Some(published) = self.calls.next() => self.published(published),
                settled = wait(&mut self.settling) => self.settled(settled)?,
                noted = wait(&mut self.noting) => self.noted(noted)?,
                (trouble, noted) = wait(&mut self.noting_trouble) => {
                    self.trouble_is_noted(trouble, noted)?;
                }
                pending = wait(&mut self.asking) => self.asked(pending)?,
                () = self.pauses.changed() => self.look_at_pauses()?,
                () = wait(&mut self.sink_away) => self.found_sink(),
                () = sleep_until(wake_at) => {}
                () = shutdown.requested(), if !self.engine.is_stopping() => {
                    info!(pipeline = self.name, "stopping");
                    self.engine.stop();
                }
            }
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
            // Nobody asked for an end: whoever has the lease next settles it.
            Phase::Settling { until } if now >= until && self.handing_over => {
                let message = "the source could not be reached to hand it over in order";
                Err(SourceError::new(SourceErrorKind::Lost, message).into())
            }
            Phase::Settling { until } if now >= until => Err(PipelineError::Unsettled),
            Phase::Running | Phase::Stopping { .. } | Phase::Settling { .. } => Ok(phase),
        }
    }

    /// Starts whatever the engine asks for.
    fn begin_work(&mut self) {
        let (name, status, source) = (self.name, self.status, self.source);
        let may_send = self.may_send();
        match self.engine.want().filter(|_| may_send) {
            Some((events, bytes)) if self.reading.is_none() => {
                let wait = if self.options.drain { READ_WAIT_DRAIN } else { READ_WAIT };
                let limit = BatchLimit { events, bytes, wait };
                let reading =
                    async move { patiently(name, status, || source.next_batch(limit)).await };
                self.reading = Some(Box::pin(reading));
            }
            // Cancel-safe: nothing is lost by not waiting any longer.
            None if self.engine.is_stopping() || !may_send => self.reading = None,
            Some(_) | None => {}
        }
        while may_send && let Some(call) = self.engine.next_call(self.started.elapsed()) {
            let longest = self.options.publish_timeout;
            let publishing = publish(source, self.sink, self.spans, call, longest);
            self.calls.push(Box::pin(publishing));
        }
        if let Some(batch) = self.engine.next_settlements() {
            self.settling = Some(Box::pin(async move {
                let settled = patiently(name, status, || source.settle(&batch.settlements)).await?;
                Ok((batch, settled))
            }));
        }
        if self.engine.take_survived() {
            self.noting = Some(source.survived());
        }
        self.note_trouble();
        if self.may_be_drained() && self.asking.is_none() {
            self.asking = Some(source.pending());
        }
    }

    /// Whether it is worth asking if anything is left.
    fn may_be_drained(&self) -> bool {
        let is_idle = self.exhausted && self.engine.is_empty();
        self.options.drain && is_idle && !self.engine.is_stopping()
    }

    fn asked(&mut self, pending: Result<bool, SourceError>) -> Result<(), PipelineError> {
        self.asking = None;
        let pending = match pending {
            Err(error) if error.kind == SourceErrorKind::Unavailable => true,
            pending => pending?,
        };
        if !pending && self.may_be_drained() {
            self.engine.stop();
        }
        // To be asked again after the next read that finds nothing.
        self.exhausted = false;
        Ok(())
    }

    fn noted(&mut self, noted: Result<(), SourceError>) -> Result<(), PipelineError> {
        self.noting = None;
        match noted {
            Err(error) if error.kind == SourceErrorKind::Lost => Err(error.into()),
            Err(error) => {
                // Should it come to crashes later, the next start is careful too early: no harm.
                warn!(pipeline = self.name, %error, "could not note that the start went well");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn read(&mut self, batch: Result<Vec<Record>, SourceError>) -> Result<(), PipelineError> {
        self.reading = None;
        let batch = batch?;
        self.exhausted = batch.is_empty();
        if let Some(unsettled) = &mut self.unsettled {
            unsettled.read(&batch);
        }
        let event_bytes_max = self.sink.capabilities().event_bytes_max;
        let options = self.options;
        let batch = batch.into_iter().map(|record| incoming(record, options, event_bytes_max));
        self.engine.read(batch, self.started.elapsed());
        Ok(())
    }

    fn found_sink(&mut self) {
        info!(pipeline = self.name, "the sink is there");
        self.sink_away = None;
        self.trouble = None;
    }

    fn published(&mut self, published: Published) {
        let Published { call, mut results, took, mut span } = published;
        let fixed_topic = self.options.encoding.route.topic.constant();
        for (message, result) in call.messages.iter().zip(&mut results) {
            if let Err(error) = result {
                error.judge_topic(fixed_topic == Some(&message.topic));
            }
        }
        let _answered = span.answered(&results);
        self.counters.answered(&call.messages, &results, took);
        if self.sink_away.is_some() && results.iter().any(Result::is_ok) {
            self.found_sink();
        }
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
        let (batch, settled) = settled?;
        let mut more = Totals::default();
        more.count(&batch.settlements);
        self.totals += more;
        self.counters.settled(more);
        self.log.parked(&batch.settlements);
        if let Some(unsettled) = &mut self.unsettled {
            let (delivered, set_aside) = unsettled.settled(&batch.settlements);
            self.sink.settled(&delivered, &set_aside);
        }
        self.engine.settled(batch, settled.unblocked.iter().map(hash));
        Ok(())
    }

    /// Publishes the status.
    fn tell(&mut self, stopping: bool) {
        let paused = self.pause.is_some();
        let progress = match paused {
            true => Progress::Idle,
            false => self.engine.progress(self.started.elapsed(), self.options.stall_after),
        };
        let state = if stopping { State::Stopping } else { State::Running(progress) };
        let circuit_open = self.engine.is_circuit_open();
        self.counters.turned(self.engine.held(), circuit_open);
        self.status.send_modify(|status| {
            status.state = state;
            status.paused = paused;
            status.pauses_unknown.clone_from(&self.pauses_unknown);
            status.totals = self.totals;
            status.blocked_keys = self.engine.blocked_keys();
            status.trouble.clone_from(&self.trouble);
            status.circuit_open = circuit_open;
            status.sink_away = self.sink_away.is_some();
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
        outage_lanes: outage_lanes(options.shards),
        // Several relays should not come back to a sink at the same moment.
        seed: random_jitter(),
    }
}

/// The error of a lease that came to its end here.
fn ran_out(status: &watch::Sender<Status>) -> PipelineError {
    let mut message = "it ran out before it could be renewed".to_owned();
    if let Some(trouble) = &status.borrow().source_trouble {
        message.push_str(": ");
        message.push_str(trouble);
    }
    SourceError::new(SourceErrorKind::Lost, message).into()
}

mod pausing;
#[cfg(test)]
mod tests;
mod troubling;
