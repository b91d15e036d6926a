//! Publishes stored events again, with the same ids.
//!
//! A replay changes nothing in the outbox, so running relays neither notice it nor are in its way.
//! Into the sink of a pipeline goes only what that pipeline has published before ([`Again`]): what
//! it has yet to publish would overtake what stands before it. Each event has the header [`REPLAY_HEADER`]. Events go out in the order
//! of the outbox, one of a key at a time where the sink does not keep their order, one call at a
//! time. The first event that cannot be published ends it: nothing overtakes it. How far it came
//! is a position, from which it can go on; what had gone out beyond that is then sent once more.
//!
//! A sink that remembers what it took would answer that it has these events, and store nothing,
//! even if what it had stored is gone. So the messages of a run have deduplication ids of their own
//! ([`message`]): the sink knows the run's second tries, and no earlier ones. Where the sink can be
//! read back, [`Noting`] finds out whether the events are there.

mod confirmation;
mod queue;

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use uuid::Uuid;

pub use self::confirmation::{Confirmation, Noting};
use self::queue::Queue;
use crate::config::PipelineConfig;
use crate::events::{Events, Fate, Stored, Wanted};
use crate::failure::{FailureKind, SinkError};
use crate::formats::{Encoding, REPLAY_HEADER};
use crate::pipeline::decision::{backoff, random_jitter};
use crate::routing::Template;
use crate::shutdown::Shutdown;
use crate::sink::{Message, Sink};
use crate::sinks::SinkSpec;
use crate::source::SourceError;
use crate::telemetry::spans::Spans;

/// How many events are found at a time: looking through the table takes as long for a few.
const FOUND_MAX: usize = 100_000;
/// How many are read at a time, and how many bytes.
const READ_MAX: usize = 500;
const READ_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// First and longest pause after a failure that may pass.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// So many failures in a row, without an event published between them, end it.
const FAILURES_MAX: u32 = 10;
/// Options of a sink that keep progress of their own, which a replay leaves alone.
const PROGRESS_OPTIONS: [&str; 3] = ["exactly_once", "progress_topic", "transactional_id"];

/// How many events are asked about at a time.
const ASKED_MAX: usize = 5_000;

/// The pipeline into whose sink events go again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Again {
    /// Its name.
    pub pipeline: String,
    /// The types that it reads; empty means all.
    pub aggregate_types: Vec<String>,
}

/// What to publish, and how.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Only what this pipeline has published; otherwise everything that is stored.
    pub again: Option<Again>,
    /// Which events.
    pub wanted: Wanted,
    /// Only those after this position.
    pub after: i64,
    /// Most events in a second.
    pub rate: Option<NonZeroU32>,
    /// What is sent for an event.
    pub encoding: Encoding,
    /// Longest time for one call of the sink.
    pub publish_timeout: Duration,
}

/// How far it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Events that were published.
    pub published: u64,
    /// Rows that are no events, which were left out.
    pub left_out: u64,
    /// Everything up to here is done.
    pub position: i64,
}

/// What would be published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// How many events.
    pub events: u64,
    /// The first and the last of them.
    pub first: Option<Stored>,
    /// The last of them.
    pub last: Option<Stored>,
    /// What the pipeline has not published.
    pub unpublished: Unpublished,
}

/// Events that match and stay where they are, because a pipeline has not published them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unpublished {
    /// Yet to be read, or under way.
    pub waiting: u64,
    /// Parked, deferred or queued.
    pub set_aside: u64,
    /// Discarded by an operator.
    pub discarded: u64,
}

/// Why it ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The outbox could not be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The sink did not take an event.
    #[error("the event {event_id} could not be published: {error}")]
    Sink {
        /// The event.
        event_id: Uuid,
        /// Its position in the outbox.
        position: i64,
        /// Why not.
        error: SinkError,
    },
}

/// The encoding of a replay: that of a pipeline, with the header that says what it is.
pub fn encoding(mut encoding: Encoding) -> Encoding {
    let headers = &mut encoding.route.headers;
    headers.retain(|(name, _)| !name.eq_ignore_ascii_case(REPLAY_HEADER));
    let value = Template::parse("true").expect("a word is a template");
    headers.push((REPLAY_HEADER.to_owned(), value));
    encoding
}

/// The message of one run of a replay: known by an id that is made of both, so that the tries of
/// the run are the same for the sink and those of anybody else are not.
pub fn message(message: Message, run: Uuid) -> Message {
    let deduplication_id = Uuid::new_v5(&run, message.event.id().as_bytes());
    Message { deduplication_id, ..message }
}

