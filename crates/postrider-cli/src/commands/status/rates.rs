//! How fast things move, by the difference between two looks.

use std::time::Instant;

use postrider_relay::admin::{COUNT_MAX, OutboxStatus, PipelineStatus};
use serde::Serialize;

/// A status, and when it was taken.
pub(super) struct Look {
    status: OutboxStatus,
    at: Instant,
}

/// How fast a pipeline moves, per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Rates {
    /// Events published; not known where the database does not say how many were written.
    pub(super) published_per_second: Option<f64>,
    /// By how much more events wait; less than zero while the backlog goes down.
    pub(super) backlog_per_second: f64,
}

impl Look {
    pub(super) fn new(status: OutboxStatus, at: Instant) -> Self {
        Self { status, at }
    }

    /// How fast a pipeline moved since this look. Not known of one that was not there, or of which
    /// there was more than is counted.
    pub(super) fn rates(
        &self,
        status: &OutboxStatus,
        pipeline: &PipelineStatus,
        now: Instant,
    ) -> Option<Rates> {
        let before = self.status.pipelines.iter().find(|it| it.name == pipeline.name)?;
        let seconds = now.duration_since(self.at).as_secs_f64();
        if seconds <= 0.0 || before.unpublished.max(pipeline.unpublished) >= COUNT_MAX {
            return None;
        }
        let difference = |now: u64, before: u64| now as f64 - before as f64;
        let backlog = difference(pipeline.unpublished, before.unpublished);
        let aside = |it: &PipelineStatus| it.parked + it.queued + it.deferred;
        let set_aside = difference(aside(pipeline), aside(before));
        let written = status.written.zip(self.status.written);
        let published = written.map(|(now, before)| {
            // What was rolled back was counted as well, a moment earlier or later.
            (difference(now, before) - backlog - set_aside).max(0.0) / seconds
        });
        Some(Rates { published_per_second: published, backlog_per_second: backlog / seconds })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::status::view::tests::{pipeline, status};

    #[test]
    fn rates_are_differences_by_time() {
        let at = Instant::now();
        let look = |written, unpublished, parked| {
            let mut pipeline = pipeline("orders");
            (pipeline.unpublished, pipeline.parked) = (unpublished, parked);
            let mut status = status();
            (status.written, status.pipelines) = (written, vec![pipeline]);
            status
        };
        let before = Look::new(look(Some(100), 10, 0), at);
        let rates = |after: &OutboxStatus, ms| {
            before.rates(after, &after.pipelines[0], at + Duration::from_millis(ms))
        };
        let after = look(Some(140), 20, 2);
        let expected = Rates { published_per_second: Some(14.0), backlog_per_second: 5.0 };
        assert_eq!(rates(&after, 2_000), Some(expected));
        assert_eq!(rates(&after, 0), None);
        assert_eq!(rates(&look(Some(140), COUNT_MAX, 0), 2_000), None);
        let unknown = rates(&look(None, 0, 0), 2_000).unwrap();
        assert_eq!((unknown.published_per_second, unknown.backlog_per_second), (None, -5.0));
        // Statistics come late.
        let late = rates(&look(Some(100), 20, 0), 2_000).unwrap();
        assert_eq!(late.published_per_second, Some(0.0));
    }
}
