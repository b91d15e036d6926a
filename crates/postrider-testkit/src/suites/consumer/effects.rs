//! Each event has its effect once, in order.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::Event;
use postrider_relay::formats::Format;

use super::{Act, Capabilities, Paid, Subject, Work};
use crate::case;
use crate::suites::Case;

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(events_of_a_key_are_applied_in_order_and_others_beside_them),
        case!(two_consumers_of_an_event_both_apply_it),
        case!(a_replay_changes_nothing)
            .needing(|can| can.repeats, "what is stored twice is kept once"),
        case!(a_handler_publishes_in_its_transaction),
        case!(every_format_of_the_relay_is_understood)
            .needing(|can| can.is_relayed, "the relay does not publish there"),
        case!(fields_that_were_added_are_passed_over),
        case!(what_comes_too_early_waits_and_what_comes_too_late_is_passed_over),
        case!(what_was_acknowledged_does_not_come_again),
        case!(a_slow_handler_keeps_its_delivery)
            .needing(|can| can.has_visibility, "it gives a delivery to nobody else"),
    ]
}

/// Payments, as many for each account.
pub(super) fn payments(accounts: u32, each: u32) -> Vec<Event> {
    let numbers = (1..=each).flat_map(|number| (0..accounts).map(move |of| (of, number)));
    numbers.map(|(of, number)| Paid::event(&format!("a{of}"), number, i64::from(number))).collect()
}

/// G-03, G-08.
async fn events_of_a_key_are_applied_in_order_and_others_beside_them(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(30, 20);
    topic.publish(&events).await;
    let goes_on = Arc::new(AtomicBool::new(false));
    let blocked = Arc::clone(&goes_on);
    // One key waits until all others are done with.
    let work = Work::new("billing", &ledger).acting(move |event| {
        let waits = event.aggregate_id() == "a7" && !blocked.load(Ordering::SeqCst);
        if waits { Act::Fail } else { Act::Succeed }
    });
    let patient = postrider_consumer::Retry { attempts_max: u32::MAX, ..work.retry };
    let consuming = topic.consume("billing", Work { retry: patient, ..work });
    consuming.until("all other keys are done", |counts| counts.handled == 29 * 20).await;
    assert_eq!(ledger.count("billing").await, 29 * 20);
    goes_on.store(true, Ordering::SeqCst);
    consuming.until("the last key is done", |counts| counts.handled == 30 * 20).await;
    let counts = consuming.stop().await;
    assert_eq!((counts.buried, counts.in_flight), (0, 0), "{counts:?}");
    ledger.check("billing", &events).await;
}

/// G-08.
async fn two_consumers_of_an_event_both_apply_it(subject: Subject) {
    let Subject { topic, ledger } = subject;
    for group in ["billing", "shipping"] {
        topic.add_group(group).await;
    }
    let events = payments(3, 5);
    topic.publish(&events).await;
    for group in ["billing", "shipping"] {
        let consuming = topic.consume(group, Work::new(group, &ledger));
        consuming.until("all are applied", |counts| counts.handled == 15).await;
        consuming.stop().await;
        ledger.check(group, &events).await;
    }
}

/// G-08.
async fn a_replay_changes_nothing(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(10, 10);
    topic.publish(&events).await;
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("all are applied", |counts| counts.handled == 100).await;
    topic.publish(&events).await;
    consuming.until("all came again", |counts| counts.duplicates == 100).await;
    assert_eq!(consuming.stop().await.handled, 100);
    ledger.check("billing", &events).await;
}

