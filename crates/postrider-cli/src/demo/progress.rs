//! What is shown while the demo runs: one line that changes on a terminal, a line now and then
//! elsewhere.

use std::io::{self, IsTerminal as _, Write as _};

use super::Way;
use super::schedule::{Fault, Request};
use crate::output::Output;

/// Elsewhere than on a terminal, so many lines a round.
const LINES: usize = 8;
/// A line that is longer than the terminal is wide could not be erased.
const COLUMNS_MAX: usize = 79;
/// Back to the beginning of the line, and erase it.
const ERASE: &str = "\r\x1b[2K";

/// Shows how far the demo is.
pub(crate) struct Progress {
    output: Output,
    is_live: bool,
    way: Way,
    total: usize,
    kills: u32,
    /// What went wrong last.
    happening: String,
}

impl Progress {
    /// The progress of a round with so many requests.
    pub(crate) fn new(output: Output, way: Way, total: usize) -> Self {
        let is_live = io::stderr().is_terminal();
        let happening = String::new();
        Self { output, is_live, way, total, kills: 0, happening }
    }

    /// Says what is about to go wrong with a request.
    pub(crate) fn announce(&mut self, request: &Request, outage_before: bool) {
        let what = match (request.fault, self.way) {
            (Some(Fault::CrashBeforeCommit), Way::Naive) => "kill -9 after publish, before commit",
            (Some(Fault::CrashAfterCommit), Way::Naive) => "kill -9 after commit, before publish",
            (Some(Fault::CrashBeforeCommit), Way::Postrider) => {
                "kill -9 shop and relay, before commit"
            }
            (Some(Fault::CrashAfterCommit), Way::Postrider) => {
                "kill -9 shop, and relay before its ack"
            }
            (Some(Fault::Rollback), _) => "the commit is refused: rollback",
            (Some(Fault::NoAnswer), _) => "stored, but the answer never comes",
            (Some(Fault::ServerError), _) => "the broker answers 500",
            (None, _) if request.outage => "the broker is down",
            (None, _) if outage_before => "the broker is back",
            (None, _) => return,
        };
        self.kills += u32::from(request.fault.is_some_and(Fault::is_crash));
        self.happening = format!("#{} {what}", request.number);
    }

    /// Shows that a request was dealt with, and how many messages the broker has.
    pub(crate) fn show(&self, number: u32, stored: usize) {
        let (total, kills) = (self.total, self.kills);
        let way = self.way.as_str();
        let state = format!("{way:9} {number:3}/{total}, broker has {stored:3}");
        if self.is_live {
            let line = format!("{state}; {}", self.happening);
            self.draw(&line);
        } else if (number as usize).is_multiple_of(self.total.div_ceil(LINES)) {
            self.output.talk(&format!("{state}, kills: {kills}"));
        }
    }

    /// Shows what is waited for after the last request.
    pub(crate) fn wait(&self, what: &str) {
        if self.is_live {
            self.draw(&format!("{:9} {what}", self.way.as_str()));
        }
    }

    /// Nothing can be done about a terminal that is gone.
    fn draw(&self, line: &str) {
        let mut stderr = io::stderr().lock();
        let line: String = line.chars().take(COLUMNS_MAX).collect();
        let _ = write!(stderr, "{ERASE}{line}").and_then(|()| stderr.flush());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_live {
            self.draw("");
        }
    }
}
