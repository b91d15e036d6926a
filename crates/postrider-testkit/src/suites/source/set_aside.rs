//! Events set aside: when they come back, and what they keep.

use std::time::{Duration, SystemTime};

use postrider_relay::source::Verdict;
use tokio::time::Instant;

use super::reader::{Reader, deferred, parked, parked_aside};
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, event, events, key, numbers, spread};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(a_deferred_event_comes_back_after_its_delay_with_its_attempts),
        case!(an_event_that_is_merely_not_due_has_no_attempts),
        case!(a_deferred_event_comes_back_after_a_restart),
        case!(a_returned_event_can_be_released),
        case!(a_returned_event_that_dies_with_the_relay_comes_back),
        case!(a_parked_event_waits_for_the_operator),
        case!(keys_with_something_set_aside_are_blocked_at_the_start),
        case!(what_does_not_block_holds_up_nothing),
        case!(a_key_is_unblocked_when_its_last_event_is_gone),
        case!(other_keys_are_not_touched),
        case!(an_event_names_the_delay_until_its_delivery),
        case!(pending_means_that_something_will_come_by_itself),
    ]
}

const SOON: Duration = Duration::from_millis(250);
/// Clocks of databases may be coarser than ours.
const COARSE: Duration = Duration::from_millis(5);
const HOUR: Duration = Duration::from_secs(3600);

