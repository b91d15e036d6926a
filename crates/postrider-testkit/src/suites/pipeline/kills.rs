//! The relay dies: at every single call, again and again, and because of an event.

use std::time::Duration;

use postrider_relay::failure::{FailureKind, SinkError};
use postrider_relay::pipeline::{Options, Retry, Window};

use super::faults::{Fate, Faults};
use super::relay::{Ended, options};
use super::{RouteCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::spread;
use crate::suites::waiting::{turns, within_time};

pub(super) fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    vec![
        case!(a_kill_at_any_call_loses_and_reorders_nothing).lasting(ALL_ROUNDS_MAX),
        case!(kills_in_a_row_lose_and_reorder_nothing).lasting(ALL_ROUNDS_MAX),
        case!(kills_at_any_moment_lose_and_reorder_nothing).lasting(ALL_ROUNDS_MAX),
        case!(an_event_that_kills_the_relay_is_parked_and_others_flow).lasting(ALL_ROUNDS_MAX),
    ]
}

/// Longest time for a route to be made, a relay to be killed and another one to get through.
const ROUND_MAX: Duration = Duration::from_secs(120);
/// Most rounds until one gets through.
const ROUNDS_MAX: usize = 100;
/// Longest time for a case. It is each round that must not take long.
const ALL_ROUNDS_MAX: Duration = Duration::from_secs(1800);

const KEYS: u32 = 3;
const WINDOW: usize = 4;

fn in_small_steps(attempts: u32) -> Options {
    let options = options();
    Options {
        window: Window { events_max: WINDOW, ..options.window },
        retry: Retry { attempts, ..options.retry },
        ..options
    }
}

/// Event 5 fails at first, so that the way of events set aside is walked, too.
fn fails_once(offer: super::faults::Offer) -> Fate {
    match (offer.number, offer.time) {
        (5, 1) => Fate::Refuse(SinkError::new(FailureKind::Failed, "not this time")),
        _ => Fate::Publish,
    }
}

/// G-01, G-03, G-04: read and not sent, sent and not answered, answered and not settled,
/// settled and not known; each place in turn until one run gets through.
async fn a_kill_at_any_call_loses_and_reorders_nothing(routes: Subject) {
    for call in 1..=ROUNDS_MAX {
        let what = format!("a kill at call {call}, and all events");
        if let Ended::Drained(_) = within_time(ROUND_MAX, &what, killed_at(&routes, call)).await {
            assert!(call > 15, "only {call} calls: the faults did not bite");
            return;
        }
    }
    panic!("no relay gets through, in {ROUNDS_MAX} rounds");
}

/// Kills a relay at a call, if it comes to it, and lets another one do the rest. The answer is how
/// the first one ended.
async fn killed_at(routes: &Subject, call: usize) -> Ended {
    let route = routes.fresh().await;
    route.outbox.write(&spread(KEYS, 1..13)).await;
    let faults = Faults::deciding(fails_once);
    faults.burn_at(call);
    let ended = route.run(&faults, in_small_steps(10)).await;
    let mut repeated = 0;
    if let Ended::Killed = ended {
        repeated = route.repeated(WINDOW);
        match route.run(&faults, in_small_steps(10)).await {
            Ended::Drained(_) => {}
            Ended::Killed => panic!("the fuse burns once"),
        }
        assert!(route.parked().await.is_empty(), "killed at call {call}");
    }
    route.check(KEYS, 1..13, &[], repeated).await;
    ended
}

/// G-01, G-03, G-04: with the care that follows on crashes.
async fn kills_in_a_row_lose_and_reorder_nothing(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(KEYS, 1..25)).await;
    let faults = Faults::deciding(fails_once);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut kills = 0;
    loop {
        if kills < 25 {
            faults.burn_at(rng.usize(1..12));
        }
        match route.run(&faults, in_small_steps(1000)).await {
            Ended::Killed => kills += 1,
            Ended::Drained(_) => break,
        }
    }
    assert!(kills > 3, "the faults did not bite");
    route.check(KEYS, 1..25, &[], route.repeated(kills * WINDOW)).await;
    assert!(route.parked().await.is_empty());
}

/// G-01, G-03, G-04: not only between calls, and while events are written.
async fn kills_at_any_moment_lose_and_reorder_nothing(routes: Subject) {
    let route = routes.fresh().await;
    let mut rng = fastrand::Rng::with_seed(9);
    let faults = Faults::none();
    let kills = 12;
    for kill in 0..kills {
        let running = route.start(&faults, in_small_steps(1000)).await;
        let first = kill * 6 + 1;
        route.outbox.write(&spread(KEYS, first..first + 6)).await;
        turns(rng.usize(0..60)).await;
        running.killed().await;
    }
    match route.run(&faults, in_small_steps(1000)).await {
        Ended::Drained(_) => {}
        Ended::Killed => panic!("nobody kills it any more"),
    }
    let repeated = route.repeated(kills as usize * WINDOW);
    route.check(KEYS, 1..kills * 6 + 1, &[], repeated).await;
}

/// G-01, G-05: nobody is left to count the attempt, and yet it is found.
async fn an_event_that_kills_the_relay_is_parked_and_others_flow(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(KEYS, 1..13)).await;
    let faults = Faults::deciding(|offer| match offer.number {
        4 => Fate::Kill,
        _ => Fate::Publish,
    });
    let mut starts = 1;
    while let Ended::Killed = route.run(&faults, in_small_steps(3)).await {
        starts += 1;
        assert!(starts < 30, "the relay is still killed after {starts} starts");
    }
    assert_eq!(route.parked().await, [4]);
    assert!(route.letters().await[0].error.contains("the relay stopped"));
    // Everything of its key waits behind it.
    let repeated = route.repeated(starts * WINDOW);
    route.check(KEYS, 1..13, &[4, 7, 10], repeated).await;
    faults.heal();
    assert_eq!(route.retry().await, 1);
    route.drain(&faults).await;
    route.check(KEYS, 1..13, &[], repeated).await;
}
