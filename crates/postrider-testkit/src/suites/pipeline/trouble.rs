//! The sink as a whole is in trouble.

use std::time::Duration;

use postrider_relay::failure::{FailureKind, SinkError};
use postrider_relay::pipeline::engine::Progress;
use postrider_relay::pipeline::{Options, PipelineError, State, Status};
use postrider_relay::relay::{Relay, RelayError};
use postrider_relay::shutdown::shutdown;

use tokio::time::interval;

use super::faults::{Fate, Faults};
use super::relay::options;
use super::{RouteCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{events, spread};
use crate::suites::sink::Behaviour;
use crate::suites::waiting::{until, within};

pub(super) fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    let goes_away = |can: &RouteCapabilities| can.target.away == Some(FailureKind::Unavailable);
    let loses_answers = |can: &RouteCapabilities| {
        let behaviours = can.target.misbehaviours.iter();
        behaviours.map(|(behaviour, _)| behaviour).any(|one| *one == Behaviour::LosesAnswer)
    };
    let asks_for_a_pause = |can: &RouteCapabilities| {
        let asks = |behaviour: &Behaviour| matches!(behaviour, Behaviour::AnswersPause(..));
        can.target.misbehaviours.iter().any(|(behaviour, _)| asks(behaviour))
    };
    vec![
        case!(an_outage_counts_no_attempt_and_parks_nothing),
        case!(an_endpoint_that_goes_away_and_comes_back_gets_everything)
            .needing(goes_away, "the target cannot be out of reach for a while"),
        case!(lost_answers_lead_to_the_same_events_again),
        case!(answers_lost_on_the_way_lead_to_the_same_events_again)
            .needing(loses_answers, "what the target answers cannot be lost"),
        case!(a_throttled_sink_is_left_alone_as_long_as_it_asks),
        case!(a_pause_that_was_asked_for_outlasts_other_answers),
        case!(an_event_that_the_sink_is_away_for_is_parked_while_others_flow),
        case!(an_endpoint_that_asks_for_a_pause_gets_it)
            .needing(asks_for_a_pause, "the target cannot ask for a pause"),
        case!(a_misconfigured_sink_stops_only_its_own_pipeline),
        case!(a_sink_that_panics_is_contained),
        case!(a_sink_that_forgets_an_answer_is_contained),
        case!(a_sink_that_hangs_is_given_up),
        case!(no_progress_is_noticed),
    ]
}

fn refusing(kind: FailureKind) -> Fate {
    Fate::Refuse(SinkError::new(kind, "the sink is in trouble"))
}

/// G-06.
async fn an_outage_counts_no_attempt_and_parks_nothing(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(7, 1..41)).await;
    let faults = Faults::deciding(|_| refusing(FailureKind::Unavailable));
    let mut running = route.start(&faults, options()).await;
    running.until("an outage is noticed", |status| is_outage(status.state)).await;
    let before = faults.offers().len();
    until("probes are sent", || async { faults.offers().len() >= before + 2 }).await;
    let status = route.status().await;
    assert_eq!((status.parked, status.deferred, status.queued), (0, 0, 0));
    assert_eq!(status.unpublished, 40);
    faults.heal();
    route.until_arrived(40).await;
    let totals = running.stopped().await;
    assert_eq!((totals.delivered, totals.deferred, totals.parked), (40, 0, 0));
    route.check(7, 1..41, &[], 0).await;
}

pub(super) fn is_outage(state: State) -> bool {
    matches!(state, State::Running(Progress::Outage))
}

/// G-06, with a real endpoint.
async fn an_endpoint_that_goes_away_and_comes_back_gets_everything(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(7, 1..21)).await;
    let faults = Faults::none();
    let mut running = route.start(&faults, options()).await;
    route.until_arrived(5).await;
    route.target.behave(Behaviour::Away).await;
    route.outbox.write(&spread(7, 21..61)).await;
    running.until("an outage is noticed", |status| is_outage(status.state)).await;
    assert!(running.status.borrow().trouble.is_some());
    let before = faults.offers().len();
    until("probes are sent", || async { faults.offers().len() >= before + 2 }).await;
    let status = route.status().await;
    assert_eq!(status.parked, 0);
    // Some cannot tell an answer that was on its way from an event that fails.
    let lost = (Behaviour::LosesAnswer, FailureKind::Failed);
    if !route.target.capabilities().misbehaviours.contains(&lost) {
        assert_eq!((status.deferred, status.queued), (0, 0));
    }
    route.target.behave(Behaviour::Well).await;
    running.until("everything is delivered", |status| status.totals.delivered >= 60).await;
    let totals = running.stopped().await;
    assert_eq!(totals.parked, 0);
    // What was under way when the endpoint went may have been kept without an answer.
    route.check(7, 1..61, &[], options().window.events_max).await;
}

