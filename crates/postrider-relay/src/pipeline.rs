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
//!
//! # The lease
//!
//! What a run may send is bounded by its source's [`Lease`](crate::source::Lease), because
//! another relay may take over when it ends:
//!
//! - A lease that cannot be renewed is used up to its end. No call of the sink begins at or after
//!   it, and one that is under way is dropped there: what became of its events is unknown, so
//!   they are neither delivered nor failed, and whoever has the outbox next sends them again. The
//!   run ends with [`PipelineError::LeaseLost`].
//! - A source that was told that another relay *has* taken over
//!   ([`SourceErrorKind::Lost`]) ends the run in the same way, at once. Nothing more is settled,
//!   and the source is not closed: there is nothing left to give back.
//! - A run that the source ends for good gives the lease back without closing the source. The
//!   error was told, so it is no crash to the next start.
//! - A lease that another relay *wants* is given back in order: the run stops as it does at a
//!   shutdown, and ends with [`PipelineError::HandedOver`].
//!
//! The [relay](crate::relay) then connects anew, and stands by.

pub mod breaker;
mod calling;
pub mod care;
mod company;
pub mod decision;
pub mod engine;
mod intake;
mod lanes;
#[cfg(test)]
pub(crate) mod leased;
mod log;
pub mod options;
mod run;
pub mod status;
mod unsettled;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

pub use self::options::{OnDead, Options, Ordering, Retry, Window};
pub use self::status::{State, Status, Totals};

pub(crate) use self::intake::hash as lane_of;

use self::run::Run;
use crate::failure::SinkError;
use crate::pauses::PauseWatch;
use crate::secret::SecretUrl;
use crate::shutdown::Shutdown;
use crate::sink::Sink;
use crate::source::{Source, SourceError, SourceErrorKind};
use crate::telemetry::counters::Counters;
use crate::telemetry::spans::Spans;

/// How long the end of a run may wait until a lease is given back.
const GIVE_BACK_MAX: Duration = Duration::from_secs(1);

/// One source joined to one sink.
pub struct Pipeline {
    name: String,
    source: Box<dyn Source>,
    sink: Box<dyn Sink>,
    options: Options,
    pauses: PauseWatch,
    status: watch::Sender<Status>,
    counters: Arc<Counters>,
    /// Where the sink is, as it may be shown.
    shown_url: Option<String>,
}

/// Why a pipeline ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// Another relay wanted the lease and can have it now: everything is settled and closed.
    #[error("the pipeline was handed over to another relay")]
    HandedOver,
    /// The lease ran out, or another relay has it. What was under way will be published again.
    #[error("the lease was lost: {0}")]
    LeaseLost(#[source] SourceError),
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
            Self::HandedOver => Some("connect again to stand by"),
            Self::LeaseLost(error) | Self::Source(error) => error.hint.as_deref(),
            Self::Sink(_) => Some("mend what the message names, then start the relay again"),
            Self::Unsettled => None,
        }
    }
}

impl From<SourceError> for PipelineError {
    fn from(error: SourceError) -> Self {
        match error.kind {
            SourceErrorKind::Lost => Self::LeaseLost(error),
            SourceErrorKind::Held
            | SourceErrorKind::Misconfigured
            | SourceErrorKind::Unavailable
            | SourceErrorKind::Unsafe => Self::Source(error),
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
        let (pauses, counters) = (PauseWatch::never(), Arc::default());
        let name = name.into();
        Self { name, source, sink, options, pauses, status, counters, shown_url: None }
    }

    /// Lets an operator stop the pipeline, and keys of it.
    #[must_use]
    pub fn with_pauses(self, pauses: PauseWatch) -> Self {
        Self { pauses, ..self }
    }

    /// Says where the sink is, for the spans of its calls.
    #[must_use]
    pub fn sending_to(self, url: &SecretUrl) -> Self {
        Self { shown_url: Some(url.to_string()), ..self }
    }

    /// The pipeline's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Follows the pipeline while it runs.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// Counts with counters that outlive this run.
    #[must_use]
    pub fn counted_by(self, counters: Arc<Counters>) -> Self {
        Self { counters, ..self }
    }

    /// What is counted while it runs.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// Publishes events until a stop is asked for or, with [`Options::drain`], until nothing is
    /// pending. Answers what became of them; after an error, [`status`](Self::status) has that.
    pub async fn run(self, shutdown: Shutdown) -> Result<Totals, PipelineError> {
        let Self { name, source, sink, options, pauses, status, counters, shown_url } = self;
        let topic = &options.encoding.route.topic;
        let spans = Spans::new(&name, &sink.capabilities(), topic, shown_url.as_deref());
        let told = (&status, &*counters, &spans);
        let result = Run::start(&name, &*source, &*sink, &options, pauses, told, shutdown).await;
        match &result {
            Ok(_) | Err(PipelineError::HandedOver | PipelineError::Sink(_)) => {
                if let Err(error) = source.close().await {
                    // Everything is settled; at worst the next start counts this one as a crash.
                    warn!(pipeline = name, error = error.details(), "closing the source failed");
                }
            }
            // No orderly end, and no crash either: why it has ended is told. If this is the end of
            // the process, too, nobody else gives it back.
            Err(PipelineError::Source(_) | PipelineError::Unsettled) => {
                drop(timeout(GIVE_BACK_MAX, source.give_back()).await);
            }
            Err(PipelineError::LeaseLost(_)) => drop(source),
        }
        if let Err(error) = sink.close().await {
            warn!(pipeline = name, %error, "closing the sink failed");
        }
        counters.ended();
        status.send_modify(|status| status.state = State::Stopped);
        result
    }
}
