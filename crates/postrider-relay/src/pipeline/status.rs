//! What a pipeline tells about itself while it runs.

use std::ops::AddAssign;

use super::engine::Progress;
use crate::source::{Settlement, Verdict};

/// How a pipeline stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// An operator has stopped it: it is ready, and does nothing.
    pub paused: bool,
    /// Why it is not known yet whether it is stopped: until then it sends nothing.
    pub pauses_unknown: Option<String>,
    /// What it has done since it started.
    pub totals: Totals,
    /// Keys that wait behind an event that was set aside.
    pub blocked_keys: usize,
    /// The last trouble with the sink, until it is over.
    pub trouble: Option<String>,
    /// The breaker is not closed: the sink as a whole is in trouble.
    pub circuit_open: bool,
    /// The sink could not be reached at the start, and not since.
    pub sink_away: bool,
    /// Why the source is not available, until it is.
    pub source_trouble: Option<String>,
}

impl Status {
    /// Whether a readiness check should pass: the pipeline runs, its source and its sink are
    /// there, it knows whether it is stopped, and it makes progress.
    pub fn is_ready(&self) -> bool {
        self.source_trouble.is_none()
            && self.pauses_unknown.is_none()
            && !self.sink_away
            && matches!(self.state, State::Running(Progress::Idle | Progress::Moving))
    }
}

/// What a pipeline is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It finds out where it left off.
    #[default]
    Starting,
    /// It runs; see the progress.
    Running(Progress),
    /// It finishes what is under way.
    Stopping,
    /// It has ended.
    Stopped,
}

/// Events by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Published.
    pub delivered: u64,
    /// Parked for an operator.
    pub parked: u64,
    /// Set aside for a later attempt or a later time.
    pub deferred: u64,
    /// Queued behind another event of their key.
    pub queued: u64,
}

impl Totals {
    pub(super) fn count(&mut self, settlements: &[Settlement]) {
        for settlement in settlements {
            match settlement.verdict {
                Verdict::Delivered => self.delivered += 1,
                Verdict::Parked { .. } => self.parked += 1,
                Verdict::Deferred { .. } => self.deferred += 1,
                Verdict::Queued => self.queued += 1,
                Verdict::Attempting { .. } | Verdict::Released => {}
            }
        }
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.parked += other.parked;
        self.deferred += other.deferred;
        self.queued += other.queued;
    }
}
