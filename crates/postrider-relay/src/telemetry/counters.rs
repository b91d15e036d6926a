//! What a pipeline counts while it runs: once for each call of the sink, not for each event.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use postrider::Event;
use tokio::time::Instant;

use super::histogram::{CALL_BOUNDS, END_TO_END_BOUNDS, Histogram};
use crate::failure::{FailureKind, SinkError};
use crate::pipeline::Totals;
use crate::sink::Message;

/// The counters of a pipeline, or of one of its shards. They outlive its runs.
#[derive(Debug)]
pub struct Counters {
    /// Events that the sink made durable.
    pub published: AtomicU64,
    /// Events that it did not, in the order of [`FailureKind::ALL`].
    pub failures: [AtomicU64; FailureKind::ALL.len()],
    /// Events that were parked.
    pub parked: AtomicU64,
    /// Events that were set aside for later.
    pub deferred: AtomicU64,
    /// Events that were queued behind another one of their key.
    pub queued: AtomicU64,
    /// How long calls of the sink took.
    pub calls: Histogram,
    /// How long events took from their writing until they were durable.
    pub end_to_end: Histogram,
    /// Events in memory: read and not settled.
    pub inflight: AtomicU64,
    /// The breaker is not closed.
    pub circuit_open: AtomicBool,
    created: Instant,
    /// When the loop last came round, in milliseconds after `created`.
    turned_ms: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            published: 0.into(),
            failures: Default::default(),
            parked: 0.into(),
            deferred: 0.into(),
            queued: 0.into(),
            calls: Histogram::new(&CALL_BOUNDS),
            end_to_end: Histogram::new(&END_TO_END_BOUNDS),
            inflight: 0.into(),
            circuit_open: false.into(),
            created: Instant::now(),
            turned_ms: 0.into(),
        }
    }
}

impl Counters {
    /// The sink answered a call.
    pub(crate) fn answered(
        &self,
        messages: &[Message],
        results: &[Result<(), SinkError>],
        took: Duration,
    ) {
        self.calls.observe([took]);
        let now = SystemTime::now();
        let published = messages.iter().zip(results).filter(|(_, result)| result.is_ok());
        let ages = published.map(|(message, _)| age(&message.event, now));
        self.published.fetch_add(self.end_to_end.observe(ages), Relaxed);
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            self.failures[error.kind as usize].fetch_add(1, Relaxed);
        }
    }

    /// Verdicts were settled.
    pub(crate) fn settled(&self, more: Totals) {
        self.parked.fetch_add(more.parked, Relaxed);
        self.deferred.fetch_add(more.deferred, Relaxed);
        self.queued.fetch_add(more.queued, Relaxed);
    }

    /// The pipeline's loop has come round.
    pub(crate) fn turned(&self, inflight: usize, circuit_open: bool) {
        self.inflight.store(inflight as u64, Relaxed);
        self.circuit_open.store(circuit_open, Relaxed);
        let elapsed = self.created.elapsed().as_millis();
        self.turned_ms.store(u64::try_from(elapsed).unwrap_or(u64::MAX), Relaxed);
    }

    /// A run has ended: nothing is in memory any more.
    pub(crate) fn ended(&self) {
        self.turned(0, false);
    }

    /// How long ago the loop came round.
    pub fn since_turn(&self) -> Duration {
        let turned = Duration::from_millis(self.turned_ms.load(Relaxed));
        self.created.elapsed().saturating_sub(turned)
    }
}

/// How long ago an event could have been delivered: since it was written, which the time in its id
/// tells, or since its `deliver_after`.
fn age(event: &Event, now: SystemTime) -> Duration {
    let id = event.id();
    let written = match id.get_version_num() {
        7 => SystemTime::UNIX_EPOCH + Duration::from_millis((id.as_u128() >> 80) as u64),
        // An id of another kind has no time.
        _ => event.occurred_at(),
    };
    let due = event.deliver_after().map_or(written, |after| after.max(written));
    now.duration_since(due).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn event(id: Uuid, occurred_ago: u64, deliver_ago: Option<u64>) -> Event {
        let ago = |seconds| SystemTime::UNIX_EPOCH + NOW - Duration::from_secs(seconds);
        let builder = Event::builder("Order", "1", "OrderPlaced").id(id);
        let builder = builder.occurred_at(ago(occurred_ago)).json(&());
        match deliver_ago {
            Some(seconds) => builder.deliver_after(ago(seconds)).build().unwrap(),
            None => builder.build().unwrap(),
        }
    }

    #[test]
    fn an_event_is_as_old_as_its_id_says() {
        let ms = (NOW - Duration::from_millis(2_500)).as_millis();
        let v7 = Uuid::from_u128((ms << 80) | (7 << 76) | (2 << 62) | 5);
        let v5 = Uuid::new_v5(&Uuid::NAMESPACE_OID, b"7");
        let later = Uuid::from_u128(((ms + 60_000) << 80) | (7 << 76) | (2 << 62));
        for (event, millis) in [
            (event(v7, 900, None), 2_500),
            (event(v5, 900, None), 900_000),
            (event(v7, 900, Some(1)), 1_000),
            (event(v7, 900, Some(100)), 2_500),
            // The clock of whoever wrote it is ahead.
            (event(later, 0, None), 0),
        ] {
            let age = age(&event, SystemTime::UNIX_EPOCH + NOW);
            assert_eq!(age, Duration::from_millis(millis), "{event:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn it_knows_when_the_loop_last_came_round() {
        let counters = Counters::default();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(counters.since_turn(), Duration::from_secs(7));
        counters.turned(3, true);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(counters.since_turn(), Duration::from_secs(2));
    }
}
