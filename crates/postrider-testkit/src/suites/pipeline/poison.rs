//! Single events fail, for a while or for good.

use postrider_relay::admin::Selection;
use postrider_relay::failure::{FailureKind, SinkError};
use postrider_relay::pipeline::{OnDead, Options};

use super::faults::{Fate, Faults, Offer};
use super::relay::{Ended, options};
use super::{Route, RouteCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{event, spread};
use crate::suites::waiting::until;

pub(super) fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    vec![
        case!(a_bad_event_holds_up_its_own_key_only),
        case!(with_skip_a_bad_event_holds_up_nothing),
        case!(an_event_that_a_whole_call_is_refused_for_is_found),
        case!(a_failing_event_is_parked_after_its_attempts),
        case!(an_event_that_fails_at_first_keeps_its_place),
        case!(answers_that_differ_within_a_call_keep_every_key_in_order),
        case!(a_head_full_of_bad_events_stops_nobody),
        case!(a_retried_key_replays_in_order_while_the_relay_runs),
        case!(a_discarded_event_frees_its_key_while_the_relay_runs),
        case!(a_retried_event_that_is_still_bad_is_parked_again),
    ]
}

const KEYS: u32 = 3;

fn refused(kind: FailureKind) -> Fate {
    Fate::Refuse(SinkError::new(kind, "this event is bad"))
}

/// Event 4, of key 1, is rejected.
fn rejecting_four(offer: Offer) -> Fate {
    match offer.number {
        4 => refused(FailureKind::Rejected),
        _ => Fate::Publish,
    }
}

async fn written(routes: &Subject) -> Route {
    let route = routes.fresh().await;
    route.outbox.write(&spread(KEYS, 1..16)).await;
    route
}

/// G-01, G-03, G-05: the policy `park`.
async fn a_bad_event_holds_up_its_own_key_only(routes: Subject) {
    let route = written(&routes).await;
    let faults = Faults::deciding(rejecting_four);
    let totals = route.drain(&faults).await;
    assert_eq!(totals.parked, 1);
    assert_eq!(faults.times_offered(4), 1, "what is rejected is not tried again");
    assert_eq!(route.parked().await, [4]);
    route.check(KEYS, 1..16, &[4, 7, 10, 13], 0).await;
    let letter = &route.letters().await[0];
    assert_eq!((letter.kind.as_str(), letter.error.as_str()), ("rejected", "this event is bad"));
    assert_eq!(letter.queued_behind, 3);
    // What comes later waits as well, also for the next relay.
    route.outbox.write(&spread(KEYS, 16..19)).await;
    route.drain(&faults).await;
    route.check(KEYS, 1..19, &[4, 7, 10, 13, 16], 0).await;
    faults.heal();
    assert_eq!(route.retry().await, 1);
    route.drain(&faults).await;
    route.check(KEYS, 1..19, &[], 0).await;
}

/// G-01, G-05: the policy `skip`.
async fn with_skip_a_bad_event_holds_up_nothing(routes: Subject) {
    let route = written(&routes).await;
    let faults = Faults::deciding(rejecting_four);
    let skip = Options { on_dead: OnDead::Skip, ..options() };
    assert!(matches!(route.run(&faults, skip.clone()).await, Ended::Drained(_)));
    assert_eq!(route.parked().await, [4]);
    route.check(KEYS, 1..16, &[4], 0).await;
    faults.heal();
    assert_eq!(route.retry().await, 1);
    assert!(matches!(route.run(&faults, skip).await, Ended::Drained(_)));
    let arrived = route.arrived().await;
    assert_eq!((arrived.len(), arrived.last()), (15, Some(&4)), "it has left the order");
}

/// G-03, G-04, G-05: nothing is counted against those that were refused with it.
async fn an_event_that_a_whole_call_is_refused_for_is_found(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(KEYS, 1..101)).await;
    let faults = Faults::deciding(|offer| match offer.number {
        40 => Fate::RefuseCall(SinkError::new(FailureKind::Rejected, "this event is bad")),
        _ => Fate::Publish,
    });
    let totals = route.drain(&faults).await;
    assert_eq!(totals.parked, 1);
    let letters = route.letters().await;
    assert_eq!((letters.len(), letters[0].attempts), (1, 1));
    assert_eq!(letters[0].error, "this event is bad");
    let waiting: Vec<u32> = (40..101).step_by(KEYS as usize).collect();
    route.check(KEYS, 1..101, &waiting, 0).await;
    let offers = faults.offers().len();
    assert!(offers < 1000, "{offers} messages were sent for 100 events");
    faults.heal();
    assert_eq!(route.retry().await, 1);
    route.drain(&faults).await;
    route.check(KEYS, 1..101, &[], 0).await;
}

