//! A relay: runs all pipelines of a configuration, in this process, until it is told to stop.
//!
//! Pipelines are independent. Each connects on its own and keeps trying while its database or
//! sink is unavailable, so a relay can be started before them, or as a standby that takes over
//! when another relay lets go of the outbox. When one fails for good, the others go on, and the
//! failure is logged with what to do about it. The relay ends when all of them have, and hands the
//! failures to its caller.
//!
//! ```no_run
//! use postrider_relay::config::{Config, Environment};
//! use postrider_relay::{relay::Relay, shutdown::shutdown};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let text = std::fs::read_to_string("postrider.toml")?;
//! let config = Config::parse(&text, "postrider.toml", &Environment::of_process())?;
//! let (stop, shutdown) = shutdown();
//! let relay = tokio::spawn(Relay::new(config).run(shutdown));
//! // … the application's own work …
//! stop.stop();
//! for outcome in relay.await? {
//!     println!("{}: {:?}", outcome.name, outcome.result);
//! }
//! # Ok(())
//! # }
//! ```

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tracing::{error, info, warn};

use crate::config::{Config, PipelineConfig, SourceConfig};
use crate::failure::{FailureKind, SinkError};
use crate::pipeline::decision::backoff;
use crate::pipeline::{Ordering, Pipeline, PipelineError, Totals};
use crate::shutdown::Shutdown;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::SourceSpec;

/// First and longest pause before a connection is tried again.
const CONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Pipelines that run side by side.
pub struct Relay {
    plans: Vec<Plan>,
}

/// A pipeline that is yet to run.
enum Plan {
    /// It is connected when the relay starts.
    Configured(Box<(SourceConfig, PipelineConfig)>),
    Connected(Box<Pipeline>),
}

/// What became of one pipeline.
#[derive(Debug)]
pub struct Outcome {
    /// The pipeline's name.
    pub name: String,
    /// What it has done, or why it ended before it was told to.
    pub result: Result<Totals, RelayError>,
}

/// Why a pipeline of a relay ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The outbox cannot be opened.
    #[error("cannot open the outbox: {0}")]
    Source(#[source] SourceError),
    /// The sink cannot be opened.
    #[error("cannot open the sink: {0}")]
    Sink(#[source] SinkError),
    /// It stopped while it ran.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// It panicked.
    #[error("the pipeline panicked; this is a bug in postrider")]
    Panicked,
}

impl RelayError {
    /// What the operator can do.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Source(error) => error.hint.as_deref(),
            Self::Sink(_) => None,
            Self::Pipeline(error) => error.hint(),
            Self::Panicked => Some("report it, with the log"),
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.plans.iter().map(Plan::name)).finish()
    }
}

impl Relay {
    /// A relay with the pipelines of a configuration.
    pub fn new(config: Config) -> Self {
        let Config { source, pipelines } = config;
        let plan = |pipeline| Plan::Configured(Box::new((source.clone(), pipeline)));
        Self { plans: pipelines.into_iter().map(plan).collect() }
    }

    /// A relay with pipelines that are connected already.
    pub fn of(pipelines: Vec<Pipeline>) -> Self {
        Self {
            plans: pipelines.into_iter().map(|pipeline| Plan::Connected(pipeline.into())).collect(),
        }
    }

    /// Runs all pipelines until each has ended, by a stop or by itself. Answers what became of
    /// each, in the order they were given.
    pub async fn run(self, shutdown: Shutdown) -> Vec<Outcome> {
        let mut tasks = JoinSet::new();
        let mut indexes: HashMap<Id, usize> = HashMap::new();
        let mut outcomes: Vec<Outcome> = Vec::new();
        for (index, plan) in self.plans.into_iter().enumerate() {
            // Whatever happens to the task, what stands here is true until it has ended.
            outcomes.push(Outcome { name: plan.name(), result: Err(RelayError::Panicked) });
            let task = tasks.spawn(plan.run(shutdown.clone()));
            indexes.insert(task.id(), index);
        }
        while let Some(ended) = tasks.join_next_with_id().await {
            let (id, result) = match ended {
                Ok((id, result)) => (id, result),
                Err(panic) => (panic.id(), Err(RelayError::Panicked)),
            };
            let outcome = &mut outcomes[indexes[&id]];
            // The last one's failure is in the caller's hands at once: once is enough.
            if let Err(error) = &result
                && !tasks.is_empty()
            {
                error!(pipeline = outcome.name, %error, hint = error.hint(), "the pipeline failed");
            }
            outcome.result = result;
        }
        outcomes
    }
}