/// The sink of a pipeline, for a replay: without what it keeps about the pipeline's progress.
pub fn sink(config: &PipelineConfig) -> SinkSpec {
    let mut sink = config.sink.clone();
    sink.options.retain(|option, _| !PROGRESS_OPTIONS.contains(&option));
    sink.pipeline.name = format!("{}-replay", config.name);
    sink
}

impl Replay {
    /// What would be published. Looks through the table.
    pub async fn find(&self, events: &dyn Events) -> Result<Found, SourceError> {
        let mut found = Found::default();
        let mut after = self.after;
        loop {
            let page = events.stored(&self.wanted, after, FOUND_MAX).await?;
            let Some(last) = page.last() else { return Ok(found) };
            after = last.position;
            let is_last = page.len() < FOUND_MAX;
            let page = self.published(events, page, &mut found.unpublished).await?;
            found.events += page.len() as u64;
            if found.first.is_none() {
                found.first = page.first().cloned();
            }
            found.last = page.into_iter().next_back().or(found.last);
            if is_last {
                return Ok(found);
            }
        }
    }

    /// Those of these that may go.
    async fn published(
        &self,
        events: &dyn Events,
        mut page: Vec<Stored>,
        left_out: &mut Unpublished,
    ) -> Result<Vec<Stored>, SourceError> {
        let Some(Again { pipeline, aggregate_types }) = &self.again else { return Ok(page) };
        let mut published = HashSet::new();
        for part in page.chunks(ASKED_MAX) {
            for (position, fate) in events.fates(pipeline, aggregate_types, part).await? {
                match fate {
                    Fate::Published => drop(published.insert(position)),
                    Fate::Waiting => left_out.waiting += 1,
                    Fate::SetAside => left_out.set_aside += 1,
                    Fate::Discarded => left_out.discarded += 1,
                    Fate::NotItsOwn => {}
                }
            }
        }
        page.retain(|stored| published.contains(&stored.position));
        Ok(page)
    }

    /// Publishes until everything is, or a stop is asked for. `tell` hears how far it is.
    pub async fn run(
        &self,
        events: &dyn Events,
        sink: &dyn Sink,
        mut tell: impl FnMut(Replayed),
        shutdown: &Shutdown,
    ) -> (Replayed, Result<(), ReplayError>) {
        let replayed = Replayed { position: self.after, ..Replayed::default() };
        let (pace, shutdown) = (Pace::new(self.rate), shutdown.clone());
        let topic = &self.encoding.route.topic;
        let spans = Spans::new("replay", &sink.capabilities(), topic, None);
        let id = Uuid::now_v7();
        let mut run = Run { id, replay: self, events, sink, spans, replayed, pace, shutdown };
        let result = run.publish_all(&mut tell).await;
        (run.replayed, result)
    }
}

struct Run<'r> {
    id: Uuid,
    replay: &'r Replay,
    events: &'r dyn Events,
    sink: &'r dyn Sink,
    spans: Spans,
    replayed: Replayed,
    pace: Pace,
    shutdown: Shutdown,
}

