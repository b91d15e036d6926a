//! The target refuses: one key, one topic, or everything.

use postrider_relay::failure::{FailureKind, SinkError};
use postrider_relay::pipeline::{Options, Status};

use super::faults::{Fate, Faults};
use super::relay::options;
use super::{Route, RouteCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, key_of, spread};
use crate::suites::sink::Behaviour;
use crate::suites::waiting::until;

pub(super) fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    let lacks_topics = |can: &RouteCapabilities| can.target.lacks_topics;
    let answers = |can: &RouteCapabilities| {
        let behaviours = can.target.misbehaviours.iter();
        behaviours.map(|(behaviour, _)| behaviour).any(|one| matches!(one, Behaviour::Answers(_)))
    };
    vec![
        case!(one_refused_key_delays_only_itself),
        case!(everything_refused_parks_nothing_more_and_drains_after),
        case!(a_drain_waits_while_everything_is_refused),
        case!(trouble_of_the_sink_is_in_the_status_until_it_is_over),
        case!(an_unusable_topic_holds_up_its_own_key_only)
            .needing(lacks_topics, "every topic can be used"),
        case!(unusable_topics_of_many_keys_are_an_outage)
            .needing(lacks_topics, "every topic can be used"),
        case!(a_status_for_one_key_holds_up_that_key_only)
            .needing(answers, "the target answers with no status"),
        case!(a_status_for_everything_parks_nothing_and_drains_after)
            .needing(answers, "the target answers with no status"),
        case!(a_status_that_rejects_everything_parks_nine_keys_at_most)
            .needing(answers, "the target answers with no status"),
    ]
}

const KEYS: u32 = 3;
/// More keys than an outage takes.
const MANY_KEYS: u32 = 20;
/// Statuses that may be about one event or about everybody.
const REFUSALS: [Behaviour; 7] = [
    Behaviour::Answers(401),
    Behaviour::Answers(403),
    Behaviour::Answers(404),
    Behaviour::Answers(405),
    Behaviour::Answers(407),
    Behaviour::Answers(410),
    Behaviour::Redirects,
];

fn refused() -> Fate {
    Fate::Refuse(SinkError::new(FailureKind::Refused, "you are not welcome"))
}

/// G-03, G-05.
async fn one_refused_key_delays_only_itself(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(KEYS, 1..16)).await;
    let faults = Faults::deciding(|offer| match offer.number % KEYS {
        1 => refused(),
        _ => Fate::Publish,
    });
    let totals = route.drain(&faults).await;
    assert_eq!((totals.parked, totals.delivered), (1, 10));
    assert_eq!(faults.times_offered(1), 3, "its attempts");
    let letter = &route.letters().await[0];
    assert_eq!((letter.kind.as_str(), letter.error.as_str()), ("refused", "you are not welcome"));
    assert_eq!((letter.attempts, letter.queued_behind), (3, 4));
    route.check(KEYS, 1..16, &[1, 4, 7, 10, 13], 0).await;
    faults.heal();
    assert_eq!(route.retry().await, 1);
    route.drain(&faults).await;
    route.check(KEYS, 1..16, &[], 0).await;
}

/// G-06.
async fn everything_refused_parks_nothing_more_and_drains_after(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(MANY_KEYS, 1..61)).await;
    let faults = Faults::deciding(|_| refused());
    let mut running = route.start(&faults, options()).await;
    running.until("an outage is noticed", |status| status.circuit_open).await;
    let before = faults.offers().len();
    // More than a few rounds: each of them lets more events through.
    until("it is probed", || async { faults.offers().len() >= before + 7 }).await;
    assert_eq!(route.status().await.parked, 0);
    faults.heal();
    running.until("all are delivered", |status| status.totals.delivered == 60).await;
    let totals = running.stopped().await;
    assert_eq!(totals.parked, 0);
    route.check(MANY_KEYS, 1..61, &[], 0).await;
}

/// G-06: what an operator sees without the relay's log.
async fn trouble_of_the_sink_is_in_the_status_until_it_is_over(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(MANY_KEYS, 1..MANY_KEYS + 1)).await;
    let faults = Faults::deciding(|_| refused());
    let running = route.start(&faults, patient()).await;
    until("it is in the status", || async { route.status().await.trouble.is_some() }).await;
    let trouble = route.status().await.trouble.expect("it goes on");
    assert_eq!(trouble.why, "you are not welcome");
    // Nobody knows that it is over while no relay runs.
    running.stopped().await;
    assert_eq!(route.status().await.trouble, Some(trouble));
    faults.heal();
    let running = route.start(&faults, patient()).await;
    until("it is over", || async { route.status().await.trouble.is_none() }).await;
    let totals = running.stopped().await;
    assert_eq!(totals.parked, 0);
    assert_eq!(route.status().await.trouble, None);
}

/// G-06: a drain ends when nothing is pending, and what is refused is.
async fn a_drain_waits_while_everything_is_refused(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(MANY_KEYS, 1..MANY_KEYS + 1)).await;
    let faults = Faults::deciding(|_| refused());
    let drain = Options { drain: true, ..options() };
    let mut running = route.start(&faults, drain).await;
    running.until("an outage is noticed", |status| status.circuit_open).await;
    let before = faults.offers().len();
    until("it is probed", || async { faults.offers().len() > before }).await;
    assert!(!running.is_over());
    faults.heal();
    let totals = running.end().await.expect("the drain ends well");
    assert_eq!((totals.delivered, totals.parked), (MANY_KEYS.into(), 0));
}

