//! Handlers that fail, and what nobody can handle.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use postrider::Event;
use postrider_consumer::ConsumerError;

use super::effects::payments;
use super::{Act, Capabilities, Paid, Subject, Work};
use crate::case;
use crate::suites::Case;

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(a_handler_that_fails_leaves_no_claim_and_is_tried_again),
        case!(a_poison_event_becomes_a_dead_letter_and_stops_nothing),
        case!(a_handler_that_panics_is_one_that_fails),
        case!(what_the_database_has_rolled_back_counts_as_failed),
        case!(what_is_rejected_is_tried_once),
        case!(claims_that_are_gone_before_an_event_comes_again_are_refused)
            .needing(|can| can.knows_redelivery, "nobody knows how long events may come again"),
        case!(a_version_that_nobody_handles_becomes_a_dead_letter),
        case!(what_is_no_event_becomes_a_dead_letter)
            .needing(|can| can.is_relayed, "only events can be stored"),
    ]
}

/// G-08.
async fn a_handler_that_fails_leaves_no_claim_and_is_tried_again(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(6, 2);
    topic.publish(&events).await;
    let attempts: Mutex<HashMap<uuid::Uuid, u32>> = Mutex::default();
    let work = Work::new("billing", &ledger).acting(move |event| {
        let mut attempts = attempts.lock().expect("nobody panics");
        let attempt = attempts.entry(event.id()).or_default();
        *attempt += 1;
        if *attempt <= 3 { Act::Fail } else { Act::Succeed }
    });
    let consuming = topic.consume("billing", work);
    consuming.until("some have failed", |counts| counts.retries >= 6).await;
    assert!(ledger.claims_are_true("billing").await, "what failed has no claim");
    consuming.until("all are applied", |counts| counts.handled == 12).await;
    let counts = consuming.stop().await;
    assert_eq!(counts.buried, 0, "{counts:?}");
    ledger.check("billing", &events).await;
}

/// G-05 for consumers.
async fn a_poison_event_becomes_a_dead_letter_and_stops_nothing(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let mut events = payments(5, 4);
    let poison = Paid::event("a2", 100, 1);
    let after = Paid::event("a2", 101, 1);
    topic.publish(&events).await;
    topic.publish(&[poison.clone(), after.clone()]).await;
    events.push(after);
    let id = poison.id();
    let act = move |event: &Event| if event.id() == id { Act::Fail } else { Act::Succeed };
    let consuming = topic.consume("billing", Work::new("billing", &ledger).acting(act));
    consuming.until("all others are applied", |counts| counts.handled == 21).await;
    consuming.until("it is dead", |counts| counts.buried == 1).await;
    let dead = ledger.dead("billing").await;
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].event_id, dead[0].attempts), (id, 4));
    assert_eq!(dead[0].error, "the till is stuck");
    assert_eq!(dead[0].payload, *poison.payload());
    // A redelivery does not wake it.
    topic.publish(&[poison]).await;
    let repeats = u64::from(topic.capabilities().repeats);
    consuming.until("it is a duplicate", |counts| counts.duplicates == repeats).await;
    consuming.stop().await;
    ledger.check("billing", &events).await;
}

async fn a_handler_that_panics_is_one_that_fails(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(3, 2);
    topic.publish(&events).await;
    let act = |event: &Event| match event.aggregate_id() {
        "a1" => Act::Panic,
        "a2" => Act::PanicAtOnce,
        _ => Act::Succeed,
    };
    let consuming = topic.consume("billing", Work::new("billing", &ledger).acting(act));
    consuming.until("they are dead", |counts| counts.buried == 4).await;
    consuming.until("all others are applied", |counts| counts.handled == 2).await;
    consuming.stop().await;
    for dead in ledger.dead("billing").await {
        let whys = ["the till is on fire", "the till was never there"];
        assert!(whys.iter().any(|why| dead.error.contains(why)), "{dead:?}");
    }
}

/// A COMMIT that rolls back is answered without an error, and one that fails is no outage.
async fn what_the_database_has_rolled_back_counts_as_failed(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(3, 1);
    topic.publish(&events).await;
    let act = |event: &Event| match event.aggregate_id() {
        "a0" => Act::Swallow,
        "a1" => Act::BreakLater,
        _ => Act::Succeed,
    };
    let consuming = topic.consume("billing", Work::new("billing", &ledger).acting(act));
    consuming.until("they are dead", |counts| counts.buried == 2).await;
    let counts = consuming.stop().await;
    assert_eq!(counts.handled, 1, "{counts:?}");
    let dead: Vec<_> = ledger.dead("billing").await.iter().map(|dead| dead.event_id).collect();
    assert!(events[..2].iter().all(|event| dead.contains(&event.id())), "{dead:?}");
    ledger.check("billing", &events[2..]).await;
}

/// F81.
async fn claims_that_are_gone_before_an_event_comes_again_are_refused(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    topic.publish(&payments(1, 1)).await;
    let work = Work { retention: Duration::from_secs(60), ..Work::new("billing", &ledger) };
    let error = topic.consume("billing", work).ended().await;
    assert!(matches!(error, ConsumerError::Misconfigured(_)), "{error:?}");
    assert!(error.to_string().contains("keep claims for longer with `retention`"), "{error}");
    assert_eq!(ledger.count("billing").await, 0);
}

async fn what_is_rejected_is_tried_once(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    topic.publish(&payments(1, 1)).await;
    let work = Work::new("billing", &ledger).acting(|_| Act::Reject);
    let consuming = topic.consume("billing", work);
    consuming.until("it is dead", |counts| counts.buried == 1).await;
    assert_eq!(consuming.stop().await.retries, 0);
    let dead = ledger.dead("billing").await;
    assert_eq!((dead[0].error.as_str(), dead[0].attempts), ("no such account", 1));
}

async fn a_version_that_nobody_handles_becomes_a_dead_letter(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let newer = Event::builder("Account", "a", "Paid").version(2).json("?").build();
    let broken = Event::builder("Account", "b", "Paid").json("?").build();
    let valid = payments(1, 1);
    topic.publish(&[newer.expect("it is valid"), broken.expect("it is valid")]).await;
    topic.publish(&valid).await;
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("they are dead", |counts| counts.buried == 2 && counts.handled == 1).await;
    consuming.stop().await;
    let mut errors: Vec<_> = ledger.dead("billing").await.into_iter().map(|d| d.error).collect();
    errors.sort_unstable();
    assert_eq!(errors[0], "no handler for Paid of version 2, only for 1");
    assert!(errors[1].starts_with("the payload is no Paid of version 1: "), "{errors:?}");
    ledger.check("billing", &valid).await;
}

async fn what_is_no_event_becomes_a_dead_letter(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let valid = payments(2, 2);
    topic.publish_garbage(b"\xff\x00 garbage").await;
    topic.publish(&valid).await;
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("it is dead", |counts| counts.buried == 1 && counts.handled == 4).await;
    consuming.stop().await;
    let dead = ledger.dead("billing").await;
    assert!(dead[0].error.contains("the message names no event id"), "{dead:?}");
    assert_eq!(dead[0].payload, b"\xff\x00 garbage");
    ledger.check("billing", &valid).await;
}
