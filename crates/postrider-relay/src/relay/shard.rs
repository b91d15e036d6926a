//! A shard of a configured pipeline: it connects, runs, and when its lease has gone to another
//! relay, it connects anew and stands by.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::RelayError;
use crate::config::{PipelineConfig, SourceConfig};
use crate::failure::{FailureKind, SinkError};
use crate::hint::Hint;
use crate::pauses::PauseWatch;
use crate::pipeline::decision::{backoff, random_jitter};
use crate::pipeline::{Pipeline, PipelineError, Totals, Window};
use crate::shutdown::Shutdown;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::{Shard, SourceSpec};
use crate::telemetry::watched::{Stage, Watched};

/// First and longest pause before a connection is tried again.
const CONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The longest pause after a lease was handed over. Half of it is the shortest, and no less than
/// the longest pause between two tries of the relay that asked for it: so that one comes first.
const HANDED_OVER_PAUSE: Duration = CONNECT_PAUSES.1.saturating_mul(2);
/// How long a relay whose sink cannot be opened may take to note that.
const NOTE_MAX: Duration = Duration::from_secs(3);
/// The two ends of a pipeline, as the log names them.
const SINK: &str = "sink";
const SOURCE: &str = "source";
/// A shard's part of the window holds at least so much, if the window does.
const WINDOW_MIN: Window = Window { events_max: 256, bytes_max: 256 * 1024 };

/// What a shard needs to connect.
#[derive(Clone, Debug)]
pub(super) struct ShardPlan {
    /// What it is called in the log.
    pub(super) label: String,
    pub(super) spec: SourceSpec,
    config: PipelineConfig,
    pauses: PauseWatch,
    /// It was said that the pipeline stands by: once for all of its shards is enough.
    told: Arc<AtomicBool>,
    pub(super) watched: Arc<Watched>,
}

impl ShardPlan {
    /// The shards of a pipeline, for a relay of this name, which runs other pipelines besides.
    pub(super) fn all(
        source: &SourceConfig,
        config: &PipelineConfig,
        companions: &[String],
        relay: &str,
        hint: &Hint,
        pauses: &PauseWatch,
    ) -> Vec<Self> {
        let of = config.shards;
        let told = Arc::new(AtomicBool::new(false));
        let plan = |index| {
            let spec = SourceSpec {
                table: source.table.clone(),
                pipeline: config.name.clone(),
                mode: config.mode,
                max_retained_wal: config.max_retained_wal,
                progress: config.progress,
                start: config.start,
                companions: companions.to_vec(),
                aggregate_types: config.aggregate_types.clone(),
                ordering: config.options.ordering,
                shard: Shard { index, of },
                lease: config.lease,
                relay: relay.to_owned(),
                columns: source.columns.clone(),
                hint: hint.clone(),
                ..SourceSpec::new(source.url.expose())
            };
            let mut config = config.clone();
            config.options.window = part_of(config.options.window, of);
            config.options.shards = of;
            let label = match of {
                1 => config.name.clone(),
                // No name of a pipeline has a slash.
                _ => format!("{}/{index}", config.name),
            };
            config.sink.pipeline.name.clone_from(&label);
            let watched = Arc::new(Watched::new(&config.name, index, Arc::default()));
            Self { label, spec, config, pauses: pauses.clone(), told: told.clone(), watched }
        };
        (0..of).map(plan).collect()
    }

    /// Runs the shard until a stop or a failure for good.
    pub(super) async fn run(self, shutdown: Shutdown) -> Result<Totals, RelayError> {
        stand_by(&self.label, &self.watched, || self.connect(), shutdown).await
    }

    /// Opens sink and source, for as long as it takes. Dropping the future gives up.
    async fn connect(&self) -> Result<Pipeline, RelayError> {
        // The sink first: whoever waits for a sink must not hold the outbox.
        let Self { label, told, watched, .. } = self;
        let sink = patiently(label, SINK, told, watched, || self.config.sink.connect()).await;
        let sink = match sink {
            Ok(sink) => sink,
            Err(error) => {
                self.note_trouble(&error).await;
                return Err(RelayError::Sink(error));
            }
        };
        watched.has_sink();
        let source = patiently(label, SOURCE, told, watched, || self.spec.connect()).await;
        let source = source.map_err(RelayError::Source)?;
        let pipeline = Pipeline::new(&self.label, source, sink, self.config.options.clone());
        let pipeline = pipeline.sending_to(&self.config.sink_url);
        let pipeline = pipeline.with_pauses(self.pauses.clone());
        Ok(pipeline.counted_by(self.watched.counters.clone()))
    }

