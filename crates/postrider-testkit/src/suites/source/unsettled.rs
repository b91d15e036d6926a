//! What was handed out and not settled comes back; what was delivered does not.

use std::collections::BTreeSet;

use postrider_relay::source::{Handle, Settlement, Verdict};

use super::reader::{Reader, parked};
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::history::{History, Place};
use crate::suites::Case;
use crate::suites::numbered::{event, events, numbers, spread};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(unsettled_events_come_back_after_a_kill),
        case!(released_events_come_back_in_order),
        case!(delivered_events_do_not_come_back),
        case!(delivered_rows_stay_or_go_as_declared),
        case!(settling_again_changes_nothing),
        case!(handles_of_an_earlier_start_mean_nothing),
        case!(settling_nothing_is_fine),
        case!(what_a_kill_leaves_of_a_partly_settled_batch_comes_back_in_order),
        case!(what_is_released_of_a_partly_settled_batch_comes_back_in_order),
        case!(a_closed_source_is_gone_on_with),
        case!(many_restarts_lose_and_reorder_nothing),
    ]
}

/// G-01.
async fn unsettled_events_come_back_after_a_kill(outbox: Subject) {
    outbox.write(&spread(3, 1..7)).await;
    for _ in 0..3 {
        let reader = Reader::start(&*outbox).await;
        assert_eq!(numbers(&reader.read(6).await), [1, 2, 3, 4, 5, 6]);
        reader.kill();
    }
}

/// G-01, G-03.
async fn released_events_come_back_in_order(outbox: Subject) {
    outbox.write(&spread(3, 1..7)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(6).await;
    outbox.write(&[event("k0", 7)]).await;
    reader.settle_all(&read[3..], &Verdict::Released).await;
    reader.settle_all(&read[..3], &Verdict::Released).await;
    let again = reader.read(7).await;
    assert_eq!(numbers(&again), [1, 2, 3, 4, 5, 6, 7]);
    assert!(again.iter().all(|record| !record.returned), "nothing was set aside");
}

/// G-04.
async fn delivered_events_do_not_come_back(outbox: Subject) {
    outbox.write(&spread(3, 1..7)).await;
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.drain().await, [1, 2, 3, 4, 5, 6]);
    assert!(!reader.pending().await);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("everything was delivered").await;
    reader.close().await;
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("everything was delivered").await;
    outbox.write(&[event("a", 7)]).await;
    assert_eq!(reader.drain().await, [7]);
}

/// G-07: a table that is to stay small does.
async fn delivered_rows_stay_or_go_as_declared(outbox: Subject) {
    outbox.write(&spread(3, 1..7)).await;
    assert_eq!(outbox.rows().await, 6);
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(6).await;
    assert_eq!(outbox.rows().await, 6, "reading removes nothing");
    reader.deliver(&read).await;
    let left = if outbox.capabilities().keeps_delivered { 6 } else { 0 };
    assert_eq!(outbox.rows().await, left);
}

/// A settlement whose answer was lost is sent again.
async fn settling_again_changes_nothing(outbox: Subject) {
    outbox.write(&spread(3, 1..5)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(4).await;
    reader.deliver(&read[..2]).await;
    reader.deliver(&read[..2]).await;
    reader.settle_all(&read[..2], &Verdict::Released).await;
    reader.settle_all(&read[..2], &parked(1)).await;
    reader.settle(&[(&read[2], parked(1))]).await;
    reader.deliver(&read[2..3]).await;
    reader.expect_nothing("two are delivered, one parked, one under way").await;
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.drain().await, [4]);
    let letters = outbox.admin().await;
    let letters = letters.dead_letters(&Default::default(), None, 10).await;
    assert_eq!(letters.expect("dead letters can be listed").len(), 1);
}

