//! A run under a lease, on a clock that stands still unless all wait.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::calling::{CHECK_EVERY, publish};
use super::*;
use crate::failure::SinkError;
use crate::pipeline::leased::{HeldSink, LeaseHandle, event};
use crate::pipeline::{Pipeline, Window};
use crate::shutdown::{ShutdownHandle, shutdown};
use crate::sinks::MemorySink;
use crate::sources::memory::MemoryOutbox;

const TTL: Duration = Duration::from_secs(15);

struct Running {
    stop: ShutdownHandle,
    status: watch::Receiver<Status>,
    task: JoinHandle<Result<Totals, PipelineError>>,
}

fn start(
    lease: &LeaseHandle,
    outbox: &MemoryOutbox,
    sink: impl Sink + 'static,
    options: Options,
) -> Running {
    let pipeline = Pipeline::new("p", lease.connect(outbox), Box::new(sink), options);
    let (stop, stopped) = shutdown();
    Running { stop, status: pipeline.status(), task: tokio::spawn(pipeline.run(stopped)) }
}

impl Running {
    /// The message of the lost lease with which the run ends.
    async fn lost(&mut self) -> String {
        match (&mut self.task).await.unwrap() {
            Err(PipelineError::LeaseLost(error)) => error.message,
            ended => panic!("{ended:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_from_the_end_of_the_lease_on() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), MemorySink::new(), LeaseHandle::new());
    let started = Instant::now();
    lease.until(started + TTL);
    let mut running = start(&lease, &outbox, sink.clone(), Options::default());
    outbox.append([event("1")]);
    sink.wait_for(1).await;

    // Renewed: it goes on beyond the end it had before.
    sleep(TTL / 2).await;
    let end = started + TTL + TTL / 2;
    lease.until(end);
    sleep_until(end - Duration::from_millis(2)).await;
    outbox.append([event("2")]);
    sink.wait_for(2).await;

    let message = running.lost().await;
    assert!(message.contains("ran out"), "{message}");
    assert!(Instant::now() >= end && Instant::now() < end + Duration::from_millis(5));
    assert_eq!(running.status.borrow().totals.delivered, 2);
    assert!(!lease.is_closed(), "there is nothing left to give back");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_sends_nothing_at_all() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), MemorySink::new(), LeaseHandle::new());
    lease.until(Instant::now());
    outbox.append([event("1")]);
    start(&lease, &outbox, sink.clone(), Options::default()).lost().await;
    assert_eq!((sink.count(), outbox.unpublished()), (0, 1));
}

/// The process may stand still between the decision to send and the send.
#[tokio::test(start_paused = true)]
async fn a_call_looks_at_the_lease_when_it_begins() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), MemorySink::new(), LeaseHandle::new());
    lease.until(Instant::now() + TTL);
    outbox.append([event("1")]);
    let (source, options) = (lease.connect(&outbox), Options::default());
    let limit = BatchLimit { events: 1, bytes: 1024, wait: Duration::ZERO };
    let batch = source.next_batch(limit).await.unwrap();
    let mut engine = Engine::new(policy(&sink, &options), [], 0);
    let batch = batch.into_iter().map(|record| incoming(record, &options, usize::MAX));
    engine.read(batch, Duration::ZERO);
    let call = engine.next_call(Duration::ZERO).unwrap();
    let topic = &options.encoding.route.topic;
    let spans = Spans::new("p", &sink.capabilities(), topic, None);
    let publishing = publish(&*source, &sink, &spans, call, TTL);
    lease.until(Instant::now());
    let Published { results, .. } = publishing.await;
    let error = results[0].as_ref().unwrap_err();
    assert_eq!((error.kind, sink.count()), (FailureKind::Unavailable, 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_under_way_is_dropped_at_the_end_of_the_lease() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), HeldSink::new(), LeaseHandle::new());
    let end = Instant::now() + TTL;
    lease.until(end);
    outbox.append([event("1"), event("2")]);
    let mut running = start(&lease, &outbox, sink.clone(), Options::default());
    sink.begun(1).await;
    running.lost().await;
    assert!(Instant::now() >= end && Instant::now() < end + Duration::from_millis(5));
    assert_eq!((sink.calls(), sink.dropped()), (1, 1));
    assert_eq!(outbox.unpublished(), 2, "neither delivered nor failed");
    assert!(outbox.set_aside().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_bounded_by_the_lease_too() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), HeldSink::new(), LeaseHandle::new());
    outbox.append([event("1")]);
    let mut running = start(&lease, &outbox, sink.clone(), Options::default());
    sink.begun(1).await;
    let end = Instant::now() + Duration::from_secs(5);
    lease.until(end);
    running.stop.stop();
    running.lost().await;
    assert!(Instant::now() < end + Duration::from_millis(5), "the grace time is longer");
    assert_eq!((sink.dropped(), outbox.unpublished()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_source_that_cannot_be_reached_is_waited_for_until_the_lease_ends() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), MemorySink::new(), LeaseHandle::new());
    let end = Instant::now() + TTL;
    lease.until(end);
    let mut running = start(&lease, &outbox, sink.clone(), Options::default());
    let is_running = |status: &Status| matches!(status.state, State::Running(_));
    running.status.wait_for(is_running).await.unwrap();
    lease.fail(SourceErrorKind::Unavailable);
    let trouble = running.status.wait_for(|status| status.source_trouble.is_some()).await.unwrap();
    assert!(!trouble.is_ready());
    drop(trouble);
    let message = running.lost().await;
    assert!(message.contains("no such luck"), "{message}");
    assert!(Instant::now() >= end);
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_no_longer_than_its_lease() {
    let (outbox, lease) = (MemoryOutbox::new(), LeaseHandle::new());
    let end = Instant::now() + TTL;
    lease.until(end);
    lease.fail(SourceErrorKind::Unavailable);
    start(&lease, &outbox, MemorySink::new(), Options::default()).lost().await;
    assert!(Instant::now() >= end && Instant::now() < end + Duration::from_millis(5));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_another_has_ends_the_run_at_once() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), HeldSink::new(), LeaseHandle::new());
    outbox.append([event("1"), event("2")]);
    let started = Instant::now();
    let mut running = start(&lease, &outbox, sink.clone(), Options::default());
    sink.begun(1).await;
    // The read under way says so.
    lease.fail(SourceErrorKind::Lost);
    running.lost().await;
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!((sink.calls(), sink.dropped(), outbox.unpublished()), (1, 1, 2));
    assert!(!lease.is_closed());
}