    /// Notes why the sink cannot be opened, instead of what was noted before, if the outbox can be
    /// had at once. Otherwise another relay has it, and its own sink is what counts.
    async fn note_trouble(&self, error: &SinkError) {
        let noting = async {
            let source = self.spec.connect().await?;
            let noted = source.note_trouble(Some(&error.message)).await;
            source.give_back().await;
            noted
        };
        match timeout(NOTE_MAX, noting).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(pipeline = self.label, %error, "the trouble is not noted"),
            Err(_) => debug!(pipeline = self.label, "the trouble could not be noted in time"),
        }
    }
}

/// The part of a window that one of so many shards gets.
fn part_of(window: Window, shards: u32) -> Window {
    let shards = usize::try_from(shards).unwrap_or(usize::MAX);
    let part = |whole: usize, min: usize| (whole / shards).max(whole.min(min));
    Window {
        events_max: part(window.events_max, WINDOW_MIN.events_max),
        bytes_max: part(window.bytes_max, WINDOW_MIN.bytes_max),
    }
}

/// Connects and runs a pipeline, and does so again whenever its lease was handed over or lost.
/// Answers what became of the events of all its runs.
pub(super) async fn stand_by<F>(
    pipeline: &str,
    watched: &Watched,
    connect: impl Fn() -> F,
    mut shutdown: Shutdown,
) -> Result<Totals, RelayError>
where
    F: Future<Output = Result<Pipeline, RelayError>>,
{
    let mut totals = Totals::default();
    loop {
        let connected = tokio::select! {
            biased;
            () = shutdown.requested() => return Ok(totals),
            connected = connect() => connected?,
        };
        let status = connected.status();
        watched.runs(connected.status());
        let result = connected.run(shutdown.clone()).await;
        totals += status.borrow().totals;
        let pause = match result {
            Err(PipelineError::HandedOver) => {
                info!(pipeline, "handed over to another relay; standing by");
                watched.set(Stage::StandingBy);
                backoff(HANDED_OVER_PAUSE, HANDED_OVER_PAUSE, 0, random_jitter())
            }
            // At a stop it is the end: what could not be settled will be published again.
            Err(PipelineError::LeaseLost(error)) if !shutdown.is_requested() => {
                let why = error.details();
                warn!(pipeline, error = why, "the pipeline starts anew");
                watched.set(Stage::Connecting { to_sink: false, why: Some(why) });
                backoff(CONNECT_PAUSES.0, CONNECT_PAUSES.0, 0, random_jitter())
            }
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(totals),
        };
        tokio::select! {
            () = shutdown.requested() => {}
            () = sleep(pause) => {}
        }
    }
}

/// Whether an error is worth another try.
trait Passing: fmt::Display {
    fn passes(&self) -> bool;

    /// Whether another relay has it, which is as it should be.
    fn is_held(&self) -> bool;

    /// All that is known about it.
    fn details(&self) -> String;
}

impl Passing for SourceError {
    fn passes(&self) -> bool {
        // Lost: somebody was quicker, which is no reason not to stand by.
        use SourceErrorKind::{Held, Lost, Unavailable};
        matches!(self.kind, Held | Lost | Unavailable)
    }

    fn is_held(&self) -> bool {
        self.kind == SourceErrorKind::Held
    }

    fn details(&self) -> String {
        SourceError::details(self)
    }
}

impl Passing for SinkError {
    fn passes(&self) -> bool {
        matches!(self.kind, FailureKind::Unavailable | FailureKind::Throttled)
    }

    fn is_held(&self) -> bool {
        false
    }

    fn details(&self) -> String {
        self.message.clone()
    }
}