/// G-09 in small: what a dead relay knew cannot settle anything for the living one.
async fn handles_of_an_earlier_start_mean_nothing(outbox: Subject) {
    outbox.write(&spread(3, 1..5)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(4).await;
    reader.settle(&[(&read[0], Verdict::Released)]).await;
    let again = reader.read(1).await;
    assert_eq!(numbers(&again), [1]);
    // The old handle of an event that was handed out again.
    reader.deliver(&read[..1]).await;
    let unknown = Settlement { handle: Handle(u64::MAX), verdict: Verdict::Delivered };
    reader.source.settle(&[unknown]).await.expect("an unknown handle is no error");
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.drain().await, [1, 2, 3, 4]);
}

async fn settling_nothing_is_fine(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    let settled = reader.settle(&[]).await;
    assert!(settled.unblocked.is_empty());
}

/// G-01, G-03, G-04: 1, 3 and 5 of 6 were delivered when the relay died.
async fn what_a_kill_leaves_of_a_partly_settled_batch_comes_back_in_order(outbox: Subject) {
    outbox.write(&spread(6, 1..7)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(6).await;
    for odd in [4, 0, 2] {
        reader.deliver(&read[odd..=odd]).await;
    }
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    let back = numbers(&reader.read_all().await);
    assert_eq!(back, [2, 4, 6]);
}

/// G-01, G-03.
async fn what_is_released_of_a_partly_settled_batch_comes_back_in_order(outbox: Subject) {
    outbox.write(&spread(6, 1..7)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(6).await;
    let verdict = |index: usize| match index % 2 {
        0 => Verdict::Delivered,
        _ => Verdict::Released,
    };
    let settlements: Vec<_> = (0..6).rev().map(|index| (&read[index], verdict(index))).collect();
    reader.settle(&settlements).await;
    assert_eq!(reader.drain().await, [2, 4, 6]);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("everything was delivered").await;
}

/// G-01.
async fn a_closed_source_is_gone_on_with(outbox: Subject) {
    outbox.write(&events("a", 1..5)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(4).await;
    reader.deliver(&read[..2]).await;
    reader.settle_all(&read[2..], &Verdict::Released).await;
    reader.close().await;
    outbox.write(&[event("a", 5)]).await;
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.drain().await, [3, 4, 5]);
}

/// G-01, G-03, G-04: killed and closed in turn, with something settled each time.
async fn many_restarts_lose_and_reorder_nothing(outbox: Subject) {
    const EVENTS: u32 = 120;
    const KEYS: u32 = 5;
    let mut rng = fastrand::Rng::with_seed(7);
    outbox.write(&spread(KEYS, 1..EVENTS + 1)).await;
    let mut history = History::default();
    for number in 1..=EVENTS {
        let place = Place { key: u64::from(number % KEYS), number: Some(number.into()) };
        history.committed(number.into(), place);
    }
    let mut arrived = BTreeSet::new();
    let mut starts = 0;
    while arrived.len() < EVENTS as usize {
        starts += 1;
        assert!(starts < 200, "no progress: {} arrived", arrived.len());
        let reader = Reader::start(&*outbox).await;
        let read = reader.batch(17, std::time::Duration::from_secs(5)).await;
        // As a pipeline does: of each key only a first part, in order.
        let mut stopped = BTreeSet::new();
        let mut settlements = Vec::new();
        for record in &read {
            let number = numbers([record])[0];
            if stopped.contains(&(number % KEYS)) || rng.u8(..4) == 0 {
                stopped.insert(number % KEYS);
                continue;
            }
            history.arrived(number.into());
            if !arrived.insert(number) {
                history.duplicates_allowed += 1;
            }
            settlements.push((record, Verdict::Delivered));
        }
        reader.settle(&settlements).await;
        match rng.bool() {
            true => reader.kill(),
            false => reader.close().await,
        }
    }
    assert_eq!(history.check(), []);
    let reader = Reader::start(&*outbox).await;
    let left = reader.drain().await;
    assert!(left.is_empty(), "{left:?}");
    assert!(!reader.pending().await);
}
