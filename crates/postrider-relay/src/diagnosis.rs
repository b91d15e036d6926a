//! What may be wrong with an outbox, its database, the configuration and the sinks: the checks of
//! `postrider doctor`.
//!
//! A check answers with [`Finding`]s, one at least, each with what was found and what would mend
//! it. It changes nothing, is bounded in time, and never stops another check: one that could not be
//! made is a finding, too ([`Level::Skip`]). Only [`Diagnose::mend`] changes something, and only
//! what is safe at any time ([`Remedy`]).

mod configuration;
mod sinks;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::admin::OutboxStatus;
use crate::config::{Config, PIPELINE_DEFAULT};
use crate::health::{self, Thresholds};
use crate::source::SourceError;
use crate::sources::{MAX_RETAINED_WAL_DEFAULT, Mode, Progress};

pub use self::configuration::{configuration, exposure, secrets};
pub use self::sinks::{TOPIC_EVENTS, sinks};

/// Transactions that are open for longer are reported, by default.
pub const OPEN_FOR_DEFAULT: Duration = Duration::from_secs(300);

/// Examines one database with an outbox.
#[async_trait]
pub trait Diagnose: Send + Sync {
    /// Makes all checks, in the order in which they are shown.
    async fn findings(&self, asked: &Asked) -> Vec<Finding>;

    /// Does what a finding's fix says. Only for one with a [`Remedy`].
    async fn mend(&self, fix: &Fix) -> Result<(), SourceError>;
}

/// What the outbox is to be good for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The flags that name this outbox in a command.
    pub flags: String,
    /// The pipelines of the configuration; `None` without one.
    pub pipelines: Option<Vec<Wanted>>,
    /// The relay prunes, too.
    pub prunes: bool,
    /// The role that writes events.
    pub writer: Option<String>,
    /// Transactions that are open for longer are reported. Defaults to [`OPEN_FOR_DEFAULT`].
    pub open_for: Duration,
    /// From when on what waits is reported.
    pub thresholds: Thresholds,
}

/// A pipeline that is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// How events are read.
    pub mode: Mode,
    /// How progress is kept.
    pub progress: Progress,
    /// How much of the server's log may be kept for it, in bytes.
    pub max_retained_wal: u64,
}

impl Asked {
    /// What is asked without a configuration.
    pub fn new(flags: impl Into<String>) -> Self {
        Self {
            flags: flags.into(),
            pipelines: None,
            prunes: false,
            writer: None,
            open_for: OPEN_FOR_DEFAULT,
            thresholds: Thresholds::default(),
        }
    }

    /// What a configuration asks for.
    pub fn by(flags: impl Into<String>, config: &Config) -> Self {
        let wanted = config.pipelines.iter().map(|pipeline| Wanted {
            name: pipeline.name.clone(),
            mode: pipeline.mode,
            progress: pipeline.progress,
            max_retained_wal: pipeline.max_retained_wal,
        });
        let pipelines = Some(wanted.collect());
        Self { pipelines, prunes: config.prune.is_some(), ..Self::new(flags) }
    }

    /// The pipelines of the configuration, or those that the database knows; one by the defaults
    /// if it knows none.
    pub fn wanted(&self, known: Option<&OutboxStatus>) -> Vec<Wanted> {
        if let Some(wanted) = &self.pipelines {
            return wanted.clone();
        }
        let known = known.iter().flat_map(|status| &status.pipelines).map(|pipeline| Wanted {
            name: pipeline.name.clone(),
            mode: if pipeline.slot.is_some() { Mode::Cdc } else { Mode::Poll },
            progress: pipeline
                .progress
                .as_deref()
                .and_then(Progress::from_name)
                .unwrap_or_default(),
            max_retained_wal: MAX_RETAINED_WAL_DEFAULT,
        });
        let mut wanted: Vec<Wanted> = known.collect();
        if wanted.is_empty() {
            wanted.push(Wanted {
                name: PIPELINE_DEFAULT.to_owned(),
                mode: Mode::default(),
                progress: Progress::default(),
                max_retained_wal: MAX_RETAINED_WAL_DEFAULT,
            });
        }
        wanted
    }
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check, such as `autovacuum`.
    pub check: &'static str,
    /// What of several it is about: a pipeline, an index.
    pub subject: Option<String>,
    /// How bad it is.
    pub level: Level,
    /// What was found. Holds no payload and no secret.
    pub found: String,
    /// What would mend it.
    pub fix: Option<Fix>,
}

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Ok,
    /// It could not be found out.
    Skip,
    /// It works, and could be safer or faster.
    Warn,
    /// Events are late or lost, or will be.
    Fail,
}

