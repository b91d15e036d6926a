//! Pipelines and keys that an operator stops.

use std::time::SystemTime;

use postrider_relay::pauses::{Known, Pause, PauseWatch};
use postrider_relay::pipeline::{PipelineError, State, Status};
use postrider_relay::shutdown::shutdown;
use postrider_relay::source::{SourceError, SourceErrorKind};
use tokio::sync::watch;

use super::faults::Faults;
use super::relay::{Running, options};
use super::{Route, RouteCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{key, spread};
use crate::suites::source::PIPELINE;
use crate::suites::waiting::until;

pub(super) fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    vec![
        case!(a_paused_pipeline_is_ready_and_sends_nothing),
        case!(a_pipeline_that_cannot_see_pauses_fails),
        case!(nothing_is_sent_before_it_is_known_what_is_paused),
        case!(what_is_under_way_at_a_pause_comes_to_its_end),
        case!(a_paused_key_keeps_its_order_through_kills),
        case!(what_waits_behind_a_paused_event_is_not_written_again),
    ]
}

/// What a relay is told about pauses.
struct Switch {
    known: watch::Sender<Known>,
}

impl Switch {
    fn new() -> Self {
        Self { known: watch::Sender::default() }
    }

    fn tell(&self, pauses: Vec<Pause>) {
        self.known.send_replace(Known::Pauses(pauses.into()));
    }

    fn watch(&self) -> PauseWatch {
        PauseWatch::new(PIPELINE, self.known.subscribe())
    }

    async fn start(&self, route: &Route, faults: &Faults) -> Running {
        let pipeline = route.pipeline(faults, options()).await.with_pauses(self.watch());
        let (stop, stopped) = shutdown();
        Running::of(stop, pipeline.status(), tokio::spawn(pipeline.run(stopped)))
    }
}

fn paused(aggregate_id: Option<&str>) -> Pause {
    let key = aggregate_id.map(key);
    Pause { pipeline: None, key, since: SystemTime::now(), reason: None }
}

async fn a_paused_pipeline_is_ready_and_sends_nothing(routes: Subject) {
    let route = routes.fresh().await;
    let switch = Switch::new();
    switch.tell(vec![paused(None)]);
    route.outbox.write(&spread(3, 1..21)).await;
    let faults = Faults::none();
    let mut running = switch.start(&route, &faults).await;
    let is_paused = |status: &Status| status.paused && status.is_ready();
    running.until("it is paused", is_paused).await;
    assert_eq!(faults.offers().len(), 0);
    switch.tell(vec![]);
    route.until_arrived(20).await;
    running.until("it is not paused", |status| !status.paused).await;
    switch.tell(vec![paused(None)]);
    running.until("it is paused", is_paused).await;
    route.outbox.write(&spread(3, 21..31)).await;
    // A stop is possible all the while.
    running.stopped().await;
    assert_eq!(faults.offers().len(), 20);
    route.drain(&Faults::none()).await;
    route.check(3, 1..31, &[], 0).await;
}

async fn nothing_is_sent_before_it_is_known_what_is_paused(routes: Subject) {
    let route = routes.fresh().await;
    let switch = Switch::new();
    route.outbox.write(&spread(3, 1..6)).await;
    let faults = Faults::none();
    let mut running = switch.start(&route, &faults).await;
    let waits = |status: &Status| {
        matches!(status.state, State::Running(_))
            && !status.is_ready()
            && status.pauses_unknown.is_some()
    };
    running.until("it runs, and waits", waits).await;
    switch.known.send_replace(Known::Unreachable("no route to host".to_owned()));
    let says_why = |status: &Status| {
        let why = status.pauses_unknown.as_deref();
        !status.is_ready() && why.is_some_and(|why| why.ends_with(": no route to host"))
    };
    running.until("it says why", says_why).await;
    assert_eq!(faults.offers().len(), 0);
    switch.tell(vec![]);
    route.until_arrived(5).await;
    running.stopped().await;
    route.check(3, 1..6, &[], 0).await;
}

