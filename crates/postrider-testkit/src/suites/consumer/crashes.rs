//! Consumers that crash at each point.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::Event;

use super::effects::payments;
use super::{Act, Capabilities, Consuming, Ledger, Subject, TestTopic, Work};
use crate::case;
use crate::suites::Case;
use crate::suites::waiting::until;

/// How many consumers share the work.
const WORKERS: usize = 5;
/// How often one of them is killed.
const KILLS: usize = 12;

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(a_crash_before_the_commit_loses_nothing),
        case!(a_crash_after_the_commit_repeats_nothing),
        case!(workers_that_are_killed_apply_each_event_once).lasting(Duration::from_secs(600)),
        case!(a_stop_gives_back_what_has_not_begun),
    ]
}

/// G-08, F80.
async fn a_crash_before_the_commit_loses_nothing(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(4, 3);
    topic.publish(&events).await;
    let hangs = Arc::new(AtomicBool::new(false));
    let is_hanging = Arc::clone(&hangs);
    let work = Work::new("billing", &ledger).acting(move |_| {
        is_hanging.store(true, Ordering::SeqCst);
        Act::Hang
    });
    let consuming = topic.consume("billing", work);
    until("a handler has written its effect", || async { hangs.load(Ordering::SeqCst) }).await;
    drop(consuming);
    assert_eq!(ledger.count("billing").await, 0, "nothing was committed");
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("all are applied", |counts| counts.handled == 12).await;
    consuming.stop().await;
    ledger.check("billing", &events).await;
}

/// G-08, F80.
async fn a_crash_after_the_commit_repeats_nothing(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(4, 3);
    topic.publish(&events).await;
    let work = Work { loses_acknowledgements: true, ..Work::new("billing", &ledger) };
    let consuming = topic.consume("billing", work);
    consuming.until("all are applied", |counts| counts.handled == 12).await;
    drop(consuming);
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("all came again", |counts| counts.duplicates == 12).await;
    assert_eq!(consuming.stop().await.handled, 0);
    ledger.check("billing", &events).await;
}

/// G-08: 1 000 events, each delivered three times, to five workers that are killed.
async fn workers_that_are_killed_apply_each_event_once(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(50, 20);
    for _ in 0..3 {
        topic.publish(&events).await;
    }
    let start = || {
        // One in a hundred fails, and then succeeds.
        let work = Work::new("billing", &ledger).acting(|_| match fastrand::u8(..100) {
            0 => Act::Fail,
            1 => Act::Take(Duration::from_millis(20)),
            _ => Act::Succeed,
        });
        let patient = postrider_consumer::Retry { attempts_max: u32::MAX, ..work.retry };
        topic.consume("billing", Work { retry: patient, ..work })
    };
    let mut workers: Vec<Consuming> = (0..WORKERS).map(|_| start()).collect();
    for kill in 1..=KILLS {
        // Kills come evenly with what is done.
        let applied = events.len() * kill / (KILLS + 1);
        until("work goes on", || async { ledger.count("billing").await >= applied }).await;
        let victim = fastrand::usize(..WORKERS);
        workers[victim] = start();
    }
    let all = events.len();
    until("all are applied", || async { ledger.count("billing").await >= all }).await;
    for worker in workers {
        let counts = worker.stop().await;
        assert_eq!(counts.buried, 0, "{counts:?}");
    }
    check(&*topic, &ledger, &events).await;
}

/// What is given back, or to somebody else, may come out of its order.
async fn check(topic: &dyn TestTopic, ledger: &Ledger, events: &[Event]) {
    ledger.check_effects("billing", events).await;
    if topic.capabilities().keeps_order_in_group {
        ledger.check("billing", events).await;
    }
}

async fn a_stop_gives_back_what_has_not_begun(subject: Subject) {
    let Subject { topic, ledger } = subject;
    topic.add_group("billing").await;
    let events = payments(1, 60);
    topic.publish(&events).await;
    let slow = |_: &Event| Act::Take(Duration::from_millis(20));
    let work = Work { batch: 1, ..Work::new("billing", &ledger).acting(slow) };
    let consuming = topic.consume("billing", work);
    consuming.until("it has begun", |counts| counts.handled >= 3).await;
    let handled = consuming.stop().await.handled;
    assert!(handled < 60, "it has not waited for all");
    assert_eq!(ledger.count("billing").await as u64, handled);
    let consuming = topic.consume("billing", Work::new("billing", &ledger));
    consuming.until("the rest is applied", |counts| counts.handled == 60 - handled).await;
    consuming.stop().await;
    check(&*topic, &ledger, &events).await;
}