#[tokio::test(start_paused = true)]
async fn what_another_has_is_not_settled() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), HeldSink::new(), LeaseHandle::new());
    outbox.append([event("1")]);
    // The window is full, so that nothing is read and only settling can tell.
    let window = Window { events_max: 1, ..Window::default() };
    let options = Options { window, ..Options::default() };
    let mut running = start(&lease, &outbox, sink.clone(), options);
    sink.begun(1).await;
    lease.fail(SourceErrorKind::Lost);
    sink.let_go();
    running.lost().await;
    assert_eq!((sink.calls(), sink.dropped(), outbox.unpublished()), (1, 0, 1));
    assert_eq!(running.status.borrow().totals, Totals::default());
}

#[tokio::test(start_paused = true)]
async fn a_wanted_lease_is_handed_over_in_order() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), HeldSink::new(), LeaseHandle::new());
    lease.until(Instant::now() + TTL);
    outbox.append([event("1"), event("2")]);
    let running = start(&lease, &outbox, sink.clone(), Options::default());
    sink.begun(1).await;
    lease.want();
    sleep(LOOK_EVERY * 2).await;
    assert_eq!(running.status.borrow().state, State::Stopping);
    assert!(!running.task.is_finished(), "what is under way is waited for");
    sink.let_go();
    let ended = running.task.await.unwrap();
    assert!(matches!(ended, Err(PipelineError::HandedOver)), "{ended:?}");
    assert_eq!((sink.calls(), outbox.unpublished()), (1, 1), "one is settled, one given back");
    assert_eq!(running.status.borrow().totals.delivered, 1);
    assert!(lease.is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_run_hands_over_within_moments() {
    let (outbox, lease) = (MemoryOutbox::new(), LeaseHandle::new());
    let started = Instant::now();
    let running = start(&lease, &outbox, MemorySink::new(), Options::default());
    lease.want();
    let ended = running.task.await.unwrap();
    assert!(matches!(ended, Err(PipelineError::HandedOver)), "{ended:?}");
    assert!(started.elapsed() <= LOOK_EVERY);
}

#[tokio::test(start_paused = true)]
async fn a_stop_wins_over_handing_over() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), HeldSink::new(), LeaseHandle::new());
    outbox.append([event("1")]);
    let running = start(&lease, &outbox, sink.clone(), Options::default());
    sink.begun(1).await;
    lease.want();
    sleep(LOOK_EVERY * 2).await;
    running.stop.stop();
    sink.let_go();
    assert_eq!(running.task.await.unwrap().unwrap().delivered, 1);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_away_is_not_handed_over_for_ever() {
    let (outbox, sink, lease) = (MemoryOutbox::new(), HeldSink::new(), LeaseHandle::new());
    outbox.append([event("1")]);
    let options = Options { grace: Duration::from_secs(1), ..Options::default() };
    let mut running = start(&lease, &outbox, sink.clone(), options);
    sink.begun(1).await;
    lease.want();
    lease.fail(SourceErrorKind::Unavailable);
    sink.let_go();
    let message = running.lost().await;
    assert!(message.contains("hand it over"), "{message}");
}

