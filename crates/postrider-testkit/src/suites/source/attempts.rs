//! Attempts that are written down before they begin, for events that may bring the relay down.

use std::time::Duration;

use postrider_relay::source::Verdict;

use super::reader::{Reader, deferred};
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{events, key, numbers};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(an_attempt_that_is_written_down_outlives_the_relay),
        case!(an_event_whose_attempt_is_written_down_is_settled_as_any_other),
        case!(an_attempt_can_be_taken_back_with_the_verdict),
    ]
}

const FIRST: Verdict = Verdict::Attempting { attempts: 1, blocks: true };

/// G-01, and T16 of the traps: an event that kills the process is counted.
async fn an_attempt_that_is_written_down_outlives_the_relay(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let mut reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    reader.settle(&[(&read[0], FIRST)]).await;
    reader.expect_nothing("it is under way").await;
    for attempts in 1..4 {
        reader.kill();
        reader = Reader::start(&*outbox).await;
        assert_eq!(reader.blocked_at_start(), ["a"]);
        assert!(reader.pending().await);
        let back = reader.batch(1, Duration::from_secs(5)).await;
        assert_eq!((numbers(&back), back[0].attempts), (vec![1], attempts));
        assert!(back[0].returned);
        let again = Verdict::Attempting { attempts: attempts + 1, blocks: true };
        reader.settle(&[(&back[0], again)]).await;
    }
    reader.kill();
    assert_eq!(Reader::start(&*outbox).await.drain().await, [1, 2]);
}

/// G-01.
async fn an_event_whose_attempt_is_written_down_is_settled_as_any_other(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(2).await;
    reader.settle(&[(&read[0], FIRST)]).await;
    let settled = reader.deliver(&read[..1]).await;
    assert_eq!(settled.unblocked, [key("a")]);
    reader.settle(&[(&read[1], FIRST)]).await;
    reader.settle(&[(&read[1], deferred(Duration::ZERO, 1))]).await;
    let back = reader.read(1).await;
    assert_eq!((numbers(&back), back[0].attempts), (vec![2], 1));
    reader.deliver(&back).await;
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert!(reader.resume.blocked_keys.is_empty());
    reader.expect_nothing("both are delivered").await;
}

/// G-06: what was no fault of the event is not counted.
async fn an_attempt_can_be_taken_back_with_the_verdict(outbox: Subject) {
    outbox.write(&events("a", 1..2)).await;
    let reader = Reader::start(&*outbox).await;
    let read = reader.read(1).await;
    reader.settle(&[(&read[0], Verdict::Attempting { attempts: 5, blocks: true })]).await;
    let taken_back = Verdict::Attempting { attempts: 4, blocks: true };
    reader.settle(&[(&read[0], taken_back), (&read[0], Verdict::Released)]).await;
    let back = reader.read(1).await;
    assert_eq!((numbers(&back), back[0].attempts), (vec![1], 4));
    let taken_back = Verdict::Attempting { attempts: 3, blocks: true };
    reader.settle(&[(&back[0], taken_back), (&back[0], Verdict::Delivered)]).await;
    reader.expect_nothing("it is delivered").await;
    assert!(!reader.pending().await);
}