impl Plan {
    fn name(&self) -> String {
        match self {
            Self::Configured(configured) => configured.1.name.clone(),
            Self::Connected(pipeline) => pipeline.name().to_owned(),
        }
    }

    async fn run(self, mut shutdown: Shutdown) -> Result<Totals, RelayError> {
        let pipeline = match self {
            Self::Connected(pipeline) => *pipeline,
            Self::Configured(configured) => {
                let (source, pipeline) = *configured;
                tokio::select! {
                    connected = connect(&source, pipeline) => connected?,
                    () = shutdown.requested() => return Ok(Totals::default()),
                }
            }
        };
        Ok(pipeline.run(shutdown).await?)
    }
}

/// Opens source and sink, for as long as it takes. Dropping the future gives up.
async fn connect(
    source_config: &SourceConfig,
    config: PipelineConfig,
) -> Result<Pipeline, RelayError> {
    info!(
        pipeline = config.name,
        source = %source_config.url,
        table = %source_config.table,
        sink = %config.sink_url,
        progress = config.progress.as_str(),
        ordering = match config.options.ordering {
            Ordering::Key => "key",
            Ordering::None => "none",
        },
        "starting"
    );
    // The sink first: whoever waits for a sink must not hold the outbox.
    let sink = patiently(&config.name, "sink", || config.sink.connect()).await;
    let sink = sink.map_err(RelayError::Sink)?;
    let spec = SourceSpec {
        url: source_config.url.expose().to_owned(),
        table: source_config.table.clone(),
        pipeline: config.name.clone(),
        progress: config.progress,
        aggregate_types: config.aggregate_types.clone(),
        ordering: config.options.ordering,
        ..SourceSpec::new("")
    };
    let source = patiently(&config.name, "source", || spec.connect()).await;
    let source = source.map_err(RelayError::Source)?;
    Ok(Pipeline::new(config.name, source, sink, config.options))
}

/// Whether an error is worth another try.
trait Passing: fmt::Display {
    fn passes(&self) -> bool;

    /// All that is known about it.
    fn details(&self) -> String;
}

impl Passing for SourceError {
    fn passes(&self) -> bool {
        self.kind == SourceErrorKind::Unavailable
    }

    fn details(&self) -> String {
        SourceError::details(self)
    }
}

impl Passing for SinkError {
    fn passes(&self) -> bool {
        matches!(self.kind, FailureKind::Unavailable | FailureKind::Throttled)
    }

    fn details(&self) -> String {
        self.message.clone()
    }
}