/// G-01, G-08: consume, change, produce are one commit.
async fn a_handler_publishes_in_its_transaction(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(5, 4);
    topic.publish(&events).await;
    topic.publish(&events).await;
    let failed = std::sync::Mutex::new(HashSet::new());
    // Each of them fails once, after it has published.
    let work = Work::new("billing", &ledger).acting(move |event| {
        let is_first = failed.lock().expect("nobody panics").insert(event.id());
        if is_first { Act::Fail } else { Act::Succeed }
    });
    let consuming = topic.consume("billing", work);
    consuming.until("all are applied", |counts| counts.handled == 20).await;
    let repeats = if topic.capabilities().repeats { 20 } else { 0 };
    consuming.until("all came again", |counts| counts.duplicates == repeats).await;
    consuming.stop().await;
    let mut expected: Vec<_> = events.iter().map(Event::id).collect();
    expected.sort_unstable();
    assert_eq!(ledger.receipts().await, expected);
    ledger.check("billing", &events).await;
}

async fn every_format_of_the_relay_is_understood(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let mut events = Vec::new();
    for (format, number) in Format::ALL.into_iter().zip(1..) {
        // Not every format tells the aggregate's type, so they may differ in their key.
        let event = Paid::event(&format!("a%20b ä{number}"), 1, 5);
        topic.relay(event.clone(), format).await;
        events.push(event);
    }
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("all are applied", |counts| counts.handled == 4).await;
    assert_eq!(consuming.stop().await.buried, 0);
    ledger.check("billing", &events).await;
}

async fn fields_that_were_added_are_passed_over(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let json = serde_json::json!({"account": "a", "number": 1, "cents": 5, "currency": "EUR"});
    let event = Event::builder("Account", "a", "Paid").json(&json).build().expect("it is valid");
    let other = Event::builder("Account", "a", "Opened").json(&json).build().expect("it is valid");
    let events = [event];
    topic.publish(&events).await;
    topic.publish(&[other]).await;
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("it is applied", |counts| counts.handled == 1 && counts.skipped == 1).await;
    consuming.stop().await;
    ledger.check("billing", &events).await;
}

/// F82: a producer, or a broker that delivers again, mixes up the order of a key.
async fn what_comes_too_early_waits_and_what_comes_too_late_is_passed_over(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let in_order = payments(5, 4);
    let mut mixed = in_order.clone();
    mixed.reverse();
    topic.publish(&mixed).await;
    let work = Work { refuses_gaps: true, ..Work::new("billing", &ledger) };
    let patient = postrider_consumer::Retry { attempts_max: u32::MAX, ..work.retry };
    let consuming = topic.consume("billing", Work { retry: patient, ..work });
    consuming.until("all are applied", |counts| counts.handled == 20).await;
    // Another event that says to be the second one.
    topic.publish(&[Paid::event("a0", 2, 1)]).await;
    consuming.until("the late one is passed over", |counts| counts.stale == 1).await;
    let counts = consuming.stop().await;
    assert_eq!((counts.handled, counts.buried), (20, 0), "{counts:?}");
    ledger.check("billing", &in_order).await;
}

async fn what_was_acknowledged_does_not_come_again(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let mut events = payments(5, 6);
    topic.publish(&events).await;
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("all are applied", |counts| counts.handled == 30).await;
    consuming.stop().await;
    events.push(Paid::event("last", 1, 1));
    topic.publish(&events[30..]).await;
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("the last one is applied", |counts| counts.handled == 1).await;
    let counts = consuming.stop().await;
    assert_eq!(counts.received, 1, "what was acknowledged came again: {counts:?}");
    ledger.check("billing", &events).await;
}

/// F80: a handler that takes longer than the broker waits.
async fn a_slow_handler_keeps_its_delivery(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(2, 1);
    topic.publish(&events).await;
    let slow = |event: &Event| match event.aggregate_id() {
        "a0" => Act::Take(Duration::from_secs(7)),
        _ => Act::Succeed,
    };
    let work = || Work { batch: 1, ..Work::new("billing", &ledger).acting(slow) };
    let (one, other) = (topic.consume("billing", work()), topic.consume("billing", work()));
    let applied = || one.counts().handled + other.counts().handled;
    super::super::waiting::until("both are applied", || async { applied() == 2 }).await;
    let (one, other) = (one.stop().await, other.stop().await);
    assert_eq!(one.received + other.received, 2, "{one:?} {other:?}");
    ledger.check("billing", &events).await;
}