/// G-05: the topic came from the event.
async fn an_unusable_topic_holds_up_its_own_key_only(routes: Subject) {
    let route = routes.fresh().await;
    let topic = route.target.unusable_topic().await;
    let mut written = spread(KEYS, 1..16);
    let bad = building(&key_of(4, KEYS), 4).topic(topic).build();
    written[3] = bad.expect("the event is valid");
    route.outbox.write(&written).await;
    let totals = route.drain(&Faults::none()).await;
    assert_eq!((totals.parked, totals.delivered), (1, 11));
    assert_eq!(route.parked().await, [4]);
    let letter = &route.letters().await[0];
    assert_eq!((letter.kind.as_str(), letter.queued_behind), ("refused", 3));
    route.check(KEYS, 1..16, &[4, 7, 10, 13], 0).await;
}

/// G-06: nothing else is there that would tell whose fault it is.
async fn unusable_topics_of_many_keys_are_an_outage(routes: Subject) {
    let route = routes.fresh().await;
    let topic = route.target.unusable_topic().await;
    // Ten are an outage, and more must not fill the window.
    let bad_keys = 11;
    let bad = |number| building(&key_of(number, bad_keys), number).topic(topic.clone()).build();
    let written: Vec<_> = (1..bad_keys + 1).map(|number| bad(number).expect("valid")).collect();
    route.outbox.write(&written).await;
    let mut running = route.start(&Faults::none(), patient()).await;
    running.until("an outage is noticed", |status| status.circuit_open).await;
    assert!(running.status.borrow().trouble.as_ref().is_some_and(|why| why.contains(&topic)));
    // What can be sent flows as soon as it is found.
    let event = building("good", bad_keys + 1).build();
    route.outbox.write(&[event.expect("the event is valid")]).await;
    route.until_arrived(1).await;
    let totals = running.stopped().await;
    assert_eq!((totals.parked, totals.delivered), (0, 1));
    assert!(route.parked().await.is_empty());
}

/// G-05.
async fn a_status_for_one_key_holds_up_that_key_only(routes: Subject) {
    for status in [401, 403, 404, 405, 407, 410, 307] {
        let route = routes.fresh().await;
        route.outbox.write(&spread(KEYS, 1..16)).await;
        route.target.behave(Behaviour::AnswersKey("k1", status)).await;
        let totals = route.drain(&Faults::none()).await;
        assert_eq!((totals.parked, totals.delivered), (1, 10), "{status}");
        let letter = &route.letters().await[0];
        assert_eq!((letter.attempts, letter.queued_behind), (3, 4), "{status}");
        route.check(KEYS, 1..16, &[1, 4, 7, 10, 13], 0).await;
        route.target.behave(Behaviour::Well).await;
        assert_eq!(route.retry().await, 1);
        route.drain(&Faults::none()).await;
        route.check(KEYS, 1..16, &[], 0).await;
    }
}

/// G-06.
async fn a_status_for_everything_parks_nothing_and_drains_after(routes: Subject) {
    for behaviour in REFUSALS {
        let route = routes.fresh().await;
        let parked = refused_and_healed(&route, behaviour, patient()).await;
        assert_eq!(parked, 0, "{behaviour:?}");
        route.check(MANY_KEYS, 1..61, &[], 0).await;
    }
}

/// G-06: even of a status that says that an event can never be taken.
async fn a_status_that_rejects_everything_parks_nine_keys_at_most(routes: Subject) {
    for status in [400, 422] {
        let route = routes.fresh().await;
        let parked = refused_and_healed(&route, Behaviour::Answers(status), options()).await;
        assert!(parked < 10, "{parked} are parked after {status}");
        route.retry().await;
        route.drain(&Faults::none()).await;
        route.check(MANY_KEYS, 1..61, &[], 0).await;
    }
}

/// So many attempts that no event is parked while the others are still to be tried.
fn patient() -> Options {
    let mut patient = options();
    patient.retry.attempts = 100;
    patient
}

/// Lets a target misbehave to everything until the outage is noticed and probed, and then behave
/// well until everything is delivered that is not parked. Answers how many are parked.
async fn refused_and_healed(route: &Route, behaviour: Behaviour, options: Options) -> u64 {
    route.outbox.write(&spread(MANY_KEYS, 1..61)).await;
    route.target.behave(behaviour).await;
    let faults = Faults::none();
    let mut running = route.start(&faults, options).await;
    running.until("an outage is noticed", |status| status.circuit_open).await;
    let before = faults.offers().len();
    until("it is probed", || async { faults.offers().len() > before }).await;
    let parked = running.status.borrow().totals.parked;
    route.target.behave(Behaviour::Well).await;
    let is_over = |status: &Status| status.totals.delivered + waiting(status) >= 60;
    running.until("the rest is delivered", is_over).await;
    let totals = running.stopped().await;
    assert_eq!(totals.parked, parked, "none is parked in an outage, nor after it");
    parked
}

/// Events behind a parked one of their key, and that one: three are of each key.
fn waiting(status: &Status) -> u64 {
    status.totals.parked * 3
}
