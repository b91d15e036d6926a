//! Errors as the user sees them: what, why, the fix, a code and an exit code.
//!
//! This is the one place that turns the errors of the library into codes.

use std::error::Error as StdError;
use std::io;

use postrider_relay::config::Problems;
use postrider_relay::failure::{FailureKind, SinkError};
use postrider_relay::pipeline::PipelineError;
use postrider_relay::relay::RelayError;
use postrider_relay::source::{NotPermitted, SourceError, SourceErrorKind};
use serde::Serialize;

/// What an error is called; people script against both the names and the exit codes. Each has a page in
/// `docs/errors`, which `postrider explain` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// `verify`: the broker does not hold what the outbox says.
    BrokerDiffers,
    /// `doctor`: a check failed.
    ChecksFailed,
    Configuration,
    /// `reconcile`: events should have been published and were not.
    EventsMissed,
    Failure,
    NotPermitted,
    Partial,
    /// `migrate verify`: the tables are not as the migrations make them.
    SchemaDiffers,
    SinkFailed,
    SinkMisconfigured,
    SinkRefused,
    SinkRejected,
    SinkThrottled,
    SinkUnavailable,
    SourceHeld,
    SourceMisconfigured,
    SourceUnavailable,
    Unsafe,
    Usage,
}

impl Code {
    /// All of them, by name.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 19] = [
        Self::BrokerDiffers,
        Self::ChecksFailed,
        Self::Configuration,
        Self::EventsMissed,
        Self::Failure,
        Self::NotPermitted,
        Self::Partial,
        Self::SchemaDiffers,
        Self::SinkFailed,
        Self::SinkMisconfigured,
        Self::SinkRefused,
        Self::SinkRejected,
        Self::SinkThrottled,
        Self::SinkUnavailable,
        Self::SourceHeld,
        Self::SourceMisconfigured,
        Self::SourceUnavailable,
        Self::Unsafe,
        Self::Usage,
    ];

    /// Its name in data and documents.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::BrokerDiffers => "broker_differs",
            Self::ChecksFailed => "checks_failed",
            Self::Configuration => "configuration",
            Self::EventsMissed => "events_missed",
            Self::Failure => "failure",
            Self::NotPermitted => "not_permitted",
            Self::Partial => "partial",
            Self::SchemaDiffers => "schema_differs",
            Self::SinkFailed => "sink_failed",
            Self::SinkMisconfigured => "sink_misconfigured",
            Self::SinkRefused => "sink_refused",
            Self::SinkRejected => "sink_rejected",
            Self::SinkThrottled => "sink_throttled",
            Self::SinkUnavailable => "sink_unavailable",
            Self::SourceHeld => "source_held",
            Self::SourceMisconfigured => "source_misconfigured",
            Self::SourceUnavailable => "source_unavailable",
            Self::Unsafe => "unsafe",
            Self::Usage => "usage",
        }
    }

    /// What the process answers.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Failure | Self::SinkFailed | Self::SinkRefused | Self::SinkRejected => 1,
            Self::Usage => 2,
            Self::Configuration | Self::SinkMisconfigured | Self::SourceMisconfigured => 3,
            Self::SinkThrottled
            | Self::SinkUnavailable
            | Self::SourceHeld
            | Self::SourceUnavailable => 4,
            Self::NotPermitted => 5,
            Self::BrokerDiffers | Self::ChecksFailed | Self::SchemaDiffers | Self::Unsafe => 6,
            Self::EventsMissed | Self::Partial => 7,
        }
    }
}

/// Why a command ends without doing all it was asked.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) code: Code,
    /// What went wrong.
    pub(crate) what: String,
    /// The causes below, the nearest first.
    pub(crate) why: Vec<String>,
    /// What to do about it, a command if possible.
    pub(crate) fix: Option<String>,
    /// Mistakes in the configuration.
    pub(crate) problems: Option<Problems>,
}

impl CliError {
    pub(crate) fn new(code: Code, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), why: Vec::new(), fix: None, problems: None }
    }

    /// Adds what to do about it.
    pub(crate) fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// Adds the causes below.
    pub(crate) fn caused_by(mut self, error: &(dyn StdError + 'static)) -> Self {
        self.why.push(error.to_string());
        self.why.extend(causes(error));
        self
    }

    /// A file that could not be read or written.
    pub(crate) fn file(what: String, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::PermissionDenied => Code::NotPermitted,
            _ => Code::Failure,
        };
        Self::new(code, what).caused_by(error)
    }

    /// Mistakes in the configuration.
    pub(crate) fn problems(problems: Problems) -> Self {
        let what = match problems.iter().count() {
            1 => "the configuration has a problem".to_owned(),
            count => format!("the configuration has {count} problems"),
        };
        Self { problems: Some(problems), ..Self::new(Code::Configuration, what) }
    }
}

impl From<SourceError> for CliError {
    fn from(error: SourceError) -> Self {
        let not_permitted = is_permission_denied(&error);
        let code = match error.kind {
            _ if not_permitted => Code::NotPermitted,
            SourceErrorKind::Held | SourceErrorKind::Lost => Code::SourceHeld,
            SourceErrorKind::Misconfigured => Code::SourceMisconfigured,
            SourceErrorKind::Unavailable => Code::SourceUnavailable,
            SourceErrorKind::Unsafe => Code::Unsafe,
        };
        let why = causes(&error);
        Self { why, fix: error.hint.clone(), ..Self::new(code, error.message) }
    }
}

