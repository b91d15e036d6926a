//! What a broker's sink must survive while a whole pipeline runs over it: each case has a broker
//! of its own, which it kills, and a proxy before it, which loses what the broker says.

#[cfg(all(feature = "http", feature = "postgres"))]
mod relays;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider_relay::pipeline::engine::Progress;
use postrider_relay::pipeline::{Options, Pipeline, PipelineError, Retry, State, Status, Totals};
use postrider_relay::shutdown::{ShutdownHandle, shutdown};
use postrider_relay::sources::memory::MemoryOutbox;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Case;
use super::numbered::{building, event, number, spread};
use super::sink::{Behaviour, TargetCapabilities, TestTarget};
use super::waiting::{within, within_time};
use crate::case;
use crate::history::{History, Place};
use crate::proxy::Proxy;

/// A broker that belongs to one case. Its sinks connect by way of the proxy.
#[async_trait]
pub trait TestBroker: TestTarget {
    /// What stands before it.
    fn proxy(&self) -> &Proxy;

    /// What a configuration says of it: the URL, which does not go by way of the proxy, and the
    /// other options in TOML.
    async fn configured(&self) -> (String, String);

    /// Kills it as a crash does.
    async fn kill9(&self);

    /// Starts it again, and waits until it serves.
    async fn start_again(&self);
}

/// What a case is tried on.
pub type Subject = Arc<dyn TestBroker>;

/// Every case.
pub fn cases() -> Vec<Case<Subject, TargetCapabilities>> {
    let cases: Vec<Case<Subject, TargetCapabilities>> = vec![
        case!(killed_amid_100_000_events_it_loses_nothing),
        case!(answers_that_are_lost_repeat_events_and_lose_none),
        case!(a_broker_that_stands_still_is_waited_for),
        case!(one_event_that_is_too_large_stops_no_other_key)
            .needing(|can| can.too_large.is_some(), "the sink takes whatever the pipeline sends"),
        case!(a_relay_killed_again_and_again_repeats_at_most_its_window),
        #[cfg(all(feature = "http", feature = "postgres"))]
        case!(relays::a_process_killed_again_and_again_repeats_at_most_its_window),
    ];
    cases.into_iter().map(|case| case.lasting(CASE_MAX)).collect()
}

const EVENTS: u32 = 100_000;
const KEYS: u32 = 1000;
/// Longest time for a case. It must not take long until something happens.
const CASE_MAX: Duration = Duration::from_secs(1200);
/// Longest time without any delivery: a broker has to start in it, too.
const STALL_MAX: Duration = Duration::from_secs(120);
/// For how long answers are lost, after the first one was.
const LOST_FOR: Duration = Duration::from_millis(100);

/// Short pauses. The attempts are those that users have: a broker that is away costs none.
fn options(broker: &Subject) -> Options {
    Options {
        encoding: broker.encoding(),
        publish_timeout: Duration::from_secs(15),
        retry: Retry {
            initial: Duration::from_millis(10),
            max: Duration::from_millis(200),
            ..Retry::default()
        },
        ..Options::default()
    }
}

struct Running {
    /// Dropped, it would stop the pipeline.
    _stop: ShutdownHandle,
    status: watch::Receiver<Status>,
    task: JoinHandle<Result<Totals, PipelineError>>,
}

impl Running {
    async fn start(broker: &Subject, outbox: &MemoryOutbox, drain: bool) -> Self {
        let sink = broker.connect().await.expect("the sink can be connected");
        let options = Options { drain, ..options(broker) };
        let pipeline = Pipeline::new("broker", Box::new(outbox.connect()), sink, options);
        let (stop, stopped) = shutdown();
        Self { _stop: stop, status: pipeline.status(), task: tokio::spawn(pipeline.run(stopped)) }
    }

    /// Waits for a status. It may take long as long as something is delivered meanwhile.
    async fn until(&mut self, what: &str, is: impl Fn(&Status) -> bool) {
        loop {
            let before = self.status.borrow().totals.delivered;
            let moves = |status: &Status| is(status) || status.totals.delivered > before;
            let moved = within_time(STALL_MAX, what, self.status.wait_for(moves)).await;
            if is(&moved.expect("the pipeline runs")) {
                return;
            }
        }
    }

    async fn until_delivered(&mut self, count: u64) {
        let is_delivered = |status: &Status| status.totals.delivered >= count;
        self.until("events are delivered", is_delivered).await;
    }

    /// Waits until it has drained the outbox.
    async fn drained(mut self) -> Totals {
        loop {
            let before = self.status.borrow().totals.delivered;
            let moves = self.status.wait_for(|status| status.totals.delivered > before);
            let moved = within_time(STALL_MAX, "events are delivered", moves).await;
            // The status ends with the pipeline.
            if moved.map(drop).is_err() {
                break;
            }
        }
        let ended = within("the pipeline ends", self.task).await;
        ended.expect("the pipeline does not panic").expect("the pipeline ends well")
    }

    /// The same with all of so many events delivered, and none of them charged with what the
    /// broker did: G-06.
    async fn drained_of(self, events: u32) {
        let totals = self.drained().await;
        assert_eq!(totals, Totals { delivered: events.into(), ..Totals::default() });
    }
}

fn is_outage(status: &Status) -> bool {
    matches!(status.state, State::Running(Progress::Outage))
}

fn filled(events: u32, keys: u32) -> MemoryOutbox {
    let outbox = MemoryOutbox::new();
    outbox.append(spread(keys, 1..=events));
    outbox
}

