//! Why an event could not be published: six kinds, each naming the reaction.
//!
//! The pipeline looks at the kind and at the few facts beside it; `pipeline::decision` is the one
//! place that turns them into an action.

use std::fmt;
use std::time::Duration;

/// What kind of trouble it is, and so what to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The sink cannot be reached now. Opens the breaker; counts no attempt.
    Unavailable,
    /// The sink asks to slow down. Waits as told; counts no attempt.
    Throttled,
    /// This event can never be accepted. Parks it, unless the target says so
    /// ([`by_target`](SinkError::by_target)) to one key after the other.
    Rejected,
    /// The target refuses this event, and it may be the fault of this event or of everybody: 403,
    /// a redirect, a topic that is not there. Counts an attempt, parks it after the last one; from
    /// many keys in a row it is an outage.
    Refused,
    /// This event failed and may work later. Counts an attempt, parks it after the last one.
    Failed,
    /// An operator must act. Stops this pipeline.
    Misconfigured,
}

impl FailureKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Unavailable,
        Self::Throttled,
        Self::Rejected,
        Self::Refused,
        Self::Failed,
        Self::Misconfigured,
    ];

    /// The kind's name in tables, logs and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Throttled => "throttled",
            Self::Rejected => "rejected",
            Self::Refused => "refused",
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
    /// Several messages were refused together, and it need not be because of this one. The
    /// pipeline sends fewer of them at a time, until one is refused by itself.
    pub in_company: bool,
    /// The trouble is the message's topic: it is not there, or not for us. If the event chose the
    /// topic, the pipeline takes [`Misconfigured`](FailureKind::Misconfigured) for
    /// [`Refused`](FailureKind::Refused).
    pub about_topic: bool,
    /// The target said so, about this event, and the sink cannot know whether it would say the
    /// same about every event. Only looked at if it is [`Rejected`](FailureKind::Rejected).
    pub by_target: bool,
}

impl SinkError {
    /// An error that asks for no particular pause.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retry_after: None,
            in_company: false,
            about_topic: false,
            by_target: false,
        }
    }

    /// Says whether several messages were refused together, of which another one may be to
    /// blame.
    #[must_use]
    pub fn with_company(mut self, in_company: bool) -> Self {
        self.in_company = in_company;
        self
    }

    /// An operator must act on the message's topic, or whoever has chosen it.
    pub fn of_topic(message: impl Into<String>) -> Self {
        Self { about_topic: true, ..Self::new(FailureKind::Misconfigured, message) }
    }

    /// The target said that it will never accept this event.
    pub fn rejected_by_target(message: impl Into<String>) -> Self {
        Self { by_target: true, ..Self::new(FailureKind::Rejected, message) }
    }

    /// Takes in whether the message's topic is the one that the configuration names for all
    /// events. A topic that came from the event is that event's matter.
    pub fn judge_topic(&mut self, is_fixed: bool) {
        if self.about_topic && !is_fixed && self.kind == FailureKind::Misconfigured {
            self.kind = FailureKind::Refused;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_the_events_matter_unless_it_is_fixed() {
        let kind = |mut error: SinkError, is_fixed| {
            error.judge_topic(is_fixed);
            error.kind
        };
        assert_eq!(kind(SinkError::of_topic("no"), true), FailureKind::Misconfigured);
        assert_eq!(kind(SinkError::of_topic("no"), false), FailureKind::Refused);
        for other in FailureKind::ALL {
            assert_eq!(kind(SinkError::new(other, "no"), false), other);
        }
    }
}
