//! Relays of several pipelines, of shards, and of leases that come and go.

use std::net::UdpSocket;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::shard::stand_by;
use super::*;
use crate::config::Environment;
use crate::failure::FailureKind;
use crate::pauses::PauseWatch;
use crate::pipeline::leased::{HeldSink, LeaseHandle, event};
use crate::pipeline::{Options, Status};
use crate::shutdown::{ShutdownHandle, shutdown};
use crate::sink::{Message, Sink, SinkCapabilities};
use crate::sinks::MemorySink;
use crate::source::SourceErrorKind;
use crate::sources::Shard;
use crate::sources::memory::MemoryOutbox;
use crate::telemetry::watched::Stage;

fn pipeline(name: &str, outbox: &MemoryOutbox, sink: impl Sink + 'static) -> Pipeline {
    let options = Options { drain: true, ..Options::default() };
    Pipeline::new(name, Box::new(outbox.connect()), Box::new(sink), options)
}

fn outbox() -> MemoryOutbox {
    let outbox = MemoryOutbox::new();
    outbox.append([event("1")]);
    outbox
}

/// Lets an operator act, or breaks.
struct BadSink {
    panics: bool,
}

#[async_trait]
impl Sink for BadSink {
    fn capabilities(&self) -> SinkCapabilities {
        assert!(!self.panics, "a broken sink");
        MemorySink::new().capabilities()
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        match self.panics {
            true => Ok(Vec::new()),
            false => Err(SinkError::new(FailureKind::Misconfigured, "no such topic")),
        }
    }

