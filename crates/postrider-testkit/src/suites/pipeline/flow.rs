//! Nothing goes wrong, or only with single events.

use std::time::{Duration, SystemTime};

use super::faults::Faults;
use super::relay::options;
use super::{RouteCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, event, spread};
use crate::suites::waiting::until;

pub(super) fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    vec![
        case!(every_event_arrives_once_and_in_order),
        case!(an_empty_outbox_is_drained_at_once),
        case!(events_written_while_it_runs_arrive),
        case!(a_delayed_event_arrives_in_its_time_and_holds_up_nothing),
        case!(an_event_too_large_for_the_sink_is_parked),
        case!(rows_that_are_no_events_are_parked_and_others_flow),
    ]
}

/// G-01, G-02, G-03, G-04.
async fn every_event_arrives_once_and_in_order(routes: Subject) {
    let route = routes.fresh().await;
    route.outbox.write(&spread(7, 1..201)).await;
    let mut rolled_back = route.outbox.begin().await;
    rolled_back.publish(&event("k1", 999)).await;
    rolled_back.rollback().await;
    let totals = route.drain(&Faults::none()).await;
    assert_eq!(totals.delivered, 200);
    route.check(7, 1..201, &[], 0).await;
    let again = route.drain(&Faults::none()).await;
    assert_eq!(again.delivered, 0);
    route.check(7, 1..201, &[], 0).await;
}

async fn an_empty_outbox_is_drained_at_once(routes: Subject) {
    let route = routes.fresh().await;
    assert_eq!(route.drain(&Faults::none()).await, Default::default());
    assert!(route.arrived().await.is_empty());
}

/// G-01, G-03, G-04.
async fn events_written_while_it_runs_arrive(routes: Subject) {
    let route = routes.fresh().await;
    let running = route.start(&Faults::none(), options()).await;
    for first in (1..101).step_by(5) {
        route.outbox.write(&spread(7, first..first + 5)).await;
    }
    route.until_arrived(100).await;
    let totals = running.stopped().await;
    assert_eq!(totals.delivered, 100);
    route.check(7, 1..101, &[], 0).await;
}

/// It has left the order of its key.
async fn a_delayed_event_arrives_in_its_time_and_holds_up_nothing(routes: Subject) {
    let route = routes.fresh().await;
    // Long enough to connect on a busy machine.
    let delay = route.target.capabilities().call_max.max(Duration::from_millis(2500));
    let started = tokio::time::Instant::now();
    let due = SystemTime::now() + delay;
    let delayed = building("k1", 1).deliver_after(due).build();
    route.outbox.write(&[delayed.expect("the event is valid"), event("k1", 2)]).await;
    let running = route.start(&Faults::none(), options()).await;
    route.until_arrived(1).await;
    assert_eq!(route.arrived().await, [2], "it does not wait for the delayed one");
    route.until_arrived(2).await;
    assert_eq!(route.arrived().await, [2, 1]);
    // The clocks of database and test may differ by a little.
    assert!(started.elapsed() + Duration::from_millis(100) >= delay, "{:?}", started.elapsed());
    let totals = running.stopped().await;
    assert_eq!((totals.delivered, totals.parked), (2, 0));
}

/// G-05.
async fn an_event_too_large_for_the_sink_is_parked(routes: Subject) {
    let route = routes.fresh().await;
    let large = building("k1", 1).payload(vec![b'x'; 2000], "text/plain").build();
    let large = large.expect("the event is valid");
    route.outbox.write(&[large, event("k1", 4), event("k2", 2)]).await;
    let mut faults = Faults::none();
    faults.event_bytes_max = Some(1000);
    route.drain(&faults).await;
    assert_eq!(route.arrived().await, [2]);
    let letters = route.letters().await;
    assert_eq!((letters.len(), letters[0].queued_behind), (1, 1));
    assert_eq!(letters[0].kind, "rejected");
    assert!(letters[0].error.contains("2000 bytes"), "{}", letters[0].error);
    assert_eq!(route.retry().await, 1);
    route.drain(&Faults::none()).await;
    assert_eq!(route.arrived().await, [2, 1, 4]);
}

/// G-05.
async fn rows_that_are_no_events_are_parked_and_others_flow(routes: Subject) {
    let route = routes.fresh().await;
    let tamperings = route.outbox.capabilities().tamperings;
    for (number, tampering) in (1..).zip(tamperings) {
        route.outbox.tamper(&format!("bad{number}"), *tampering).await;
        route.outbox.write(&[event("k1", number)]).await;
    }
    let running = route.start(&Faults::none(), options()).await;
    route.until_arrived(tamperings.len()).await;
    let parked = tamperings.len() as u64;
    until("all bad rows are parked", || async { route.status().await.parked == parked }).await;
    running.stopped().await;
    route.check(1, 1..=tamperings.len() as u32, &[], 0).await;
}