/// Tries until it works or fails for good; says why it waits, once for each reason. `told` is set
/// while it is known that the pipeline stands by.
async fn patiently<T, E: Passing, F: Future<Output = Result<T, E>>>(
    pipeline: &str,
    end: &str,
    told: &AtomicBool,
    watched: &Watched,
    connect: impl Fn() -> F,
) -> Result<T, E> {
    let mut failures = 0;
    let mut reason = String::new();
    loop {
        match connect().await {
            Ok(connected) => {
                if failures > 0 {
                    info!(pipeline, end, "connected");
                }
                return Ok(connected);
            }
            Err(error) if error.passes() => {
                let message = error.details();
                match news(error.is_held(), &message, &mut reason, told) {
                    Some(News::StandsBy) => info!(pipeline, reason = message, "standing by"),
                    Some(News::Waits) => {
                        warn!(pipeline, end, error = message, "waiting until it is available");
                    }
                    None => {}
                }
                watched.set(match error.is_held() {
                    true => Stage::StandingBy,
                    false => Stage::Connecting { to_sink: end == SINK, why: Some(message) },
                });
                // Many relays that wait for one database must not come at the same moment.
                let (initial, max) = CONNECT_PAUSES;
                sleep(backoff(initial, max, failures, random_jitter())).await;
                failures += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// What is worth a line in the log.
#[derive(Debug, PartialEq, Eq)]
enum News {
    StandsBy,
    Waits,
}

/// What is new, after an error: `reason` is why this shard has waited until now.
fn news(is_held: bool, message: &str, reason: &mut String, told: &AtomicBool) -> Option<News> {
    if is_held {
        reason.clear();
        return (!told.swap(true, Relaxed)).then_some(News::StandsBy);
    }
    if reason == message {
        return None;
    }
    message.clone_into(reason);
    told.store(false, Relaxed);
    Some(News::Waits)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connecting_goes_on_while_it_may_work_later() {
        let tries = AtomicU32::new(0);
        let connect = || async {
            match tries.fetch_add(1, Relaxed) {
                0..100 => Err(SourceError::new(SourceErrorKind::Unavailable, "another has it")),
                100 => Ok(()),
                _ => Err(SourceError::new(SourceErrorKind::Unsafe, "damaged")),
            }
        };
        let started = tokio::time::Instant::now();
        let told = AtomicBool::new(false);
        let watched = Watched::new("p", 0, Arc::default());
        patiently("p", SOURCE, &told, &watched, connect).await.unwrap();
        assert_eq!(tries.load(Relaxed), 101);
        let (_, longest) = CONNECT_PAUSES;
        assert!(started.elapsed() > longest * 40, "{:?}", started.elapsed());
        assert!(started.elapsed() < longest * 100, "{:?}", started.elapsed());
        let error = patiently("p", SOURCE, &told, &watched, connect).await.unwrap_err();
        assert_eq!((error.kind, tries.load(Relaxed)), (SourceErrorKind::Unsafe, 102));
    }

    #[test]
    fn a_pipeline_that_stands_by_says_so_once() {
        let told = AtomicBool::new(false);
        let (mut one, mut other) = (String::new(), String::new());
        assert_eq!(news(true, "a has it (shard 0)", &mut one, &told), Some(News::StandsBy));
        assert_eq!(news(true, "a has it (shard 0)", &mut one, &told), None);
        assert_eq!(news(true, "b has it (shard 1)", &mut other, &told), None);
        // After trouble it is news again.
        for reason in ["the server is away", "the password is wrong"] {
            assert_eq!(news(false, reason, &mut one, &told), Some(News::Waits));
            assert_eq!(news(false, reason, &mut one, &told), None);
        }
        assert_eq!(news(true, "a has it (shard 0)", &mut one, &told), Some(News::StandsBy));
        assert_eq!(news(true, "b has it (shard 1)", &mut other, &told), None);
    }

    #[test]
    fn shards_divide_the_window() {
        let window = |events_max, bytes_max| Window { events_max, bytes_max };
        let mib = 1024 * 1024;
        assert_eq!(part_of(window(4096, 16 * mib), 1), window(4096, 16 * mib));
        assert_eq!(part_of(window(4096, 16 * mib), 4), window(1024, 4 * mib));
        assert_eq!(part_of(window(4096, 16 * mib), 256), window(256, mib / 4));
        assert_eq!(part_of(window(100, 1024), 4), window(100, 1024));
    }
}
