use std::sync::Arc;

use async_trait::async_trait;
use postrider::Event;

use super::*;
use crate::events::{EventLife, Place, ReadEvent, Written};
use crate::shutdown::shutdown;
use crate::sink::SinkCapabilities;
use crate::sinks::MemorySink;
use std::sync::Mutex;
use std::time::SystemTime;

/// Events of the keys `a` and `b` in turn, by their position.
struct Ledger(i64);

#[async_trait]
impl Events for Ledger {
    async fn event(&self, _: &str, _: bool) -> Result<Option<EventLife>, SourceError> {
        Ok(None)
    }

    async fn newest(&self, _: &Wanted, _: usize) -> Result<Written, SourceError> {
        Ok(Written { events: Vec::new(), next: Place(String::new()) })
    }

    async fn written(&self, _: &Place, _: &Wanted, _: usize) -> Result<Written, SourceError> {
        Ok(Written { events: Vec::new(), next: Place(String::new()) })
    }

    async fn stored(
        &self,
        _: &Wanted,
        after: i64,
        limit: usize,
    ) -> Result<Vec<Stored>, SourceError> {
        let stored = |position| Stored {
            position,
            event_id: String::new(),
            payload_bytes: 1,
            created_at: None,
        };
        Ok((after.max(0) + 1..=self.0).take(limit).map(stored).collect())
    }

    async fn fates(
        &self,
        _: &str,
        _: &[String],
        stored: &[Stored],
    ) -> Result<Vec<(i64, Fate)>, SourceError> {
        // What follows a multiple of three is not published.
        let fate = |position| match position % 3 {
            1 => Fate::Waiting,
            _ => Fate::Published,
        };
        Ok(stored.iter().map(|stored| (stored.position, fate(stored.position))).collect())
    }

    async fn now(&self) -> Result<SystemTime, SourceError> {
        Ok(SystemTime::now())
    }

    async fn read(&self, stored: &[Stored]) -> Result<Vec<ReadEvent>, SourceError> {
        let read = |stored: &Stored| {
            let key = if stored.position % 2 == 0 { "a" } else { "b" };
            let event = Event::builder("Order", key, format!("Event{}", stored.position));
            let event = event.json(&stored.position).build().unwrap();
            ReadEvent { position: stored.position, event: Ok(Arc::new(event)) }
        };
        Ok(stored.iter().map(read).collect())
    }
}

/// Takes a few messages at a time, and fails as it is told.
struct Moody {
    ordered_by_key: bool,
    taken: Mutex<Vec<String>>,
    /// The event type that fails, as often, and how.
    fails: Mutex<(String, u32, FailureKind)>,
}

impl Moody {
    fn new(ordered_by_key: bool, event_type: &str, times: u32, kind: FailureKind) -> Self {
        let fails = Mutex::new((event_type.to_owned(), times, kind));
        Self { ordered_by_key, taken: Mutex::default(), fails }
    }

    fn of_key(&self, even: bool) -> Vec<u32> {
        let taken = self.taken.lock().unwrap();
        let numbers = taken.iter().map(|name| name.trim_start_matches("Event").parse().unwrap());
        numbers.filter(|number: &u32| number.is_multiple_of(2) == even).collect()
    }
}

#[async_trait]
impl Sink for Moody {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            ordered_by_key: self.ordered_by_key,
            batch_events_max: 3,
            ..MemorySink::new().capabilities()
        }
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let mut fails = self.fails.lock().unwrap();
        let mut failed = HashSet::new();
        let mut results = Vec::new();
        for message in messages {
            assert_eq!(message.headers, [(REPLAY_HEADER.to_owned(), "true".to_owned())]);
            let key = message.event.key().clone();
            if message.event.event_type() == fails.0 && fails.1 > 0 || failed.contains(&key) {
                fails.1 = fails.1.saturating_sub(1);
                failed.insert(key);
                results.push(Err(SinkError::new(fails.2, "no")));
            } else {
                self.taken.lock().unwrap().push(message.event.event_type().to_owned());
                results.push(Ok(()));
            }
        }
        results
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

