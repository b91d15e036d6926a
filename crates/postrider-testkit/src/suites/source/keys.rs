//! What an operator does with keys that wait.

use std::time::Duration;

use postrider_relay::source::Verdict;

use super::reader::{Reader, deferred, parked};
use super::{OutboxCapabilities, PIPELINE, Subject, operated};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{events, id, key};

const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    let cases: Vec<Case<Subject, OutboxCapabilities>> = vec![
        case!(a_blocked_key_says_what_it_waits_for),
        case!(a_key_behind_a_dead_letter_is_released),
        case!(a_key_behind_a_retry_is_released),
        case!(a_key_that_waits_for_nothing_is_not_released),
    ];
    cases.into_iter().map(operated).collect()
}

/// Parks the first of `a`, and defers the first of `b` for an hour; one more of each is queued.
async fn with_blocked(outbox: &Subject) -> Reader {
    outbox.write(&events("a", [1, 2])).await;
    outbox.write(&events("b", [3, 4])).await;
    let reader = Reader::start(&**outbox).await;
    let read = reader.read(4).await;
    reader.settle(&[(&read[0], parked(3)), (&read[1], Verdict::Queued)]).await;
    reader.settle(&[(&read[2], deferred(HOUR, 1)), (&read[3], Verdict::Queued)]).await;
    reader
}

async fn a_blocked_key_says_what_it_waits_for(outbox: Subject) {
    let _reader = with_blocked(&outbox).await;
    let operator = outbox.operated().await;
    let blocked = operator.blocked(None, 10).await.expect("keys can be listed");
    let told: Vec<_> = blocked
        .iter()
        .map(|it| {
            (it.key.clone(), it.events, it.first.event_id.clone(), &*it.first.set_aside.state)
        })
        .collect();
    let expected =
        [(key("a"), 2, id(1).to_string(), "parked"), (key("b"), 2, id(3).to_string(), "deferred")];
    assert_eq!(told, expected);
    assert_eq!(blocked[0].pipeline, PIPELINE);
    assert_eq!(blocked[0].first.set_aside.due_at, None);
    assert!(blocked[1].first.set_aside.due_at.is_some());
    assert_eq!(operator.blocked(None, 1).await.expect("keys can be listed").len(), 1);
    assert_eq!(operator.blocked(Some("other"), 9).await.expect("keys can be listed"), []);
}

/// G-03.
async fn a_key_behind_a_dead_letter_is_released(outbox: Subject) {
    let reader = with_blocked(&outbox).await;
    let operator = outbox.operated().await;
    let released = operator.release(None, &key("a")).await.expect("a key can be released");
    assert_eq!(released.len(), 1);
    assert_eq!((released[0].event_id.as_str(), &*released[0].was), (&*id(1).to_string(), "parked"));
    let read = reader.read(2).await;
    assert_eq!(read[0].attempts, 0, "its attempts are fresh");
    reader.settle_all(&read, &Verdict::Released).await;
    assert_eq!(reader.drain().await, [1, 2]);
}

/// G-03: what was tried stays counted.
async fn a_key_behind_a_retry_is_released(outbox: Subject) {
    let reader = with_blocked(&outbox).await;
    let operator = outbox.operated().await;
    let released =
        operator.release(Some(PIPELINE), &key("b")).await.expect("a key can be released");
    assert_eq!((released.len(), &*released[0].was), (1, "deferred"));
    let read = reader.read(2).await;
    assert_eq!(read[0].attempts, 1);
    reader.settle_all(&read, &Verdict::Released).await;
    assert_eq!(reader.drain().await, [3, 4]);
}

async fn a_key_that_waits_for_nothing_is_not_released(outbox: Subject) {
    let _reader = with_blocked(&outbox).await;
    let operator = outbox.operated().await;
    for (pipeline, name) in [(None, "other"), (Some("other"), "a")] {
        let released = operator.release(pipeline, &key(name)).await;
        assert_eq!(released.expect("a key can be asked for"), []);
    }
}