    async fn publish(&self, _: &[Message]) -> Vec<Result<(), SinkError>> {
        unreachable!("the check has failed")
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

#[tokio::test]
async fn one_pipelines_failure_does_not_stop_the_others() {
    let (good, sink) = (outbox(), MemorySink::new());
    let relay = Relay::of(vec![
        pipeline("misconfigured", &outbox(), BadSink { panics: false }),
        pipeline("good", &good, sink.clone()),
    ]);
    let (_stop, shutdown) = shutdown();
    let outcomes = relay.run(shutdown).await;
    assert_eq!(outcomes[0].name, "misconfigured");
    let error = outcomes[0].result.as_ref().unwrap_err();
    assert!(error.to_string().contains("no such topic"), "{error}");
    assert!(error.hint().is_some());
    assert_eq!(outcomes[1].name, "good");
    assert_eq!(outcomes[1].result.as_ref().unwrap().delivered, 1);
    assert_eq!(sink.count(), 1);
}

#[tokio::test]
async fn a_pipelines_panic_stays_its_own() {
    let relay = Relay::of(vec![
        pipeline("good", &outbox(), MemorySink::new()),
        pipeline("broken", &outbox(), BadSink { panics: true }),
    ]);
    let (_stop, shutdown) = shutdown();
    let outcomes = relay.run(shutdown).await;
    assert!(outcomes[0].result.is_ok());
    assert!(matches!(outcomes[1].result, Err(RelayError::Panicked)));
}

#[tokio::test]
async fn it_runs_until_it_is_told_to_stop() {
    let (outbox, sink) = (MemoryOutbox::new(), MemorySink::new());
    let source = Box::new(outbox.connect());
    let running = Pipeline::new("p", source, Box::new(sink.clone()), Options::default());
    let (stop, shutdown) = shutdown();
    let relay = tokio::spawn(Relay::of(vec![running]).run(shutdown));
    outbox.append([event("1")]);
    sink.wait_for(1).await;
    stop.stop();
    let outcomes = relay.await.unwrap();
    assert_eq!(outcomes[0].result.as_ref().unwrap().delivered, 1);
}

/// Connects to one outbox again and again, each time under a lease of its own.
struct Standing {
    outbox: MemoryOutbox,
    sink: MemorySink,
    options: Options,
    /// The leases so far, with the status of their runs.
    leases: watch::Sender<Vec<(LeaseHandle, watch::Receiver<Status>)>>,
}

impl Standing {
    fn new(options: Options) -> Arc<Self> {
        let (outbox, sink, leases) = (MemoryOutbox::new(), MemorySink::new(), Default::default());
        Arc::new(Self { outbox, sink, options, leases })
    }

    fn start(self: &Arc<Self>) -> (ShutdownHandle, Part) {
        let (stop, stopped) = shutdown();
        let standing = Arc::clone(self);
        let part = async move {
            let connect = || async { Ok(standing.connect()) };
            let watched = Watched::new("p", 0, Arc::default());
            stand_by("p", &watched, connect, stopped).await
        };
        (stop, part.boxed())
    }

    fn connect(&self) -> Pipeline {
        let lease = LeaseHandle::new();
        let (source, sink) = (lease.connect(&self.outbox), Box::new(self.sink.clone()));
        let pipeline = Pipeline::new("p", source, sink, self.options.clone());
        self.leases.send_modify(|leases| leases.push((lease, pipeline.status())));
        pipeline
    }

    /// Waits for a run, by its number, that has delivered so many events.
    async fn run(&self, number: usize, delivered: u64) -> LeaseHandle {
        let mut leases = self.leases.subscribe();
        let leases = leases.wait_for(|leases| leases.len() > number).await.unwrap();
        let (lease, mut status) = leases[number].clone();
        drop(leases);
        status.wait_for(|status| status.totals.delivered >= delivered).await.unwrap();
        lease
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_went_away_is_waited_for_and_totals_add_up() {
    let standing = Standing::new(Options::default());
    let (stop, part) = standing.start();
    let task = tokio::spawn(part);

    standing.outbox.append([event("1"), event("2")]);
    let first = standing.run(0, 2).await;
    let wanted_at = Instant::now();
    first.want();
    standing.run(1, 0).await;
    // The relay that asked tries at least every 2 s.
    assert!(wanted_at.elapsed() >= Duration::from_secs(2), "{:?}", wanted_at.elapsed());
    assert!(wanted_at.elapsed() < Duration::from_secs(6), "{:?}", wanted_at.elapsed());
    assert!(first.is_closed());

    standing.outbox.append([event("3")]);
    let second = standing.run(1, 1).await;
    second.fail(SourceErrorKind::Lost);
    let third = standing.run(2, 0).await;
    third.until(Instant::now());
    standing.run(3, 0).await;
    assert!(!second.is_closed() && !third.is_closed());

    standing.outbox.append([event("4")]);
    standing.run(3, 1).await;
    stop.stop();
    assert_eq!(task.await.unwrap().unwrap().delivered, 4);
    assert_eq!(standing.sink.count(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_stands_by_stops_at_once() {
    let standing = Standing::new(Options::default());
    let (stop, part) = standing.start();
    let task = tokio::spawn(part);
    standing.run(0, 0).await.want();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let stopped_at = Instant::now();
    stop.stop();
    task.await.unwrap().unwrap();
    assert_eq!(stopped_at.elapsed(), Duration::ZERO);
    assert_eq!(standing.leases.borrow().len(), 1, "it was standing by");
}

#[tokio::test(start_paused = true)]
async fn a_drain_goes_on_once_the_lease_is_had_again() {
    let standing = Standing::new(Options { drain: true, ..Options::default() });
    standing.outbox.append([event("1"), event("2")]);
    let lease = LeaseHandle::new();
    lease.want();
    let first = Mutex::new(Some(lease.connect(&standing.outbox)));
    let (_stop, stopped) = shutdown();
    let connect = || async {
        Ok(match first.lock().unwrap().take() {
            None => standing.connect(),
            Some(source) => {
                let sink = Box::new(standing.sink.clone());
                Pipeline::new("p", source, sink, standing.options.clone())
            }
        })
    };
    let watched = Watched::new("p", 0, Arc::default());
    assert_eq!(stand_by("p", &watched, connect, stopped).await.unwrap().delivered, 2);
    assert!(lease.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_at_a_stop_is_told() {
    let (outbox, sink, lease) = (outbox(), HeldSink::new(), LeaseHandle::new());
    let (stop, stopped) = shutdown();
    let (leased, held) = (lease.clone(), sink.clone());
    let task = tokio::spawn(async move {
        let connect = || async {
            let (source, sink) = (leased.connect(&outbox), Box::new(held.clone()));
            Ok(Pipeline::new("p", source, sink, Options::default()))
        };
        let watched = Watched::new("p", 0, Arc::default());
        stand_by("p", &watched, connect, stopped).await
    });
    sink.begun(1).await;
    stop.stop();
    lease.until(Instant::now() + Duration::from_secs(1));
    let error = task.await.unwrap().unwrap_err();
    assert!(matches!(error, RelayError::Pipeline(PipelineError::LeaseLost(_))), "{error}");
}

/// A part that ends once `end` says so.
fn part(mut end: watch::Receiver<bool>, result: Result<Totals, RelayError>) -> Part {
    async move {
        end.wait_for(|end| *end).await.unwrap();
        result
    }
    .boxed()
}

#[tokio::test]
async fn shards_run_side_by_side_and_are_one_outcome() {
    let (now, end_now) = watch::channel(true);
    let (later, end_later) = watch::channel(false);
    let delivered = |delivered| Ok(Totals { delivered, ..Totals::default() });
    let failure = |message: &str| {
        let error = SourceError::new(SourceErrorKind::Misconfigured, message);
        Err(RelayError::Source(error))
    };
    let pipelines = vec![
        (
            "whole".to_owned(),
            vec![part(end_now.clone(), delivered(1)), part(end_later.clone(), delivered(2))],
        ),
        (
            "failed".to_owned(),
            vec![
                part(end_later.clone(), failure("second")),
                part(end_now, failure("first")),
                part(end_later, delivered(3)),
            ],
        ),
        ("panicked".to_owned(), vec![async { panic!("a bug") }.boxed()]),
    ];
    let (mut parts, mut shards) = (Vec::new(), Vec::new());
    for (name, unwatched) in pipelines {
        let watched = || Arc::new(Watched::new(&name, 0, Arc::default()));
        let watched: Vec<_> = unwatched.into_iter().map(|part| (watched(), part)).collect();
        shards.extend(watched.iter().map(|(watched, _)| watched.clone()));
        parts.push((name, watched));
    }
    let mut running = tokio::spawn(run_side_by_side(parts));
    let ended = timeout(Duration::from_millis(50), &mut running).await;
    assert!(ended.is_err(), "the shards that did not fail go on");
    later.send_replace(true);
    let outcomes = running.await.unwrap();
    drop(now);
    assert_eq!(outcomes[0].result.as_ref().unwrap().delivered, 3);
    let error = outcomes[1].result.as_ref().unwrap_err();
    assert_eq!(error.to_string(), "cannot open the outbox: first");
    assert!(matches!(outcomes[2].result, Err(RelayError::Panicked)));
    let failed: Vec<bool> =
        shards.iter().map(|shard| matches!(shard.stage(), Stage::Failed { .. })).collect();
    assert_eq!(failed, [false, false, true, true, false, true]);
}

fn config(source: &str) -> Config {
    let text = format!(
        "[source]\nurl = \"sqlite:none/none.db\"\n{source}\n\
         [[pipeline]]\nname = \"orders\"\nsink = {{ url = \"stdout:\" }}\n"
    );
    Config::parse(&text, "p.toml", &Environment::default()).unwrap()
}

#[test]
fn each_shard_has_its_part_of_the_keys() {
    let mut config = config("");
    config.pipelines[0].shards = 4;
    let relay = Relay::new(config.clone());
    let hint = relay.hint();
    let shards = ShardPlan::all(
        &config.source,
        &config.pipelines[0],
        &[],
        &relay.name,
        &hint,
        &PauseWatch::never(),
    );
    assert_eq!(shards.len(), 4);
    let given = shards[3].spec.hint.given();
    hint.give();
    assert!(given.now_or_never().is_some(), "the relay's hint is the source's");
    for (index, shard) in (0..).zip(&shards) {
        assert_eq!(shard.label, format!("orders/{index}"));
        let spec = &shard.spec;
        assert_eq!(spec.shard, Shard { index, of: 4 });
        assert_eq!((spec.pipeline.as_str(), &spec.relay), ("orders", &relay.name));
    }
    config.pipelines[0].shards = 1;
    let shards = ShardPlan::all(
        &config.source,
        &config.pipelines[0],
        &[],
        &relay.name,
        &hint,
        &PauseWatch::never(),
    );
    assert_eq!((shards.len(), shards[0].label.as_str()), (1, "orders"));
}

#[test]
fn every_relay_has_a_name_of_its_own() {
    let (one, other) = (Relay::of(vec![]), Relay::of(vec![]));
    assert_ne!(one.name, other.name);
    assert!(one.name.contains(&std::process::id().to_string()), "{}", one.name);
}

#[tokio::test]
async fn a_relay_listens_for_hints() {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    let source = format!("hint = \"{address}\"");

    let (stop, stopped) = shutdown();
    let outcomes = Relay::new(config(&source)).run(stopped.clone()).await;
    let error = outcomes[0].result.as_ref().unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(error.hint().unwrap().contains("another relay on this host"), "{error:?}");

    drop(free);
    let hint = Hint::new();
    let relay = Relay::new(config(&source)).with_hint(hint.clone());
    let relay = Relay { plans: vec![waiting()], ..relay };
    let running = tokio::spawn(relay.run(stopped));
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let given = async {
        // The relay may not be listening yet.
        while timeout(Duration::from_millis(10), hint.given()).await.is_err() {
            sender.send_to(&[], address).unwrap();
        }
    };
    timeout(Duration::from_secs(10), given).await.expect("the hint is given");
    stop.stop();
    running.await.unwrap();
}

/// A pipeline that has nothing to do.
fn waiting() -> Plan {
    let source = Box::new(MemoryOutbox::new().connect());
    let sink = Box::new(MemorySink::new());
    Plan::Connected(Pipeline::new("p", source, sink, Options::default()).into())
}