/// G-04.
async fn lost_answers_lead_to_the_same_events_again(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(3, 1..21)).await;
    let faults = Faults::deciding(|offer| match offer.time {
        1 if offer.number % 4 == 0 => {
            Fate::LoseAnswer(SinkError::new(FailureKind::Unavailable, "no answer"))
        }
        _ => Fate::Publish,
    });
    let totals = route.drain(&faults).await;
    assert_eq!((totals.delivered, totals.parked), (20, 0));
    let sink = route.target.connect().await.expect("the sink can be connected");
    let duplicates = if sink.capabilities().deduplicates { 0 } else { 5 };
    let arrived = route.arrived().await.len();
    assert_eq!(arrived > 20, duplicates > 0, "{arrived} have arrived");
    route.check(3, 1..21, &[], duplicates).await;
}

/// G-04, with a real endpoint that hangs up.
async fn answers_lost_on_the_way_lead_to_the_same_events_again(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(3, 1..10)).await;
    let mut patient = options();
    patient.retry.attempts = 1000;
    let mut running = route.start(&Faults::none(), patient).await;
    // Many brokers have to answer before anything can be sent. What sends several events of a key
    // may have a connection of its own.
    running.until("it is connected", |status| status.totals.delivered == 9).await;
    route.target.behave(Behaviour::LosesAnswer).await;
    route.outbox.write(&spread(3, 10..19)).await;
    route.until_arrived(12).await;
    route.target.behave(Behaviour::Well).await;
    running.until("everything is delivered", |status| status.totals.delivered == 18).await;
    let totals = running.stopped().await;
    assert_eq!(totals.parked, 0);
    let arrived = route.arrived().await.len();
    route.check(3, 1..19, &[], arrived - 18).await;
}

/// What a sink that throttles asks for.
const PAUSE: Duration = Duration::from_millis(400);

/// A sink that throttles the first event the first time.
fn throttling_the_first() -> Faults {
    Faults::deciding(|offer| match (offer.number, offer.time) {
        (1, 1) => {
            let error = SinkError::new(FailureKind::Throttled, "slow down");
            Fate::Refuse(error.with_retry_after(Some(PAUSE)))
        }
        _ => Fate::Publish,
    })
}

/// G-06.
async fn a_throttled_sink_is_left_alone_as_long_as_it_asks(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&events("k0", 1..6)).await;
    let faults = throttling_the_first();
    let totals = route.drain(&faults).await;
    assert_eq!((totals.delivered, totals.deferred), (5, 0));
    let offers = faults.offers();
    let waited = offers[1].at.duration_since(offers[0].at);
    assert!(waited >= PAUSE, "it came back after {waited:?}");
    route.check(1, 1..6, &[], 0).await;
}

/// G-06: calls that were under way may end well meanwhile.
async fn a_pause_that_was_asked_for_outlasts_other_answers(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(4, 1..17)).await;
    let faults = throttling_the_first();
    let totals = route.drain(&faults).await;
    assert_eq!((totals.delivered, totals.deferred), (16, 0));
    let offers: Vec<_> = faults.offers().into_iter().filter(|offer| offer.number == 1).collect();
    let waited = offers[1].at.duration_since(offers[0].at);
    assert!(waited >= PAUSE, "it came back after {waited:?}");
    route.check(4, 1..17, &[], 0).await;
}

/// G-01, G-05: a sink that takes everything else is not away.
async fn an_event_that_the_sink_is_away_for_is_parked_while_others_flow(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&events("k0", 1..2)).await;
    let faults = Faults::deciding(|offer| match offer.number {
        1 => Fate::Refuse(SinkError::new(FailureKind::Unavailable, "away")),
        _ => Fate::Publish,
    });
    let mut running = route.start(&faults, options()).await;
    // A writer that goes on and on; on a paused clock, it is what makes time pass.
    let mut pace = interval(Duration::from_millis(5));
    let mut next = 2;
    while running.status.borrow().totals.parked == 0 {
        assert!(next < 1000, "it is never parked");
        pace.tick().await;
        route.outbox.write(&events("k1", next..next + 1)).await;
        next += 1;
        let flow = |status: &Status| status.totals.delivered == u64::from(next) - 2;
        running.until("the others flow", flow).await;
    }
    assert_eq!(route.arrived().await, (2..next).collect::<Vec<_>>());
    let tries = faults.offers().iter().filter(|offer| offer.number == 1).count();
    assert!(tries < 60, "it was tried {tries} times");
    running.stopped().await;
}

