//! Why an event could not be published: five kinds, each naming the reaction.
//!
//! The kind is all that the pipeline looks at; `pipeline::decision` is
//! the one place that turns it into an action.

use std::fmt;
use std::time::Duration;

/// What kind of trouble it is, and so what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The sink cannot be reached now. Opens the breaker; counts no attempt.
    Unavailable,
    /// The sink asks to slow down. Waits as told; counts no attempt.
    Throttled,
    /// This event can never be accepted. Parks it.
    Rejected,
    /// This event failed and may work later. Counts an attempt, parks it after the last one.
    Failed,
    /// An operator must act. Stops this pipeline.
    Misconfigured,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Unavailable, Self::Throttled, Self::Rejected, Self::Failed, Self::Misconfigured];

    /// The kind's name in tables, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Throttled => "throttled",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Misconfigured => "misconfigured",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a sink answers for an event that it did not make durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SinkError {
    /// What to do about it.
    pub kind: FailureKind,
    /// What happened, and what would mend it. Holds no payload and no secret.
    pub message: String,
    /// How long the sink asks to be left alone.
    pub retry_after: Option<Duration>,
}

impl SinkError {
    /// An error that asks for no particular pause.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after: None }
    }

    /// Adds how long the sink asks to be left alone.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }
}

/// Why an event is set aside: what an operator sees in the dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind of the last error.
    pub kind: FailureKind,
    /// The last error.
    pub message: String,
    /// How often publishing has failed, this time included.
    pub attempts: u32,
}
