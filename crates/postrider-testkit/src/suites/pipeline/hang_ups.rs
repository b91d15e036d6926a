//! The server closes connections: because of one message, or because it has trouble itself.

use std::sync::atomic::{AtomicU32, Ordering};

use postrider::Event;

use super::faults::Faults;
use super::relay::options;
use super::trouble::is_outage;
use super::{RouteCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, event, key_of, spread};
use crate::suites::sink::Behaviour;
use crate::suites::waiting::until;

pub(super) fn cases() -> Vec<Case<Subject, RouteCapabilities>> {
    let hangs_up = |can: &RouteCapabilities| can.target.hangs_up;
    vec![
        case!(a_message_that_makes_the_server_close_the_connection_delays_its_own_key_only)
            .needing(hangs_up, "the target hangs up on nobody"),
        case!(a_server_that_closes_every_connection_is_an_outage_and_parks_nothing)
            .needing(hangs_up, "the target hangs up on nobody"),
    ]
}

const KEYS: u32 = 20;
/// What the server hangs up on.
const DEADLY: &str = "hang-up-on-this";
/// What every message has.
const ORDINARY: &str = "postrider-event-type";

fn deadly(number: u32) -> Event {
    let event = building(&key_of(number, KEYS), number).payload(DEADLY, "text/plain");
    event.build().expect("the event is valid")
}

/// G-03, G-05, G-06: it is found among others, whatever it is that the server does not like.
/// Others go on meanwhile, and nothing is counted against them.
async fn a_message_that_makes_the_server_close_the_connection_delays_its_own_key_only(
    routes: Subject,
) {
    let route = routes.fresh().await;
    route.target.behave(Behaviour::HangsUpAt(DEADLY)).await;
    let mut written = spread(KEYS, 1..101);
    written[3] = deadly(4);
    route.outbox.write(&written).await;
    let running = route.start(&Faults::none(), options()).await;
    // Whoever is alone cannot be told from an outage: others come, as they do.
    let next = AtomicU32::new(101);
    until("the event is parked", || async {
        if route.arrived().await.len() as u32 + 50 > next.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            route.outbox.write(&[event(&key_of(number, KEYS), number)]).await;
        }
        route.parked().await == [4]
    })
    .await;
    let end = next.load(Ordering::Relaxed);
    let of_its_key: Vec<u32> = (4..end).step_by(KEYS as usize).collect();
    let others = (end - 1) as usize - of_its_key.len();
    route.until_arrived(others).await;
    let totals = running.stopped().await;
    assert_eq!((totals.parked, totals.delivered, totals.deferred), (1, others as u64, 2));
    let letters = route.letters().await;
    assert_eq!((letters[0].kind.as_str(), letters[0].attempts), ("unavailable", 3));
    route.check(KEYS, 1..end, &of_its_key, route.repeated(1000)).await;
    // Once the server takes it, so does its key go on.
    route.target.behave(Behaviour::Well).await;
    assert_eq!(route.retry().await, 1);
    route.drain(&Faults::none()).await;
    route.check(KEYS, 1..end, &[], route.repeated(1000)).await;
}

/// G-06: connections come about and end with the first message, whichever it is.
async fn a_server_that_closes_every_connection_is_an_outage_and_parks_nothing(routes: Subject) {
    let route = routes.fresh().await;
    route.target.behave(Behaviour::HangsUpAt(ORDINARY)).await;
    route.outbox.write(&spread(KEYS, 1..101)).await;
    let faults = Faults::none();
    let mut running = route.start(&faults, options()).await;
    running.until("an outage is noticed", |status| is_outage(status.state)).await;
    let before = faults.offers().len();
    until("probes are sent", || async { faults.offers().len() >= before + 3 }).await;
    route.target.behave(Behaviour::Well).await;
    route.until_arrived(100).await;
    let totals = running.stopped().await;
    assert_eq!((totals.delivered, totals.parked, totals.deferred), (100, 0, 0));
    route.check(KEYS, 1..101, &[], route.repeated(1000)).await;
}