/// Away until it is told to be there.
struct AwaySink {
    is_there: watch::Receiver<bool>,
    sink: MemorySink,
}

#[async_trait::async_trait]
impl Sink for AwaySink {
    fn capabilities(&self) -> crate::sink::SinkCapabilities {
        self.sink.capabilities()
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        match *self.is_there.borrow() {
            true => Ok(Vec::new()),
            false => Err(SinkError::new(FailureKind::Unavailable, "refused")),
        }
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        self.sink.publish(messages).await
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_not_there_at_the_start_is_found_without_an_event() {
    let (outbox, lease) = (MemoryOutbox::new(), LeaseHandle::new());
    let (there, is_there) = watch::channel(false);
    let sink = AwaySink { is_there, sink: MemorySink::new() };
    let mut running = start(&lease, &outbox, sink, Options::default());
    sleep(CHECK_EVERY * 3).await;
    let status = running.status.borrow().clone();
    assert!(status.sink_away && !status.is_ready(), "{status:?}");
    assert_eq!(status.trouble.as_deref(), Some("refused"));
    there.send_replace(true);
    let found = running.status.wait_for(Status::is_ready).await.unwrap().clone();
    assert_eq!((found.sink_away, found.trouble), (false, None));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_takes_an_event_is_there() {
    let (outbox, lease) = (MemoryOutbox::new(), LeaseHandle::new());
    let (_there, is_there) = watch::channel(false);
    let sink = AwaySink { is_there, sink: MemorySink::new() };
    let mut running = start(&lease, &outbox, sink, Options::default());
    running.status.wait_for(|status| status.sink_away).await.unwrap();
    outbox.append([event("1")]);
    running.status.wait_for(|status| status.totals.delivered == 1).await.unwrap();
    assert!(running.status.borrow().is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_with_an_error_is_no_crash() {
    let outbox = MemoryOutbox::new();
    outbox.append([event("1")]);
    for kind in [SourceErrorKind::Misconfigured, SourceErrorKind::Unsafe, SourceErrorKind::Held] {
        let (sink, lease) = (HeldSink::new(), LeaseHandle::new());
        let running = start(&lease, &outbox, sink.clone(), Options::default());
        sink.begun(1).await;
        lease.fail(kind);
        let ended = running.task.await.unwrap();
        assert!(matches!(ended, Err(PipelineError::Source(_))), "{ended:?}");
    }
    assert_eq!(outbox.connect().resume().await.unwrap().crashes, 0);
}
