//! Several pipelines over one outbox, and several relays over one pipeline.

use std::time::Duration;

use postrider_relay::admin::Selection;
use postrider_relay::source::{SourceErrorKind, Verdict};

use super::reader::{Reader, deferred, parked};
use super::{Connection, OutboxCapabilities, PIPELINE, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{event, events, numbers, spread};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    let shared = |can: &OutboxCapabilities| can.shared;
    let unshared = |can: &OutboxCapabilities| !can.shared && can.stands_by;
    let one = "an outbox of this backend has one pipeline";
    vec![
        case!(pipelines_have_progress_of_their_own).needing(shared, one),
        case!(pipelines_have_failures_of_their_own).needing(shared, one),
        case!(a_pipeline_added_later_reads_from_the_start).needing(shared, one),
        case!(a_second_pipeline_is_refused).needing(
            unshared,
            "the backend has several pipelines per outbox, or no names for them",
        ),
        case!(a_second_relay_stands_by_until_the_first_ends)
            .needing(|can| can.stands_by, "a second relay takes over at once"),
        case!(a_relay_that_was_taken_over_changes_nothing)
            .needing(|can| !can.stands_by, "a second relay stands by"),
    ]
}

/// G-05.
async fn pipelines_have_progress_of_their_own(outbox: Subject) {
    outbox.write(&spread(2, 1..5)).await;
    let (one, two) =
        (Reader::start_as(&*outbox, "one").await, Reader::start_as(&*outbox, "two").await);
    assert_eq!(one.drain().await, [1, 2, 3, 4]);
    let read = two.read(2).await;
    two.deliver(&read).await;
    outbox.write(&spread(2, 5..7)).await;
    assert_eq!(one.drain().await, [5, 6]);
    assert!(!one.pending().await && two.pending().await);
    one.kill();
    two.kill();
    let (one, two) =
        (Reader::start_as(&*outbox, "one").await, Reader::start_as(&*outbox, "two").await);
    one.expect_nothing("pipeline one delivered everything").await;
    assert_eq!(two.drain().await, [3, 4, 5, 6]);
}

/// G-05.
async fn pipelines_have_failures_of_their_own(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let (one, two) =
        (Reader::start_as(&*outbox, "one").await, Reader::start_as(&*outbox, "two").await);
    let read = one.read(2).await;
    one.settle(&[(&read[0], parked(1)), (&read[1], Verdict::Queued)]).await;
    let read = two.read(2).await;
    two.settle(&[(&read[0], deferred(Duration::ZERO, 1)), (&read[1], Verdict::Queued)]).await;
    assert_eq!(two.drain().await, [1, 2], "what one parked is none of its business");
    one.expect_nothing("it is parked there").await;
    let admin = outbox.admin().await;
    let of =
        |pipeline: &str| Selection { pipeline: Some(pipeline.to_owned()), ..Selection::default() };
    assert_eq!(admin.retry(&of("two")).await.expect("a retry works"), 0);
    assert_eq!(admin.retry(&of("one")).await.expect("a retry works"), 1);
    two.expect_nothing("the retry was for pipeline one").await;
    assert_eq!(one.drain().await, [1, 2]);
    let status = admin.status().await.expect("the status can be read");
    let names = status.pipelines.iter().map(|pipeline| pipeline.name.as_str());
    let names: Vec<_> = names.filter(|name| *name != PIPELINE).collect();
    assert_eq!(names, ["one", "two"]);
}

async fn a_pipeline_added_later_reads_from_the_start(outbox: Subject) {
    outbox.write(&events("a", 1..4)).await;
    let one = Reader::start_as(&*outbox, "one").await;
    assert_eq!(one.drain().await, [1, 2, 3]);
    let two = Reader::start_as(&*outbox, "two").await;
    assert_eq!(two.drain().await, [1, 2, 3]);
    assert_eq!(two.resume.crashes, 0);
}

/// G-01: each would hide events from the other.
async fn a_second_pipeline_is_refused(outbox: Subject) {
    let one = Reader::start_as(&*outbox, "one").await;
    let second = Connection { pipeline: "two", ..Connection::default() };
    let refused = Reader::try_start(&*outbox, second).await;
    let error = refused.err().expect("the second pipeline is refused");
    assert_eq!(error.kind, SourceErrorKind::Misconfigured);
    assert!(error.hint.is_some(), "{error:?}");
    outbox.write(&[event("a", 1)]).await;
    assert_eq!(one.drain().await, [1]);
}

/// G-03: two relays would send everything twice and out of order.
async fn a_second_relay_stands_by_until_the_first_ends(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let first = Reader::start(&*outbox).await;
    let read = first.read(2).await;
    let refused = Reader::try_start(&*outbox, Connection::default()).await;
    let error = refused.err().expect("a second relay is refused");
    assert_eq!(error.kind, SourceErrorKind::Held, "it may try again");
    first.deliver(&read[..1]).await;
    first.kill();
    let second = Reader::start(&*outbox).await;
    assert_eq!(second.drain().await, [2]);
    second.close().await;
    Reader::start(&*outbox).await.expect_nothing("everything is delivered").await;
}

/// G-09.
async fn a_relay_that_was_taken_over_changes_nothing(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    let first = Reader::start(&*outbox).await;
    let read = first.read(2).await;
    let second = Reader::start(&*outbox).await;
    let settlements = [postrider_relay::source::Settlement {
        handle: read[0].handle,
        verdict: Verdict::Delivered,
    }];
    assert!(first.source.settle(&settlements).await.is_err(), "it was taken over");
    assert_eq!(numbers(&second.read(2).await), [1, 2]);
}