/// A pipeline that can never know whether it is stopped ends, and says why.
async fn a_pipeline_that_cannot_see_pauses_fails(routes: Subject) {
    let route = routes.fresh().await;
    let switch = Switch::new();
    route.outbox.write(&spread(3, 1..6)).await;
    let faults = Faults::none();
    let pipeline = route.pipeline(&faults, options()).await.with_pauses(switch.watch());
    let (_stop, stopped) = shutdown();
    let running = tokio::spawn(pipeline.run(stopped));
    let error = SourceError::new(SourceErrorKind::Misconfigured, "permission denied");
    switch.known.send_replace(Known::Failed(error.with_hint("grant it").into()));
    let ended = running.await.expect("the pipeline does not panic");
    let Err(PipelineError::Source(error)) = ended else { panic!("{ended:?}") };
    assert_eq!((error.kind, error.hint), (SourceErrorKind::Misconfigured, Some("grant it".into())));
    assert_eq!(faults.offers().len(), 0);
    route.drain(&Faults::none()).await;
    route.check(3, 1..6, &[], 0).await;
}

async fn what_is_under_way_at_a_pause_comes_to_its_end(routes: Subject) {
    let route = routes.fresh().await;
    let switch = Switch::new();
    switch.tell(vec![]);
    route.outbox.write(&spread(3, 1..21)).await;
    let faults = Faults::none();
    let mut running = switch.start(&route, &faults).await;
    until("something is under way", || async { !faults.offers().is_empty() }).await;
    switch.tell(vec![paused(None)]);
    running.until("it is paused", |status| status.paused).await;
    let offered = faults.offers().len();
    route.until_arrived(offered).await;
    assert_eq!(faults.offers().len(), offered, "nothing more is sent");
    running.stopped().await;
    route.drain(&Faults::none()).await;
    route.check(3, 1..21, &[], 0).await;
}

/// G-03: a key that is stopped is queued, whatever becomes of the relay; others flow.
async fn a_paused_key_keeps_its_order_through_kills(routes: Subject) {
    let route = routes.fresh().await;
    let operator = route.outbox.operator().await;
    let switch = Switch::new();
    let stopped = key("k1");
    if let Some(operator) = &operator {
        operator.pause(None, Some(&stopped), None).await.expect("a key can be paused");
    }
    switch.tell(vec![paused(Some("k1"))]);
    let faults = Faults::none();
    for round in 0..3 {
        let first = round * 9 + 1;
        route.outbox.write(&spread(3, first..first + 9)).await;
        let running = switch.start(&route, &faults).await;
        let others = (round as usize + 1) * 6;
        until("the other keys flow", || async {
            let arrived = route.arrived().await;
            arrived.iter().filter(|number| *number % 3 != 1).count() >= others
        })
        .await;
        assert!(route.arrived().await.iter().all(|number| number % 3 != 1));
        match round {
            0 => drop(running.stopped().await),
            _ => running.killed().await,
        }
    }
    switch.tell(vec![]);
    if let Some(operator) = &operator {
        operator.resume(None, Some(&stopped)).await.expect("a key can go on");
    }
    route.drain(&Faults::none()).await;
    let repeated = route.repeated(27);
    route.check(3, 1..28, &[], repeated).await;
}

/// Each time that the first event of a paused key comes back, it alone is deferred again.
async fn what_waits_behind_a_paused_event_is_not_written_again(routes: Subject) {
    let route = routes.fresh().await;
    let operator = route.outbox.operator().await;
    let switch = Switch::new();
    let stopped = key("k0");
    if let Some(operator) = &operator {
        operator.pause(None, Some(&stopped), None).await.expect("a key can be paused");
    }
    switch.tell(vec![paused(Some("k0"))]);
    route.outbox.write(&spread(1, 1..21)).await;
    let faults = Faults::none();
    let mut running = switch.start(&route, &faults).await;
    running.until("all are set aside", |status| status.totals.queued == 19).await;
    for round in 2..5 {
        // Without an operator the time passes by itself.
        if let Some(operator) = &operator {
            operator.hurry(None, &stopped).await.expect("a key can be hurried");
        }
        let again = |status: &Status| status.totals.deferred >= round;
        running.until("the first comes back", again).await;
    }
    assert_eq!(running.stopped().await.queued, 19);
    assert_eq!(faults.offers().len(), 0);
    switch.tell(vec![]);
    if let Some(operator) = &operator {
        operator.resume(None, Some(&stopped)).await.expect("a key can go on");
    }
    route.drain(&Faults::none()).await;
    route.check(1, 1..21, &[], 0).await;
}