/// G-06, with a real endpoint and `Retry-After`.
async fn an_endpoint_that_asks_for_a_pause_gets_it(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&events("k0", 1..4)).await;
    route.target.behave(Behaviour::AnswersPause(429, 1)).await;
    let faults = Faults::none();
    let mut running = route.start(&faults, options()).await;
    running.until("it was throttled", |status| status.trouble.is_some()).await;
    route.target.behave(Behaviour::Well).await;
    route.until_arrived(3).await;
    running.stopped().await;
    let offers = faults.offers();
    let waited = offers[1].at.duration_since(offers[0].at);
    assert!(waited >= Duration::from_secs(1), "it came back after {waited:?}");
    assert_eq!(route.arrived().await, [1, 2, 3]);
}

/// G-05.
async fn a_misconfigured_sink_stops_only_its_own_pipeline(routes: Subject) {
    let (bad, good) = (routes.fresh().await, routes.fresh().await);
    bad.outbox.write(&spread(3, 1..11)).await;
    good.outbox.write(&spread(3, 1..11)).await;
    let faults = Faults::deciding(|offer| match offer.number {
        4 => refusing(FailureKind::Misconfigured),
        _ => Fate::Publish,
    });
    let drain = Options { drain: true, ..options() };
    let pipelines = vec![
        bad.pipeline(&faults, drain.clone()).await,
        good.pipeline(&Faults::none(), drain).await,
    ];
    let (_stop, stopped) = shutdown();
    let outcomes = within("both end", Relay::of(pipelines).run(stopped)).await;
    let is_sink = matches!(
        outcomes[0].result,
        Err(RelayError::Pipeline(PipelineError::Sink(ref error)))
            if error.kind == FailureKind::Misconfigured
    );
    assert!(is_sink, "{:?}", outcomes[0].result);
    assert!(outcomes[1].result.is_ok(), "{:?}", outcomes[1].result);
    good.check(3, 1..11, &[], 0).await;
    assert!(bad.parked().await.is_empty());
    let trouble = bad.status().await.trouble.expect("why it stopped is noted");
    assert_eq!(trouble.why, "the sink is in trouble");
    assert_eq!(good.status().await.trouble, None);
    // An operator has acted.
    faults.heal();
    bad.drain(&faults).await;
    bad.check(3, 1..11, &[], 0).await;
    assert_eq!(bad.status().await.trouble, None);
}

/// G-05.
async fn a_sink_that_panics_is_contained(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(3, 1..10)).await;
    let faults = Faults::deciding(|offer| match (offer.number, offer.time) {
        (4, 1 | 2) => Fate::Panic,
        _ => Fate::Publish,
    });
    let totals = route.drain(&faults).await;
    assert_eq!((totals.delivered, totals.parked), (9, 0));
    // What was in the same call may have been kept.
    route.check(3, 1..10, &[], 2 * options().window.events_max).await;
}

/// G-01.
async fn a_sink_that_forgets_an_answer_is_contained(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(3, 1..10)).await;
    let faults = Faults::deciding(|offer| match (offer.number, offer.time) {
        (4, 1) => Fate::ForgetAnswer,
        _ => Fate::Publish,
    });
    let totals = route.drain(&faults).await;
    assert_eq!((totals.delivered, totals.parked), (9, 0));
    route.check(3, 1..10, &[], options().window.events_max).await;
}

/// G-05.
async fn a_sink_that_hangs_is_given_up(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(3, 1..10)).await;
    let faults = Faults::deciding(|offer| match (offer.number, offer.time) {
        (4, 1) => Fate::Hang,
        _ => Fate::Publish,
    });
    let call_max = route.target.capabilities().call_max;
    let mut impatient = Options { publish_timeout: call_max, drain: true, ..options() };
    impatient.retry.attempts = 10;
    let mut running = route.start(&faults, impatient).await;
    running.until("everything is delivered", |status| status.totals.delivered == 9).await;
    running.end().await.expect("the pipeline ends well");
    route.check(3, 1..10, &[], options().window.events_max).await;
}

/// What a readiness check looks at.
async fn no_progress_is_noticed(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&events("k0", 1..3)).await;
    let faults = Faults::deciding(|_| Fate::Hang);
    let stalls = Options {
        stall_after: Duration::from_millis(50),
        grace: Duration::from_millis(50),
        ..options()
    };
    let mut running = route.start(&faults, stalls).await;
    let is_stalled = |state| matches!(state, State::Running(Progress::Stalled { .. }));
    running.until("it is noticed", |status| is_stalled(status.state)).await;
    assert!(!running.status.borrow().is_ready());
    running.stopped().await;
    assert!(route.arrived().await.is_empty());
}