impl From<SinkError> for CliError {
    fn from(error: SinkError) -> Self {
        let code = match error.kind {
            FailureKind::Failed => Code::SinkFailed,
            FailureKind::Misconfigured => Code::SinkMisconfigured,
            FailureKind::Refused => Code::SinkRefused,
            FailureKind::Rejected => Code::SinkRejected,
            FailureKind::Throttled => Code::SinkThrottled,
            FailureKind::Unavailable => Code::SinkUnavailable,
        };
        // A sink's message says what would mend it behind the first semicolon.
        match error.message.split_once("; ") {
            Some((what, fix)) => Self::new(code, what).with_fix(fix),
            None => Self::new(code, error.message),
        }
    }
}

impl From<RelayError> for CliError {
    fn from(error: RelayError) -> Self {
        match error {
            RelayError::Source(error) | RelayError::Pipeline(PipelineError::Source(error)) => {
                error.into()
            }
            RelayError::Sink(error) => error.into(),
            RelayError::Pipeline(ref error @ PipelineError::Sink(ref cause)) => {
                let cause = Self::from(cause.clone());
                let hint = || error.hint().map(str::to_owned);
                Self { fix: cause.fix.or_else(hint), ..cause }
            }
            RelayError::Hint { .. } | RelayError::Http { .. } => {
                let hint = error.hint().map(str::to_owned);
                Self { fix: hint, ..Self::new(Code::Configuration, error.to_string()) }
            }
            RelayError::Pipeline(
                PipelineError::HandedOver | PipelineError::LeaseLost(_) | PipelineError::Unsettled,
            )
            | RelayError::Panicked => {
                let hint = error.hint().map(str::to_owned);
                Self { fix: hint, ..Self::new(Code::Failure, error.to_string()) }
            }
        }
    }
}

/// The causes below an error, the nearest first.
fn causes(error: &(dyn StdError + 'static)) -> Vec<String> {
    let chain = std::iter::successors(Some(error), |error| (*error).source());
    let mut texts: Vec<String> = chain.map(ToString::to_string).collect();
    // Some only repeat the one above: "database is locked", "Error code 5: database is locked".
    texts.dedup_by(|below, above| below.ends_with(above.as_str()));
    texts.split_off(1)
}

fn is_permission_denied(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (*error).source()).any(|error| {
        let io = error.downcast_ref::<io::Error>();
        error.is::<NotPermitted>()
            || io.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    })
}

/// An error as JSON.
#[derive(Serialize)]
pub(crate) struct ErrorObject<'e> {
    error: &'e str,
    code: &'static str,
    pub(crate) exit_code: u8,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    why: &'e [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'e str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<ProblemObject<'e>>,
}

/// One mistake in the configuration as JSON.
#[derive(Serialize)]
struct ProblemObject<'e> {
    at: String,
    what: &'e str,
    fix: &'e str,
}

impl CliError {
    /// The error as it is printed with `--json`.
    pub(crate) fn to_object(&self) -> ErrorObject<'_> {
        let problems = self.problems.iter().flat_map(Problems::iter);
        ErrorObject {
            error: &self.what,
            code: self.code.as_str(),
            exit_code: self.code.exit_code(),
            why: &self.why,
            fix: self.fix.as_deref(),
            problems: problems
                .map(|problem| ProblemObject {
                    at: problem.at.to_string(),
                    what: &problem.what,
                    fix: &problem.fix,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_has_its_code() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let role = NotPermitted("permission denied for table outbox".to_owned());
        let source = |kind| SourceError::new(kind, "x");
        let sink = |kind| CliError::from(SinkError::new(kind, "x")).code;
        let cases = [
            (CliError::from(source(SourceErrorKind::Unavailable)).code, 4),
            (CliError::from(source(SourceErrorKind::Misconfigured)).code, 3),
            (CliError::from(source(SourceErrorKind::Misconfigured).with_source(denied)).code, 5),
            (CliError::from(source(SourceErrorKind::Misconfigured).with_source(role)).code, 5),
            (CliError::from(source(SourceErrorKind::Unsafe)).code, 6),
            (sink(FailureKind::Unavailable), 4),
            (sink(FailureKind::Throttled), 4),
            (sink(FailureKind::Refused), 1),
            (sink(FailureKind::Rejected), 1),
            (sink(FailureKind::Failed), 1),
            (sink(FailureKind::Misconfigured), 3),
            (CliError::from(RelayError::Panicked).code, 1),
            (CliError::from(RelayError::Pipeline(PipelineError::Unsettled)).code, 1),
        ];
        for (code, expected) in cases {
            assert_eq!(code.exit_code(), expected, "{code:?}");
        }
    }

    #[test]
    fn an_error_keeps_its_causes_and_its_fix() {
        let cause = io::Error::other("the disk is full");
        let error = SourceError::new(SourceErrorKind::Unavailable, "cannot settle")
            .with_hint("free some space")
            .with_source(cause);
        let error = CliError::from(RelayError::Pipeline(PipelineError::Source(error)));
        assert_eq!(error.what, "cannot settle");
        assert_eq!(error.why, ["the disk is full"]);
        assert_eq!(error.fix.as_deref(), Some("free some space"));
    }

    #[test]
    fn what_a_sink_advises_is_the_fix() {
        let stopped = |message: &str| {
            let error = SinkError::new(FailureKind::Misconfigured, message);
            CliError::from(RelayError::Pipeline(PipelineError::Sink(error)))
        };
        let error = stopped("answered 401; check the credentials");
        assert_eq!(error.what, "answered 401");
        assert_eq!(error.fix.as_deref(), Some("check the credentials"));
        assert!(stopped("no such topic").fix.is_some());
    }

    #[test]
    fn a_cause_that_says_nothing_new_is_left_out() {
        let locked = io::Error::other(io::Error::other("locked"));
        let error = SourceError::new(SourceErrorKind::Unavailable, "locked").with_source(locked);
        assert!(CliError::from(error).why.is_empty());
    }
}