/// G-01 to G-04 for the events 1 to so many.
async fn check(broker: &Subject, events: u32, keys: u32, duplicates_allowed: usize) {
    let mut history = History::default();
    history.duplicates_allowed = duplicates_allowed;
    for number in 1..=events {
        let place = Place { key: u64::from(number % keys), number: Some(number.into()) };
        history.committed(number.into(), place);
    }
    let mut seen = BTreeMap::new();
    for arrival in broker.arrivals().await {
        history.arrived(number(arrival.id).into());
        let contents = (arrival.key, arrival.body);
        let first = seen.entry(arrival.id).or_insert_with(|| contents.clone());
        assert_eq!(*first, contents, "a duplicate has other contents");
    }
    let wrong: Vec<_> = history.check().iter().take(20).map(ToString::to_string).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// How many events may come twice, of those under way at so many faults.
fn allowed(broker: &Subject, faults: usize) -> usize {
    if broker.capabilities().exactly_once { 0 } else { faults * options(broker).window.events_max }
}

/// F40, F56, G-06.
async fn killed_amid_100_000_events_it_loses_nothing(broker: Subject) {
    let outbox = filled(EVENTS, KEYS);
    let mut running = Running::start(&broker, &outbox, true).await;
    for part in [EVENTS / 4, EVENTS / 2] {
        running.until_delivered(part.into()).await;
        broker.kill9().await;
        running.until("the outage is noticed", is_outage).await;
        broker.start_again().await;
    }
    running.drained_of(EVENTS).await;
    check(&broker, EVENTS, KEYS, allowed(&broker, 2)).await;
}

/// F50, G-06: the broker has them, and nobody knows. What is hit again and again while others are
/// taken in between is charged with it, but never as often as to be parked.
async fn answers_that_are_lost_repeat_events_and_lose_none(broker: Subject) {
    const ROUNDS: u32 = 8;
    let events = 24_000;
    let outbox = filled(events, KEYS);
    let mut running = Running::start(&broker, &outbox, true).await;
    for round in 1..=ROUNDS {
        running.until_delivered(u64::from(round * events / (ROUNDS + 1))).await;
        broker.proxy().lose_answers();
        within("an answer is lost", broker.proxy().until_answer_lost()).await;
        sleep(LOST_FOR).await;
        broker.proxy().cut();
        broker.proxy().heal();
    }
    let totals = running.drained().await;
    assert_eq!((totals.delivered, totals.parked), (events.into(), 0));
    check(&broker, events, KEYS, allowed(&broker, ROUNDS as usize)).await;
}

/// F46, G-06: nothing passes, and no connection ends, until the sink has given up.
async fn a_broker_that_stands_still_is_waited_for(broker: Subject) {
    let events = 10_000;
    let outbox = filled(events, KEYS);
    let mut running = Running::start(&broker, &outbox, true).await;
    running.until_delivered(2000).await;
    broker.proxy().black_hole(true);
    running.until("it is noticed", |status| status.trouble.is_some()).await;
    broker.proxy().black_hole(false);
    running.drained_of(events).await;
    check(&broker, events, KEYS, allowed(&broker, 1)).await;
}

/// F41, F54.
async fn one_event_that_is_too_large_stops_no_other_key(broker: Subject) {
    let events = 5000;
    let bytes = broker.capabilities().too_large.expect("the case needs it");
    let large = building("large", events + 1).payload(vec![b'x'; bytes], "text/plain");
    let large = large.build().expect("the payload is within its limit");
    let outbox = MemoryOutbox::new();
    outbox.append(spread(KEYS, 1..=events / 2));
    outbox.append([large, event("large", events + 2)]);
    outbox.append(spread(KEYS, events / 2 + 1..=events));
    let totals = Running::start(&broker, &outbox, true).await.drained().await;
    assert_eq!((totals.delivered, totals.parked, totals.queued), (u64::from(events), 1, 1));
    check(&broker, events, KEYS, 0).await;
    let events_set_aside = outbox.set_aside().into_iter().filter_map(|row| row.event.ok());
    let numbers: Vec<_> = events_set_aside.map(|event| number(event.id())).collect();
    assert_eq!(numbers, [events + 1, events + 2]);
}

/// G-04.
async fn a_relay_killed_again_and_again_repeats_at_most_its_window(broker: Subject) {
    const KILLS: usize = 10;
    let events = 50_000;
    let outbox = filled(events, KEYS);
    for _ in 0..KILLS {
        let mut running = Running::start(&broker, &outbox, false).await;
        running.until_delivered(2000).await;
        running.task.abort();
        drop(running.task.await);
    }
    Running::start(&broker, &outbox, true).await.drained().await;
    check(&broker, events, KEYS, allowed(&broker, KILLS)).await;
}

/// Behaviours that any broker has by its proxy.
pub(crate) async fn behave_by_proxy(proxy: &Proxy, behaviour: Behaviour) {
    match behaviour {
        Behaviour::Well => {
            // What was lost before is missed by whoever reads on.
            proxy.cut();
            proxy.heal();
            proxy.refuse(false).await;
        }
        Behaviour::Away => {
            proxy.refuse(true).await;
            proxy.cut();
        }
        Behaviour::Hangs => proxy.black_hole(true),
        Behaviour::HangsUpAt(text) => proxy.hang_up_at(text),
        Behaviour::LosesAnswer => proxy.lose_answers(),
        _ => panic!("{behaviour:?} is not declared"),
    }
}