/// Tries until it works or fails for good; says why it waits, once for each reason.
async fn patiently<T, E: Passing, F: Future<Output = Result<T, E>>>(
    pipeline: &str,
    end: &str,
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
                if message != reason {
                    warn!(pipeline, end, error = message, "waiting until it is available");
                    reason = message;
                }
                let (initial, max) = CONNECT_PAUSES;
                tokio::time::sleep(backoff(initial, max, failures, failures.into())).await;
                failures += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use async_trait::async_trait;
    use postrider::Event;

    use super::*;
    use crate::pipeline::Options;
    use crate::shutdown::shutdown;
    use crate::sink::{Message, Sink, SinkCapabilities};
    use crate::sinks::MemorySink;
    use crate::sources::memory::MemoryOutbox;

    fn pipeline(name: &str, outbox: &MemoryOutbox, sink: impl Sink + 'static) -> Pipeline {
        let options = Options { drain: true, ..Options::default() };
        Pipeline::new(name, Box::new(outbox.connect()), Box::new(sink), options)
    }

    fn outbox() -> MemoryOutbox {
        let outbox = MemoryOutbox::new();
        outbox.append([Event::builder("Order", "1", "OrderPlaced").build().unwrap()]);
        outbox
    }

    /// Lets an operator act, or breaks.
    struct BadSink {
        panics: bool,
    }

    #[async_trait]
    impl Sink for BadSink {
        fn capabilities(&self) -> SinkCapabilities {
            assert!(!self.panics, "a broken sink");
            MemorySink::new().capabilities()
        }

        async fn check(&self) -> Result<(), SinkError> {
            match self.panics {
                true => Ok(()),
                false => Err(SinkError::new(FailureKind::Misconfigured, "no such topic")),
            }
        }

        async fn publish(&self, _: &[Message]) -> Vec<Result<(), SinkError>> {
            unreachable!("the check has failed")
        }

        async fn close(self: Box<Self>) -> Result<(), SinkError> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn one_pipelines_failure_does_not_stop_the_others() {
        let (good, sink) = (outbox(), MemorySink::new());
        let relay = Relay::of(vec![
            pipeline("misconfigured", &outbox(), BadSink { panics: false }),
            pipeline("good", &good, sink.clone()),
        ]);
        let (_stop, shutdown) = shutdown();
        let outcomes = relay.run(shutdown).await;
        assert_eq!(outcomes[0].name, "misconfigured");
        let error = outcomes[0].result.as_ref().unwrap_err();
        assert!(error.to_string().contains("no such topic"), "{error}");
        assert!(error.hint().is_some());
        assert_eq!(outcomes[1].name, "good");
        assert_eq!(outcomes[1].result.as_ref().unwrap().delivered, 1);
        assert_eq!(sink.count(), 1);
    }

    #[tokio::test]
    async fn a_pipelines_panic_stays_its_own() {
        let relay = Relay::of(vec![
            pipeline("good", &outbox(), MemorySink::new()),
            pipeline("broken", &outbox(), BadSink { panics: true }),
        ]);
        let (_stop, shutdown) = shutdown();
        let outcomes = relay.run(shutdown).await;
        assert!(outcomes[0].result.is_ok());
        assert!(matches!(outcomes[1].result, Err(RelayError::Panicked)));
    }

    #[tokio::test]
    async fn it_runs_until_it_is_told_to_stop() {
        let (outbox, sink) = (MemoryOutbox::new(), MemorySink::new());
        let source = Box::new(outbox.connect());
        let running = Pipeline::new("p", source, Box::new(sink.clone()), Options::default());
        let (stop, shutdown) = shutdown();
        let relay = tokio::spawn(Relay::of(vec![running]).run(shutdown));
        outbox.append([Event::builder("Order", "1", "OrderPlaced").build().unwrap()]);
        sink.wait_for(1).await;
        stop.stop();
        let outcomes = relay.await.unwrap();
        assert_eq!(outcomes[0].result.as_ref().unwrap().delivered, 1);
    }

    #[tokio::test]
    async fn connecting_goes_on_while_it_may_work_later() {
        let tries = Arc::new(AtomicU32::new(0));
        let connect = || async {
            match tries.fetch_add(1, Relaxed) {
                0..2 => Err(SourceError::new(SourceErrorKind::Unavailable, "another has it")),
                2 => Ok(()),
                _ => Err(SourceError::new(SourceErrorKind::Unsafe, "damaged")),
            }
        };
        patiently("p", "source", connect).await.unwrap();
        assert_eq!(tries.load(Relaxed), 3);
        let error = patiently("p", "source", connect).await.unwrap_err();
        assert_eq!((error.kind, tries.load(Relaxed)), (SourceErrorKind::Unsafe, 4));
    }
}