impl Run<'_> {
    async fn publish_all(&mut self, tell: &mut impl FnMut(Replayed)) -> Result<(), ReplayError> {
        loop {
            let (wanted, after) = (&self.replay.wanted, self.replayed.position);
            let found = self.events.stored(wanted, after, FOUND_MAX).await?;
            let (is_last, last) = (found.len() < FOUND_MAX, found.last().map(|it| it.position));
            let mut left_out = Unpublished::default();
            let may_go = self.replay.published(self.events, found, &mut left_out).await?;
            let mut rest = may_go.as_slice();
            while !rest.is_empty() && !self.shutdown.is_requested() {
                let (page, later) = rest.split_at(page_of(rest));
                rest = later;
                self.publish_page(page, tell).await?;
            }
            if self.shutdown.is_requested() {
                return Ok(());
            }
            self.replayed.position = last.unwrap_or(after);
            if is_last {
                return Ok(());
            }
        }
    }

    async fn publish_page(
        &mut self,
        page: &[Stored],
        tell: &mut impl FnMut(Replayed),
    ) -> Result<(), ReplayError> {
        let mut queue = Queue::default();
        let mut unsendable = None;
        for read in self.events.read(page).await? {
            let Ok(event) = read.event else {
                self.replayed.left_out += 1;
                continue;
            };
            let (event_id, position) = (event.id(), read.position);
            match self.encode(event) {
                Ok(message) => queue.push(position, message),
                // What stands before it may go, and nothing behind it.
                Err(error) => {
                    unsendable = Some(ReplayError::Sink { event_id, position, error });
                    break;
                }
            }
        }
        let mut failures = 0;
        let mut most = usize::MAX;
        while let Some(first) = queue.first() {
            self.replayed.position = self.replayed.position.max(first - 1);
            if self.shutdown.is_requested() {
                return Ok(());
            }
            let capabilities = self.sink.capabilities();
            let indexes = queue.next_call(&capabilities, self.pace.events_max.min(most));
            let messages: Vec<Message> = queue.messages(&indexes);
            self.pace.wait(messages.len()).await;
            let results = self.call(&messages).await;
            let before = queue.len();
            let failed = queue.settle(&indexes, results);
            self.replayed.published += (before - queue.len()) as u64;
            failures = if queue.len() < before { 0 } else { failures + 1 };
            most = match &failed {
                // Fewer at a time, until one is refused by itself.
                Some((.., error)) if error.in_company && indexes.len() > 1 => {
                    most = indexes.len() / 2;
                    continue;
                }
                Some(_) => most,
                None => most.saturating_mul(2),
            };
            if let Some((position, event_id, error)) = failed {
                let passes = match error.kind {
                    FailureKind::Failed
                    | FailureKind::Refused
                    | FailureKind::Throttled
                    | FailureKind::Unavailable => true,
                    FailureKind::Rejected | FailureKind::Misconfigured => false,
                };
                if !passes || failures >= FAILURES_MAX {
                    self.replayed.position = queue.first().unwrap_or(position) - 1;
                    return Err(ReplayError::Sink { event_id, position, error });
                }
                self.pause(error.retry_after, failures).await;
            }
            tell(self.replayed);
        }
        if let Some(ReplayError::Sink { position, .. }) = &unsendable {
            self.replayed.position = position - 1;
        } else if let Some(last) = page.last() {
            self.replayed.position = last.position;
        }
        tell(self.replayed);
        unsendable.map_or(Ok(()), Err)
    }

    fn encode(&self, event: std::sync::Arc<postrider::Event>) -> Result<Message, SinkError> {
        let message = message(self.replay.encoding.encode(event)?, self.id);
        let (bytes, max) = (message.body.len(), self.sink.capabilities().event_bytes_max);
        if bytes <= max {
            return Ok(message);
        }
        let what = format!("the message has {bytes} bytes, the sink takes at most {max}");
        Err(SinkError::new(FailureKind::Rejected, what))
    }

    /// Whatever happens, there is an answer for every message.
    async fn call(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let longest = self.replay.publish_timeout;
        let mut span = self.spans.send(messages);
        let problem = match timeout(longest, span.around(self.sink.publish(messages))).await {
            Ok(results) if results.len() == messages.len() => {
                span.answered(&results);
                return results;
            }
            Ok(_) => "the sink did not answer for every message; this is a bug in it".to_owned(),
            Err(_) => format!("the sink did not answer within {longest:?}"),
        };
        let results = vec![Err(SinkError::new(FailureKind::Failed, problem)); messages.len()];
        span.answered(&results);
        results
    }

    async fn pause(&mut self, asked_for: Option<Duration>, failures: u32) {
        let (initial, max) = PAUSES;
        let pause = asked_for.unwrap_or_else(|| backoff(initial, max, failures, random_jitter()));
        tokio::select! {
            () = sleep(pause.min(max)) => {}
            () = self.shutdown.requested() => {}
        }
    }
}

/// How many of these are read at a time.
fn page_of(stored: &[Stored]) -> usize {
    let mut bytes = 0;
    let fitting = stored.iter().take(READ_MAX).take_while(|stored| {
        bytes += stored.payload_bytes;
        bytes <= READ_BYTES_MAX
    });
    fitting.count().max(1)
}

/// Keeps to a rate.
struct Pace {
    rate: Option<NonZeroU32>,
    /// Most events in one call: a quarter of a second's.
    events_max: usize,
    next: Instant,
}

impl Pace {
    fn new(rate: Option<NonZeroU32>) -> Self {
        let quarter = |rate: NonZeroU32| usize::try_from(rate.get() / 4).unwrap_or(usize::MAX);
        let events_max = rate.map_or(usize::MAX, |rate| quarter(rate).max(1));
        Self { rate, events_max, next: Instant::now() }
    }

    /// Waits until so many may be sent.
    async fn wait(&mut self, events: usize) {
        let Some(rate) = self.rate else { return };
        sleep_until(self.next).await;
        let events = u32::try_from(events).unwrap_or(u32::MAX);
        // What was lost by waiting for the sink is not made up for in a rush.
        let from = self.next.max(Instant::now());
        self.next = from + Duration::from_secs(1) * events / rate.get();
    }
}

#[cfg(test)]
mod tests;
