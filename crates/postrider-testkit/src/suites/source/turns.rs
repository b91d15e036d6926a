//! Whose turn it is: events of a key that are set aside return in their order, and no key is
//! ever forgotten.

use std::time::Duration;

use postrider_relay::admin::Selection;
use postrider_relay::source::Verdict;

use super::reader::{Reader, deferred, parked};
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{event, events, key, numbers};
use crate::suites::waiting::until;

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(queued_events_return_in_order_once_the_first_is_delivered),
        case!(events_that_come_later_queue_at_the_end),
        case!(no_further_event_returns_before_those_handed_out_are_settled),
        case!(a_first_event_that_fails_again_keeps_its_queue),
        case!(an_event_queued_behind_nothing_is_due_at_once),
        case!(a_retried_key_replays_in_order),
        case!(a_retried_key_that_fails_again_waits_again),
        case!(discarding_the_first_frees_the_queue),
        case!(a_queue_with_two_parked_events_stops_at_the_second),
        case!(no_key_is_forgotten_wherever_the_relay_dies),
        case!(no_key_is_forgotten_under_random_verdicts),
    ]
}

/// Events 1 to 3 of key `a`: the first with this verdict, the others queued.
async fn with_queue(outbox: &Subject, first: Verdict) -> Reader {
    outbox.write(&events("a", 1..4)).await;
    let reader = Reader::start(&**outbox).await;
    let read = reader.read(3).await;
    let settlements = [(&read[0], first), (&read[1], Verdict::Queued), (&read[2], Verdict::Queued)];
    reader.settle(&settlements).await;
    reader
}

/// G-03.
async fn queued_events_return_in_order_once_the_first_is_delivered(outbox: Subject) {
    let reader = with_queue(&outbox, deferred(Duration::ZERO, 1)).await;
    let back = reader.read_all().await;
    assert_eq!(numbers(&back)[0], 1);
    assert!(numbers(&back).is_sorted());
    assert!(back.iter().all(|record| record.returned));
    reader.deliver(&back).await;
    let mut all = numbers(&back);
    all.extend(reader.drain().await);
    assert_eq!(all, [1, 2, 3]);
    assert!(!reader.pending().await);
}

/// G-03.
async fn events_that_come_later_queue_at_the_end(outbox: Subject) {
    let reader = with_queue(&outbox, parked(1)).await;
    outbox.write(&events("a", 4..6)).await;
    let read = reader.read(2).await;
    reader.settle_all(&read, &Verdict::Queued).await;
    reader.expect_nothing("the key waits").await;
    outbox.admin().await.retry(&Selection::default()).await.expect("a retry works");
    assert_eq!(reader.drain().await, [1, 2, 3, 4, 5]);
}

/// G-03: it could overtake one that is set aside once more.
async fn no_further_event_returns_before_those_handed_out_are_settled(outbox: Subject) {
    let reader = with_queue(&outbox, deferred(Duration::ZERO, 1)).await;
    let first = reader.batch(1, Duration::from_secs(5)).await;
    assert_eq!(numbers(&first), [1]);
    outbox.write(&events("a", 4..5)).await;
    let fresh = reader.read(1).await;
    assert_eq!((numbers(&fresh), fresh[0].returned), (vec![4], false));
    reader.settle_all(&fresh, &Verdict::Queued).await;
    reader.expect_nothing("the first one is under way").await;
    reader.settle(&[(&first[0], deferred(Duration::ZERO, 2))]).await;
    assert_eq!(reader.drain().await, [1, 2, 3, 4]);
}

