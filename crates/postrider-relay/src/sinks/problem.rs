//! A mistake in a sink's options, and what becomes of several.

use std::fmt;

use crate::sink::{FailureKind, SinkError};

/// A mistake in a sink's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The option's name, such as `url`.
    pub option: String,
    /// What is wrong with it. Holds no secret.
    pub message: String,
    /// What to write instead, where that is known.
    pub hint: Option<String>,
}

impl Problem {
    /// A mistake in one option.
    pub fn new(option: impl Into<String>, message: impl Into<String>) -> Self {
        Self { option: option.into(), message: message.into(), hint: None }
    }

    /// Adds what to write instead.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// A problem for each option that is zero and must not be.
#[cfg(any(
    feature = "http",
    feature = "kafka",
    feature = "nats",
    feature = "rabbitmq",
    feature = "redis"
))]
pub(super) fn zeros<const N: usize>(
    options: [(&'static str, bool); N],
) -> impl Iterator<Item = Problem> {
    let zeros = options.into_iter().filter(|(_, is_zero)| *is_zero);
    zeros.map(|(option, _)| Problem::new(option, "must be more than zero"))
}

/// Why a sink with such options cannot connect.
pub(super) fn misconfigured(problems: Vec<Problem>) -> SinkError {
    let texts: Vec<_> = problems.iter().map(ToString::to_string).collect();
    SinkError::new(FailureKind::Misconfigured, texts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_every_problem() {
        let problems =
            vec![Problem::new("a", "is wrong").with_hint("write b"), Problem::new("c", "is, too")];
        let error = misconfigured(problems);
        assert_eq!(error.kind, FailureKind::Misconfigured);
        assert_eq!(error.message, "a: is wrong; write b; c: is, too");
    }
}
