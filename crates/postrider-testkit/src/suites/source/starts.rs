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
        case!(an_end_with_an_error_is_no_crash_and_forgets_none),
        case!(trouble_of_the_sink_is_noted_with_its_beginning),
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

/// A relay that says why it ends, because the database or the sink refuses, was not brought down.
async fn an_end_with_an_error_is_no_crash_and_forgets_none(outbox: Subject) {
    for _ in 0..4 {
        let reader = Reader::start(&*outbox).await;
        assert_eq!(reader.resume.crashes, 0);
        reader.source.give_back().await;
    }
    crash(&outbox, 0).await;
    for _ in 0..2 {
        let reader = Reader::start(&*outbox).await;
        assert_eq!(reader.resume.crashes, 1);
        reader.source.give_back().await;
    }
    // What was not begun cannot be taken back.
    let source = outbox.connect(Default::default()).await;
    source.expect("the outbox can be read").give_back().await;
    crash(&outbox, 1).await;
}

/// G-06: what `postrider status` says about a sink.
async fn trouble_of_the_sink_is_noted_with_its_beginning(outbox: Subject) {
    let noted = || async {
        let status = outbox.admin().await.status().await.expect("the status can be read");
        status.pipelines[0].trouble.clone()
    };
    let reader = Reader::start(&*outbox).await;
    assert!(!reader.resume.is_troubled);
    assert_eq!(noted().await, None);
    let note = async |reader: &Reader, trouble| {
        reader.source.note_trouble(trouble).await.expect("it can be noted");
    };
    note(&reader, Some("it is away")).await;
    let first = noted().await.expect("it is noted");
    assert_eq!(first.why, "it is away");
    note(&reader, Some("it refuses")).await;
    let second = noted().await.expect("it is noted");
    assert_eq!((second.why.as_str(), second.since), ("it refuses", first.since));
    reader.close().await;
    assert_eq!(noted().await, Some(second), "it outlives the relay");
    let reader = Reader::start(&*outbox).await;
    assert!(reader.resume.is_troubled);
    note(&reader, None).await;
    assert_eq!(noted().await, None);
    reader.close().await;
    let reader = Reader::start(&*outbox).await;
    assert!(!reader.resume.is_troubled);
}

/// A standby that is turned away, or stopped before it began, has brought nothing down.
async fn a_source_that_never_resumed_is_no_crash(outbox: Subject) {
    for _ in 0..3 {
        let source = outbox.connect(Default::default()).await;
        drop(source.expect("the outbox can be read"));
    }
    crash(&outbox, 0).await;
}