/// G-03.
async fn a_first_event_that_fails_again_keeps_its_queue(outbox: Subject) {
    let reader = with_queue(&outbox, deferred(Duration::ZERO, 1)).await;
    for attempts in 2..5 {
        let back = reader.batch(1, Duration::from_secs(5)).await;
        assert_eq!((numbers(&back), back[0].attempts), (vec![1], attempts - 1));
        let again = deferred(Duration::ZERO, attempts);
        assert!(reader.settle(&[(&back[0], again)]).await.unblocked.is_empty());
    }
    // With its queue under way, all of it goes back.
    let back = reader.read_all().await;
    let mut settlements = vec![(&back[0], deferred(Duration::ZERO, 5))];
    settlements.extend(back[1..].iter().map(|record| (record, Verdict::Queued)));
    reader.settle(&settlements).await;
    assert_eq!(reader.drain().await, [1, 2, 3]);
}

/// G-01: otherwise nobody would ever hand it out.
async fn an_event_queued_behind_nothing_is_due_at_once(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    reader.settle_all(&read, &Verdict::Queued).await;
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.blocked_at_start(), ["a"]);
    assert!(reader.pending().await);
    assert_eq!(reader.drain().await, [1, 2]);
}

/// G-03.
async fn a_retried_key_replays_in_order(outbox: Subject) {
    let reader = with_queue(&outbox, parked(7)).await;
    reader.expect_nothing("the key waits").await;
    let selection = Selection { key: Some(key("a")), ..Selection::default() };
    let retried = outbox.admin().await.retry(&selection).await;
    assert_eq!(retried.expect("dead letters can be retried"), 1);
    let back = reader.batch(1, Duration::from_secs(5)).await;
    assert_eq!((numbers(&back), back[0].attempts), (vec![1], 0), "with fresh attempts");
    assert!(reader.deliver(&back).await.unblocked.is_empty());
    let rest = reader.read(2).await;
    assert_eq!(numbers(&rest), [2, 3]);
    assert_eq!(reader.deliver(&rest).await.unblocked, [key("a")]);
}

/// G-03.
async fn a_retried_key_that_fails_again_waits_again(outbox: Subject) {
    let reader = with_queue(&outbox, parked(7)).await;
    let admin = outbox.admin().await;
    admin.retry(&Selection::default()).await.expect("a retry works");
    let back = reader.batch(1, Duration::from_secs(5)).await;
    reader.settle(&[(&back[0], parked(1))]).await;
    reader.expect_nothing("it is parked again").await;
    admin.retry(&Selection::default()).await.expect("a retry works");
    assert_eq!(reader.drain().await, [1, 2, 3]);
}

/// G-01.
async fn discarding_the_first_frees_the_queue(outbox: Subject) {
    let reader = with_queue(&outbox, parked(7)).await;
    let discarded = outbox.admin().await.discard(&Selection::default()).await;
    assert_eq!(discarded.expect("dead letters can be discarded"), 1);
    assert_eq!(reader.drain().await, [2, 3]);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert!(reader.resume.blocked_keys.is_empty());
    reader.expect_nothing("one is discarded, two are delivered").await;
}

