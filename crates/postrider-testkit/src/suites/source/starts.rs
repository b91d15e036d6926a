//! Starts that ended badly are counted, so that an event that kills the relay is found.

use super::reader::Reader;
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::events;

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    vec![
        case!(a_kill_is_counted),
        case!(an_orderly_end_forgets_crashes),
        case!(a_start_that_went_well_forgets_crashes),
        case!(a_source_that_never_resumed_is_no_crash),
    ]
}

async fn crash(outbox: &Subject, expected: u32) {
    let reader = Reader::start(&**outbox).await;
    assert_eq!(reader.resume.crashes, expected);
    reader.kill();
}

/// G-05.
async fn a_kill_is_counted(outbox: Subject) {
    outbox.write(&events("a", 1..3)).await;
    for crashes in 0..5 {
        crash(&outbox, crashes).await;
    }
}

async fn an_orderly_end_forgets_crashes(outbox: Subject) {
    crash(&outbox, 0).await;
    crash(&outbox, 1).await;
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.resume.crashes, 2);
    reader.close().await;
    crash(&outbox, 0).await;
    crash(&outbox, 1).await;
}

async fn a_start_that_went_well_forgets_crashes(outbox: Subject) {
    crash(&outbox, 0).await;
    crash(&outbox, 1).await;
    let reader = Reader::start(&*outbox).await;
    let survived = reader.source.survived().await;
    survived.expect("a good start can be noted");
    reader.kill();
    crash(&outbox, 0).await;
}

/// A standby that is turned away, or stopped before it began, has brought nothing down.
async fn a_source_that_never_resumed_is_no_crash(outbox: Subject) {
    for _ in 0..3 {
        let source = outbox.connect(Default::default()).await;
        drop(source.expect("the outbox can be read"));
    }
    crash(&outbox, 0).await;
}
