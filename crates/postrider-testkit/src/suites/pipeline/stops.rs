//! Orderly stops.

use std::time::Duration;

use postrider_relay::pipeline::Options;
use tokio::time::Instant;

use super::faults::{Fate, Faults};
use super::relay::options;
use super::{RouteCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::spread;
use crate::suites::waiting::until;

/// Less than anything that a stop could wait for by mistake takes: a call, or the grace time.
const AT_ONCE: Duration = Duration::from_secs(15);

pub(super) fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    vec![
        case!(an_orderly_stop_repeats_nothing),
        case!(a_stop_ends_within_the_grace_time_when_the_sink_hangs),
        case!(an_idle_relay_stops_at_once),
        case!(a_relay_that_was_told_before_it_began_does_nothing),
    ]
}

/// G-04: whenever it comes.
async fn an_orderly_stop_repeats_nothing(routes: Subject) {
    let route = routes.fresh().await;
    let faults = Faults::none();
    let stops = 8;
    for stop in 0..stops {
        let first = stop * 20 + 1;
        route.outbox.write(&spread(5, first..first + 20)).await;
        let running = route.start(&faults, options()).await;
        let before = faults.offers().len();
        until("something is under way", || async { faults.offers().len() > before }).await;
        running.stopped().await;
    }
    route.drain(&faults).await;
    route.check(5, 1..stops * 20 + 1, &[], 0).await;
}

/// G-01: what hangs comes again at the next start.
async fn a_stop_ends_within_the_grace_time_when_the_sink_hangs(routes: Subject) {
    const GRACE: Duration = Duration::from_millis(200);
    let route = routes.fresh().await;
    route.outbox.write(&spread(3, 1..11)).await;
    let faults = Faults::deciding(|_| Fate::Hang);
    let running = route.start(&faults, Options { grace: GRACE, ..options() }).await;
    until("a call is under way", || async { !faults.offers().is_empty() }).await;
    let started = Instant::now();
    running.stopped().await;
    let took = started.elapsed();
    assert!(took >= GRACE && took < GRACE + AT_ONCE, "it took {took:?}");
    faults.heal();
    route.drain(&faults).await;
    route.check(3, 1..11, &[], 0).await;
}

async fn an_idle_relay_stops_at_once(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(3, 1..4)).await;
    let running = route.start(&Faults::none(), options()).await;
    route.until_arrived(3).await;
    let started = Instant::now();
    running.stopped().await;
    assert!(started.elapsed() < AT_ONCE, "it took {:?}", started.elapsed());
    route.check(3, 1..4, &[], 0).await;
}

async fn a_relay_that_was_told_before_it_began_does_nothing(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(3, 1..4)).await;
    let running = route.start(&Faults::none(), options()).await;
    // Nothing has run yet: the runtime has one thread, and this task has it.
    let totals = running.stopped().await;
    assert_eq!(totals.delivered as usize, route.arrived().await.len());
    route.drain(&Faults::none()).await;
    route.check(3, 1..4, &[], 0).await;
}
