//! A pipeline: one source joined to one sink, with progress of its own.
//!
//! All decisions are made by the [engine](engine), which does no I/O. `run.rs` joins it to a real
//! source, sink and clock, in one task:
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
mod intake;
mod lanes;
mod log;
pub mod options;
mod run;
pub mod status;

use tokio::sync::watch;
use tracing::warn;

pub use self::options::{OnDead, Options, Ordering, Retry, Window};
pub use self::status::{State, Status, Totals};

use self::run::Run;
use crate::failure::SinkError;
use crate::shutdown::Shutdown;
use crate::sink::Sink;
use crate::source::{Source, SourceError};

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
        if !matches!(result, Err(PipelineError::Source(_) | PipelineError::Unsettled))
            && let Err(error) = source.close().await
        {
            // Everything is settled; at worst the next start counts this one as a crash.
            warn!(pipeline = name, error = error.details(), "closing the source failed");
        }
        if let Err(error) = sink.close().await {
            warn!(pipeline = name, %error, "closing the sink failed");
        }
        status.send_modify(|status| status.state = State::Stopped);
        result
    }
}
