//! What is wrong with a configuration: every mistake at once, each with its place and its fix.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use crate::secret::MASK;

/// Secrets shorter than this are not searched for in messages: they occur in ordinary words.
const SECRET_BYTES_MIN: usize = 4;

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// In the configuration file.
    File {
        /// The file's name.
        name: Arc<str>,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
    },
    /// In an environment variable of this name.
    Environment(String),
    /// In a command line flag of this name.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One mistake in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where it is.
    pub at: Origin,
    /// What is wrong.
    pub what: String,
    /// The line with a mark under the place, for mistakes in the syntax.
    pub excerpt: Option<String>,
    /// What to do about it.
    pub fix: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)?;
        if let Some(excerpt) = &self.excerpt {
            write!(f, "\n{excerpt}")?;
        }
        write!(f, "\n  fix: {}", self.fix)
    }
}

/// All mistakes in a configuration, in the order of the file; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The mistakes.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Collects mistakes while a configuration is read, and the secrets that none of them may show.
#[derive(Default)]
pub(super) struct Report {
    problems: RefCell<Vec<Problem>>,
    secrets: RefCell<Vec<String>>,
}

impl Report {
    /// Notes a mistake.
    pub(super) fn add(&self, at: &Origin, what: impl Into<String>, fix: impl Into<String>) {
        let (what, fix) = (what.into(), fix.into());
        self.problems.borrow_mut().push(Problem { at: at.clone(), what, excerpt: None, fix });
    }

    /// Notes a mistake in the syntax.
    pub(super) fn add_problem(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    /// Notes a value that must not be shown.
    pub(super) fn add_secret(&self, secret: &str) {
        if secret.len() >= SECRET_BYTES_MIN {
            self.secrets.borrow_mut().push(secret.to_owned());
        }
    }

    /// Whether anything is wrong so far.
    pub(super) fn is_empty(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// Everything that is wrong, sorted and without secrets; `None` if nothing is.
    pub(super) fn into_problems(self) -> Option<Problems> {
        let mut problems = self.problems.into_inner();
        let mut secrets = self.secrets.into_inner();
        // The longest first, so that a secret inside another does not leave the rest of it.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        let redact = |text: &mut String| {
            for secret in &secrets {
                if text.contains(secret.as_str()) {
                    *text = text.replace(secret.as_str(), MASK);
                }
            }
        };
        for problem in &mut problems {
            redact(&mut problem.what);
            redact(&mut problem.fix);
            problem.excerpt.as_mut().map(redact);
        }
        problems.sort();
        problems.dedup();
        (!problems.is_empty()).then_some(Problems(problems))
    }
}