/// G-01.
async fn a_deferred_event_comes_back_after_its_delay_with_its_attempts(outbox: Subject) {
    outbox.write(&spread(2, 1..3)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    let started = Instant::now();
    reader.settle(&[(&read[0], deferred(SOON, 3)), (&read[1], deferred(HOUR, 1))]).await;
    let back = reader.read(1).await;
    assert!(started.elapsed() + COARSE >= SOON, "it came after {:?}", started.elapsed());
    assert_eq!(numbers(&back), [1]);
    assert_eq!((back[0].attempts, back[0].returned), (3, true));
    reader.deliver(&back).await;
    reader.expect_nothing("one is delivered, one deferred").await;
}

async fn an_event_that_is_merely_not_due_has_no_attempts(outbox: Subject) {
    outbox.write(&[event("a", 1)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(1).await;
    let delay = Duration::ZERO;
    let not_due = |blocks| Verdict::Deferred { delay, failure: None, blocks };
    reader.settle(&[(&read[0], not_due(false))]).await;
    let back = reader.read(1).await;
    assert_eq!((back[0].attempts, back[0].returned), (0, true));
    reader.settle(&[(&back[0], deferred(delay, 4))]).await;
    let back = reader.read(1).await;
    reader.settle(&[(&back[0], not_due(true))]).await;
    assert_eq!(reader.read(1).await[0].attempts, 4, "what was counted stays");
}

/// G-01: with the time that is left.
async fn a_deferred_event_comes_back_after_a_restart(outbox: Subject) {
    outbox.write(&[event("a", 1)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(1).await;
    let started = Instant::now();
    reader.settle(&[(&read[0], deferred(SOON, 2))]).await;
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    let back = reader.read(1).await;
    assert!(started.elapsed() + COARSE >= SOON, "it came after {:?}", started.elapsed());
    assert_eq!((numbers(&back), back[0].attempts), (vec![1], 2));
}

/// G-01.
async fn a_returned_event_can_be_released(outbox: Subject) {
    outbox.write(&[event("a", 1)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(1).await;
    reader.settle(&[(&read[0], deferred(Duration::ZERO, 2))]).await;
    for _ in 0..3 {
        let back = reader.read(1).await;
        assert_eq!((back[0].attempts, back[0].returned), (2, true));
        let settled = reader.settle(&[(&back[0], Verdict::Released)]).await;
        assert!(settled.unblocked.is_empty(), "it is still set aside");
    }
    assert_eq!(reader.drain().await, [1]);
    reader.expect_nothing("it was delivered").await;
}

/// G-01.
async fn a_returned_event_that_dies_with_the_relay_comes_back(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    reader.settle(&[(&read[0], deferred(Duration::ZERO, 2)), (&read[1], Verdict::Queued)]).await;
    assert_eq!(numbers(&reader.read(2).await), [1, 2]);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    let back = reader.read(1).await;
    assert_eq!((numbers(&back), back[0].attempts, back[0].returned), (vec![1], 2, true));
    reader.deliver(&back).await;
    assert_eq!(reader.drain().await, [2]);
}

/// G-01.
async fn a_parked_event_waits_for_the_operator(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    reader.settle(&[(&read[0], parked(5)), (&read[1], Verdict::Queued)]).await;
    reader.expect_nothing("one is parked, one waits behind it").await;
    reader.close().await;
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("one is parked, one waits behind it").await;
    let status = outbox.admin().await.status().await;
    let status = status.expect("the status can be read").pipelines.remove(0);
    let counts = [status.unpublished, status.parked, status.queued, status.deferred];
    assert_eq!((counts, status.blocked_keys), ([0, 1, 1, 0], 1));
}

/// G-03: the next relay must not let later events of these keys pass.
async fn keys_with_something_set_aside_are_blocked_at_the_start(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    assert!(reader.resume.blocked_keys.is_empty());
    let written = [event("p", 1), event("d", 2), event("q", 3), event("x", 4), event("y", 5)];
    outbox.write(&written).await;
    let read = reader.read(5).await;
    let not_blocking = Verdict::Deferred { delay: HOUR, failure: None, blocks: false };
    let settlements = [
        (&read[0], parked(1)),
        (&read[1], deferred(HOUR, 1)),
        (&read[2], Verdict::Queued),
        (&read[3], parked_aside()),
        (&read[4], not_blocking),
    ];
    reader.settle(&settlements).await;
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.blocked_at_start(), ["d", "p", "q"]);
}

/// G-05: the policy `skip`.
async fn what_does_not_block_holds_up_nothing(outbox: Subject) {
    outbox.write(&events("a", 1..4)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(3).await;
    let settled =
        reader.settle(&[(&read[0], parked_aside()), (&read[1], deferred(Duration::ZERO, 1))]).await;
    assert!(settled.unblocked.is_empty(), "the deferred one blocks");
    let back = reader.read(1).await;
    assert_eq!(numbers(&back), [2], "it does not wait for the parked one");
    let settled = reader.deliver(&back).await;
    assert_eq!(settled.unblocked, [key("a")], "the parked one does not count");
    reader.deliver(&read[2..]).await;
    assert!(!reader.pending().await);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert!(reader.resume.blocked_keys.is_empty());
    let retried = outbox.admin().await.retry(&Default::default()).await;
    assert_eq!(retried.expect("dead letters can be retried"), 1);
    assert_eq!(reader.drain().await, [1]);
}

/// G-03: told once, when it is true.
async fn a_key_is_unblocked_when_its_last_event_is_gone(outbox: Subject) {
    outbox.write(&events("a", 1..4)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(3).await;
    let settlements = [
        (&read[0], deferred(Duration::ZERO, 1)),
        (&read[1], Verdict::Queued),
        (&read[2], Verdict::Queued),
    ];
    assert!(reader.settle(&settlements).await.unblocked.is_empty());
    for number in 1..=3 {
        let back = reader.batch(1, Duration::from_secs(5)).await;
        assert_eq!(numbers(&back), [number]);
        let settled = reader.deliver(&back).await;
        let expected = if number == 3 { vec![key("a")] } else { vec![] };
        assert_eq!(settled.unblocked, expected, "after {number}");
        assert!(reader.deliver(&back).await.unblocked.is_empty(), "told once");
    }
}

/// G-05.
async fn other_keys_are_not_touched(outbox: Subject) {
    outbox.write(&[event("a", 1), event("b", 2), event("b", 3)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(3).await;
    let settled = reader.settle(&[(&read[0], parked(1)), (&read[1], Verdict::Delivered)]).await;
    assert!(settled.unblocked.is_empty(), "b was never blocked");
    reader.settle(&[(&read[2], deferred(Duration::ZERO, 1))]).await;
    let back = reader.read(1).await;
    assert_eq!(numbers(&back), [3]);
    assert_eq!(reader.deliver(&back).await.unblocked, [key("b")]);
}

/// By the clock of the database.
async fn an_event_names_the_delay_until_its_delivery(outbox: Subject) {
    let at = |number, time| {
        let event = building("a", number).deliver_after(time).build();
        event.expect("the event is valid")
    };
    let now = SystemTime::now();
    outbox.write(&[at(1, now + HOUR), at(2, now - HOUR), event("a", 3)]).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(3).await;
    let delay = read[0].delay.expect("its time has not come");
    let minute = Duration::from_secs(60);
    assert!((HOUR - minute..HOUR + minute).contains(&delay), "{delay:?}");
    assert_eq!((read[1].delay, read[2].delay), (None, None));
    let not_due = Verdict::Deferred { delay: Duration::ZERO, failure: None, blocks: false };
    reader.settle(&[(&read[0], not_due)]).await;
    assert!(reader.read(1).await[0].delay.is_some(), "not when it returns, either");
}

/// What `--drain` waits for.
async fn pending_means_that_something_will_come_by_itself(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    assert!(!reader.pending().await, "an empty outbox");
    let later = building("later", 9).deliver_after(SystemTime::now() + HOUR).build();
    outbox.write(&[later.expect("the event is valid")]).await;
    assert!(!reader.pending().await, "its time has not come");
    outbox.write(&events("a", 1..3)).await;
    assert!(reader.pending().await, "unread");
    let read = reader.read(3).await;
    assert!(reader.pending().await, "under way");
    let not_due = Verdict::Deferred { delay: HOUR, failure: None, blocks: false };
    reader.settle(&[(&read[0], not_due)]).await;
    reader.settle(&[(&read[1], deferred(HOUR, 1)), (&read[2], Verdict::Queued)]).await;
    assert!(reader.pending().await, "deferred: it comes back by itself");
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert!(reader.pending().await, "the same after a restart");
    outbox.write(&events("b", 4..6)).await;
    let read = reader.read(2).await;
    reader.settle(&[(&read[0], parked(1)), (&read[1], Verdict::Queued)]).await;
    assert!(reader.pending().await, "because of a");
    reader.kill();
}