/// What would mend something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// The SQL, the command, or the words.
    pub text: String,
    /// Which of these it is.
    pub kind: FixKind,
    /// What `--fix` does; `None` means that it is left to the operator.
    pub remedy: Option<Remedy>,
}

/// What the text of a fix is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FixKind {
    /// Words.
    Advice,
    /// A command for a shell.
    Command,
    /// One statement.
    Sql,
}

/// What is safe at any time, also while relays run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The migrations that are lacking are applied.
    Migrate,
    /// The statement is run.
    Run,
}

impl Level {
    /// The name in data.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skip => "skip",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FixKind {
    /// The name in data.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Advice => "advice",
            Self::Command => "command",
            Self::Sql => "sql",
        }
    }
}

impl Fix {
    /// Something to do, in words.
    pub fn advice(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FixKind::Advice, remedy: None }
    }

    /// A command for a shell.
    pub fn command(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FixKind::Command, remedy: None }
    }

    /// One statement.
    pub fn sql(text: impl Into<String>) -> Self {
        Self { text: text.into(), kind: FixKind::Sql, remedy: None }
    }

    /// One statement that is safe at any time.
    pub fn safe_sql(text: impl Into<String>) -> Self {
        Self { remedy: Some(Remedy::Run), ..Self::sql(text) }
    }

    /// The migrations that are lacking.
    pub fn migrate(flags: &str) -> Self {
        let command = Self::command(format!("postrider migrate {flags}"));
        Self { remedy: Some(Remedy::Migrate), ..command }
    }
}

impl Finding {
    fn new(check: &'static str, level: Level, found: impl Into<String>) -> Self {
        Self { check, subject: None, level, found: found.into(), fix: None }
    }

    /// It is as it should be.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, found)
    }

    /// It could not be found out.
    pub fn skip(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Skip, found)
    }

    /// It could be better.
    pub fn warn(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Warn, found)
    }

    /// It is wrong.
    pub fn fail(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Level::Fail, found)
    }

    /// An error of the database: it is wrong, with what would mend it.
    pub fn error(check: &'static str, error: &SourceError) -> Self {
        let without_hint = SourceError::new(error.kind, error.message.clone());
        let causes = causes(error);
        let finding = Self::fail(check, format!("{without_hint}{causes}"));
        match &error.hint {
            Some(hint) => finding.with(Fix::advice(hint.clone())),
            None => finding,
        }
    }

    /// Says what of several it is about.
    #[must_use]
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Says what would mend it.
    #[must_use]
    pub fn with(mut self, fix: Fix) -> Self {
        self.fix = Some(fix);
        self
    }
}

/// What is below an error, each after a colon.
fn causes(error: &SourceError) -> String {
    let mut causes = String::new();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        causes.push_str(&format!(": {error}"));
        cause = error.source();
    }
    causes
}

/// How the pipelines of an outbox stand: one finding for each reason why one is not green.
pub fn pipelines(status: &OutboxStatus, asked: &Asked) -> Vec<Finding> {
    const CHECK: &str = "pipeline";
    let mut findings = Vec::new();
    for pipeline in &status.pipelines {
        let reasons = health::reasons(pipeline, &asked.thresholds, std::time::SystemTime::now());
        let is_wanted = |wanted: &Vec<Wanted>| wanted.iter().any(|it| it.name == pipeline.name);
        if pipeline.progress.is_some() && !asked.pipelines.as_ref().is_none_or(is_wanted) {
            let found = "it has read the outbox before, and is not in the configuration: what it \
                         has not published is kept for it, and so is the log if it has a slot";
            let fix = "run it again, or forget it: remove its rows from the tables of checkpoints \
                       and leases";
            findings.push(Finding::warn(CHECK, found).about(&pipeline.name).with(Fix::advice(fix)));
        }
        for reason in &reasons {
            let found = Finding::new(CHECK, reason.level, &reason.what).about(&pipeline.name);
            findings.push(match &reason.command {
                Some(command) => found.with(Fix::command(format!("{command} {}", asked.flags))),
                None => found,
            });
        }
        if reasons.is_empty() {
            let found = match pipeline.unpublished {
                0 => "nothing waits".to_owned(),
                1 => "1 event waits, and not for long".to_owned(),
                waiting => format!("{waiting} events wait, and none for long"),
            };
            findings.push(Finding::ok(CHECK, found).about(&pipeline.name));
        }
    }
    findings
}
