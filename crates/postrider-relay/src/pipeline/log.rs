//! What a pipeline says in the log: each kind of thing now and then, however often it happens.

use std::time::Duration;

use postrider::Event;
use tokio::time::Instant;
use tracing::{info, warn};

use super::engine::Progress;
use crate::failure::{Failure, SinkError};
use crate::source::{Settlement, Verdict};

/// The same kind of thing is logged at most this often.
const EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Log<'a> {
    pipeline: &'a str,
    failure: Pace,
    parked: Pace,
    /// Events that were parked and are not logged yet.
    parked_events: u64,
    progress: Pace,
    trouble: Trouble,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    Outage,
    Stall,
}

impl<'a> Log<'a> {
    pub(super) fn new(pipeline: &'a str) -> Self {
        Self {
            pipeline,
            failure: Pace::default(),
            parked: Pace::default(),
            parked_events: 0,
            progress: Pace::default(),
            trouble: Trouble::None,
        }
    }

    /// An event was not published.
    pub(super) fn failure(&mut self, event: &Event, error: &SinkError) {
        if self.failure.may_log() {
            let (pipeline, kind) = (self.pipeline, error.kind.as_str());
            let (event, key) = (event.id(), event.key());
            warn!(pipeline, %event, %key, kind, %error, "an event was not published");
        }
    }

    /// Events were settled; some may have been parked.
    pub(super) fn parked(&mut self, settlements: &[Settlement]) {
        let mut last: Option<&Failure> = None;
        for settlement in settlements {
            if let Verdict::Parked { failure, .. } = &settlement.verdict {
                self.parked_events += 1;
                last = Some(failure);
            }
        }
        let Some(Failure { kind, message, attempts }) = last else { return };
        if self.parked.may_log() {
            let (pipeline, events) = (self.pipeline, std::mem::take(&mut self.parked_events));
            let (kind, error) = (kind.as_str(), message.as_str());
            warn!(pipeline, events, kind, attempts, error, "parked; see `postrider dlq list`");
        }
    }

    /// How the pipeline gets on, and the sink's last error.
    pub(super) fn progress(&mut self, progress: Progress, error: Option<&str>) {
        let trouble = match progress {
            Progress::Idle | Progress::Moving => Trouble::None,
            Progress::Outage => Trouble::Outage,
            Progress::Stalled { .. } => Trouble::Stall,
        };
        if trouble == self.trouble || !self.progress.may_log() {
            return;
        }
        self.trouble = trouble;
        let (pipeline, error) = (self.pipeline, error.unwrap_or("none"));
        match trouble {
            Trouble::None => info!(pipeline, "events flow again"),
            Trouble::Outage => {
                warn!(pipeline, error, "the sink is in trouble; events wait, none is parked");
            }
            Trouble::Stall => warn!(pipeline, error, "no progress: events wait, none is delivered"),
        }
    }
}

/// When something was last logged.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
}

impl Pace {
    /// True, and noted, if it is time again.
    fn may_log(&mut self) -> bool {
        let may = self.last.is_none_or(|last| last.elapsed() >= EVERY);
        if may {
            self.last = Some(Instant::now());
        }
        may
    }
}