/// G-05.
async fn a_failing_event_is_parked_after_its_attempts(routes: Subject) {
    let route = written(&routes).await;
    let faults = Faults::deciding(|offer| match offer.number {
        4 => refused(FailureKind::Failed),
        _ => Fate::Publish,
    });
    route.drain(&faults).await;
    assert_eq!(faults.times_offered(4), 3);
    let letters = route.letters().await;
    assert_eq!((letters.len(), letters[0].attempts), (1, 3));
    assert_eq!(letters[0].kind, "failed");
    route.check(KEYS, 1..16, &[4, 7, 10, 13], 0).await;
}

/// G-03.
async fn an_event_that_fails_at_first_keeps_its_place(routes: Subject) {
    let route = written(&routes).await;
    let faults = Faults::deciding(|offer| match (offer.number, offer.time) {
        (4 | 5 | 10, 1 | 2) => refused(FailureKind::Failed),
        _ => Fate::Publish,
    });
    let totals = route.drain(&faults).await;
    assert_eq!((totals.delivered, totals.parked), (15, 0));
    route.check(KEYS, 1..16, &[], 0).await;
}

/// G-03, G-04: 1, 3 and 5 succeed.
async fn answers_that_differ_within_a_call_keep_every_key_in_order(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(6, 1..61)).await;
    let faults = Faults::deciding(|offer| match (offer.number % 2, offer.time) {
        (0, 1) => refused(FailureKind::Failed),
        _ => Fate::Publish,
    });
    let totals = route.drain(&faults).await;
    assert_eq!((totals.delivered, totals.parked), (60, 0));
    route.check(6, 1..61, &[], 0).await;
}

/// G-05: more of them than fit into the window.
async fn a_head_full_of_bad_events_stops_nobody(routes: Subject) {
    let route = routes.fresh().await;
    let bad = options().window.events_max as u32 * 3;
    let mut written = spread(1000, 1..bad + 1);
    written.extend((bad + 1..bad + 11).map(|number| event("good", number)));
    route.outbox.write(&written).await;
    let faults = Faults::deciding(move |offer| match offer.number <= bad {
        true => refused(FailureKind::Rejected),
        false => Fate::Publish,
    });
    let totals = route.drain(&faults).await;
    assert_eq!((totals.parked, totals.delivered), (bad.into(), 10));
    assert_eq!(route.arrived().await, (bad + 1..bad + 11).collect::<Vec<_>>());
}

/// G-03.
async fn a_retried_key_replays_in_order_while_the_relay_runs(routes: Subject) {
    let route = written(&routes).await;
    let faults = Faults::deciding(rejecting_four);
    let running = route.start(&faults, options()).await;
    route.until_arrived(11).await;
    until("the key waits", || async { route.status().await.queued == 3 }).await;
    faults.heal();
    assert_eq!(route.retry().await, 1);
    route.outbox.write(&spread(KEYS, 16..22)).await;
    route.until_arrived(21).await;
    running.stopped().await;
    route.check(KEYS, 1..22, &[], 0).await;
}

/// G-01.
async fn a_discarded_event_frees_its_key_while_the_relay_runs(routes: Subject) {
    let route = written(&routes).await;
    let faults = Faults::deciding(rejecting_four);
    let running = route.start(&faults, options()).await;
    until("the key waits", || async { route.status().await.queued == 3 }).await;
    let discarded = route.outbox.admin().await.discard(&Selection::default()).await;
    assert_eq!(discarded.expect("dead letters can be discarded"), 1);
    route.outbox.write(&spread(KEYS, 16..22)).await;
    route.until_arrived(20).await;
    running.stopped().await;
    route.check(KEYS, 1..22, &[4], 0).await;
}

/// G-03.
async fn a_retried_event_that_is_still_bad_is_parked_again(routes: Subject) {
    let route = written(&routes).await;
    let faults = Faults::deciding(rejecting_four);
    route.drain(&faults).await;
    for tries in 2..4 {
        assert_eq!(route.retry().await, 1);
        route.drain(&faults).await;
        assert_eq!(faults.times_offered(4), tries);
        assert_eq!(route.parked().await, [4]);
    }
    route.check(KEYS, 1..16, &[4, 7, 10, 13], 0).await;
}