/// G-03.
async fn a_queue_with_two_parked_events_stops_at_the_second(outbox: Subject) {
    outbox.write(&events("a", 1..6)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(5).await;
    let verdict = |index| if index % 2 == 0 { parked(1) } else { Verdict::Queued };
    let settlements: Vec<_> = (0..5).map(|index| (&read[index], verdict(index))).collect();
    reader.settle(&settlements).await;
    let admin = outbox.admin().await;
    let first = |number| Selection {
        event_ids: vec![crate::suites::numbered::id(number).to_string()],
        ..Selection::default()
    };
    admin.retry(&first(1)).await.expect("a retry works");
    assert_eq!(reader.drain().await, [1, 2]);
    admin.retry(&first(5)).await.expect("a retry works");
    reader.expect_nothing("5 stands behind 3, which is parked").await;
    admin.discard(&first(3)).await.expect("a discard works");
    assert_eq!(reader.drain().await, [4, 5]);
    assert!(!reader.pending().await);
}

/// G-01, G-03: a story of one key, broken off after each step.
async fn no_key_is_forgotten_wherever_the_relay_dies(outbox: Subject) {
    for dies_after in 0..8 {
        let base = dies_after * 10;
        let aggregate_id = format!("key{dies_after}");
        outbox.write(&events(&aggregate_id, base + 1..base + 4)).await;
        let reader = Reader::start(&*outbox).await;
        let mut order = story(&outbox, &reader, dies_after).await;
        reader.kill();
        let reader = Reader::start(&*outbox).await;
        order.extend(drain_with_operator(&outbox, &reader).await);
        order.dedup();
        let expected: Vec<_> = (base + 1..base + 4).collect();
        assert_eq!(order, expected, "died after step {dies_after}");
        reader.close().await;
    }
}

/// Takes the key through the first `steps` steps. Answers what was delivered.
async fn story(outbox: &Subject, reader: &Reader, steps: u32) -> Vec<u32> {
    let mut delivered = Vec::new();
    let mut read = Vec::new();
    for step in 0..steps {
        match step {
            0 => read = reader.read(3).await,
            1 => drop(reader.settle(&[(&read[0], deferred(Duration::ZERO, 1))]).await),
            2 => drop(reader.settle_all(&read[1..2], &Verdict::Queued).await),
            3 => drop(reader.settle_all(&read[2..], &Verdict::Queued).await),
            4 => read = reader.batch(1, Duration::from_secs(5)).await,
            5 => drop(reader.settle(&[(&read[0], parked(2))]).await),
            6 => {
                let retried = outbox.admin().await.retry(&Selection::default()).await;
                assert_eq!(retried.expect("a retry works"), 1);
            }
            _ => {
                read = reader.batch(1, Duration::from_secs(5)).await;
                delivered.extend(numbers(&read));
                reader.deliver(&read).await;
            }
        }
    }
    delivered
}

/// Delivers everything, with an operator who retries whatever is parked.
async fn drain_with_operator(outbox: &Subject, reader: &Reader) -> Vec<u32> {
    let admin = outbox.admin().await;
    let delivered = std::cell::RefCell::new(Vec::new());
    until("everything is delivered", || async {
        let more = reader.drain().await;
        delivered.borrow_mut().extend(more);
        let retried = admin.retry(&Selection::default()).await;
        retried.expect("a retry works") == 0 && !reader.pending().await
    })
    .await;
    delivered.into_inner()
}

/// G-01, G-03: any verdicts, over restarts; in the end everything is delivered, and a key was
/// never reported free too early.
async fn no_key_is_forgotten_under_random_verdicts(outbox: Subject) {
    let mut rng = fastrand::Rng::with_seed(11);
    let written: Vec<_> =
        (1..=40).map(|number| event(&format!("k{}", number % 4), number)).collect();
    outbox.write(&written).await;
    let mut delivered = Vec::new();
    for _ in 0..12 {
        let reader = Reader::start(&*outbox).await;
        for _ in 0..3 {
            let read = reader.batch(rng.usize(1..12), Duration::from_millis(5)).await;
            let mut settlements = Vec::new();
            for record in &read {
                let verdict = match rng.u8(..7) {
                    0 => Verdict::Delivered,
                    1 => parked(1),
                    2 => deferred(Duration::ZERO, 1),
                    3 => deferred(Duration::from_millis(rng.u64(1..20)), 2),
                    4 => Verdict::Released,
                    _ => Verdict::Queued,
                };
                if verdict == Verdict::Delivered {
                    delivered.extend(numbers([record]));
                }
                settlements.push((record, verdict));
            }
            reader.settle(&settlements).await;
            if rng.u8(..3) == 0 {
                outbox.admin().await.retry(&Selection::default()).await.expect("a retry works");
            }
        }
        reader.kill();
    }
    let reader = Reader::start(&*outbox).await;
    delivered.extend(drain_with_operator(&outbox, &reader).await);
    delivered.sort_unstable();
    assert_eq!(delivered, (1..=40).collect::<Vec<_>>());
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert!(reader.resume.blocked_keys.is_empty(), "{:?}", reader.resume);
}