use std::collections::HashSet;

fn replay(rate: Option<u32>) -> Replay {
    Replay {
        again: None,
        wanted: Wanted::default(),
        after: 0,
        rate: rate.and_then(NonZeroU32::new),
        encoding: encoding(Encoding::default()),
        publish_timeout: Duration::from_secs(5),
    }
}

#[tokio::test(start_paused = true)]
async fn the_order_of_keys_holds_through_failures_that_pass() {
    for ordered_by_key in [true, false] {
        let sink = Moody::new(ordered_by_key, "Event4", 5, FailureKind::Unavailable);
        let (_stop, shutdown) = shutdown();
        let (replayed, result) = replay(None).run(&Ledger(12), &sink, |_| {}, &shutdown).await;
        result.unwrap();
        assert_eq!(replayed, Replayed { published: 12, left_out: 0, position: 12 });
        assert_eq!(sink.of_key(true), [2, 4, 6, 8, 10, 12]);
        assert_eq!(sink.of_key(false), [1, 3, 5, 7, 9, 11]);
    }
}

/// What a pipeline has not published would overtake what stands before it.
#[tokio::test(start_paused = true)]
async fn into_a_pipelines_own_sink_goes_what_it_has_published() {
    let sink = Moody::new(true, "", 0, FailureKind::Failed);
    let (_stop, shutdown) = shutdown();
    let again = Again { pipeline: "orders".to_owned(), aggregate_types: Vec::new() };
    let replay = Replay { again: Some(again), ..replay(None) };
    let found = replay.find(&Ledger(10)).await.unwrap();
    assert_eq!((found.events, found.unpublished.waiting), (6, 4));
    assert_eq!(found.first.map(|it| it.position), Some(2));
    assert_eq!(found.last.map(|it| it.position), Some(9));
    let (replayed, result) = replay.run(&Ledger(10), &sink, |_| {}, &shutdown).await;
    result.unwrap();
    assert_eq!(replayed, Replayed { published: 6, left_out: 0, position: 10 });
    assert_eq!((sink.of_key(true), sink.of_key(false)), (vec![2, 6, 8], vec![3, 5, 9]));
}

/// Nothing overtakes it, and from the position on nothing is lost.
#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_published_ends_it() {
    for (kind, times) in [(FailureKind::Rejected, 1), (FailureKind::Failed, u32::MAX)] {
        let sink = Moody::new(true, "Event4", times, kind);
        let (_stop, shutdown) = shutdown();
        let (replayed, result) = replay(None).run(&Ledger(12), &sink, |_| {}, &shutdown).await;
        let Err(ReplayError::Sink { position, error, .. }) = result else {
            panic!("{result:?}");
        };
        assert_eq!((position, error.kind, replayed.position), (4, kind, 3));
        assert_eq!(sink.of_key(true), [2]);
        let sink = Moody::new(true, "", 0, kind);
        let rest = Replay { after: replayed.position, ..replay(None) };
        let (replayed, result) = rest.run(&Ledger(12), &sink, |_| {}, &shutdown).await;
        result.unwrap();
        assert_eq!((replayed.published, replayed.position), (9, 12));
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept() {
    let sink = Moody::new(true, "", 0, FailureKind::Failed);
    let (_stop, shutdown) = shutdown();
    let started = Instant::now();
    let (replayed, result) = replay(Some(10)).run(&Ledger(30), &sink, |_| {}, &shutdown).await;
    result.unwrap();
    assert_eq!(replayed.published, 30);
    let took = started.elapsed().as_millis();
    assert!((2_700..=3_000).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_stop_says_how_far_it_came() {
    let sink = Moody::new(true, "", 0, FailureKind::Failed);
    let (stop, shutdown) = shutdown();
    let mut told = 0;
    let tell = |replayed: Replayed| {
        told = replayed.published;
        if told >= 6 {
            stop.stop();
        }
    };
    let (replayed, result) = replay(None).run(&Ledger(1_000), &sink, tell, &shutdown).await;
    result.unwrap();
    assert_eq!((replayed.published, replayed.position, told), (6, 6, 6));
}
