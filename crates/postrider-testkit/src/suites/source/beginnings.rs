//! Where a new pipeline begins, and what it takes for its own.

use postrider_relay::events::{Fate, Wanted};
use postrider_relay::sources::{Progress, StartAt};

use super::reader::Reader;
use super::{Connection, OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{events, number};

const NONE: [u32; 0] = [];

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    let shared = |can: &OutboxCapabilities| can.shared;
    let one = "an outbox of this backend has one pipeline";
    let marks = |can: &OutboxCapabilities| can.keeps_delivered && can.operated && !can.shared;
    vec![
        case!(a_new_pipeline_begins_with_the_oldest_row_published_or_not).needing(shared, one),
        case!(a_new_pipeline_begins_where_it_is_told).needing(shared, one),
        case!(what_another_pipeline_marked_is_not_its_own)
            .needing(marks, "nothing is marked in this outbox"),
    ]
}

async fn start(outbox: &Subject, pipeline: &str, progress: Option<Progress>) -> Reader {
    Reader::stand_by(&**outbox, Connection { pipeline, progress, ..Connection::default() }).await
}

async fn drain(outbox: &Subject, pipeline: &str, progress: Option<Progress>) -> Vec<u32> {
    let reader = start(outbox, pipeline, progress).await;
    let drained = reader.drain().await;
    reader.close().await;
    drained
}

/// A pipeline that changes its own progress keeps its place. One that is new gets everything.
async fn a_new_pipeline_begins_with_the_oldest_row_published_or_not(outbox: Subject) {
    outbox.forget("default").await;
    outbox.write(&events("a", 1..4)).await;
    assert_eq!(drain(&outbox, "one", Some(Progress::Mark)).await, [1, 2, 3]);
    outbox.write(&events("a", 4..5)).await;
    assert_eq!(drain(&outbox, "one", None).await, [4], "it keeps its place");
    assert_eq!(drain(&outbox, "two", None).await, [1, 2, 3, 4]);
    assert_eq!(drain(&outbox, "one", None).await, NONE, "what is new to another is not new to it");
    assert_eq!(drain(&outbox, "two", None).await, NONE);
    outbox.write(&events("a", 5..6)).await;
    assert_eq!(drain(&outbox, "one", None).await, [5]);
    assert_eq!(drain(&outbox, "two", None).await, [5]);
}

/// The start holds for a new pipeline; whoever has a checkpoint goes on where it is.
async fn a_new_pipeline_begins_where_it_is_told(outbox: Subject) {
    outbox.forget("default").await;
    outbox.write(&events("a", 1..4)).await;
    assert_eq!(drain(&outbox, "former", Some(Progress::Mark)).await, [1, 2, 3]);
    outbox.forget("former").await;
    outbox.write(&events("a", 4..6)).await;
    let mut late = None;
    if outbox.capabilities().concurrent_transactions {
        let mut transaction = outbox.begin().await;
        transaction.publish(&events("late", 10..11)[0]).await;
        late = Some(transaction);
    }
    let begin = async |pipeline: &'static str, start: StartAt| {
        let connection = Connection { pipeline, start, ..Connection::default() };
        let reader = Reader::stand_by(&*outbox, connection).await;
        let drained = reader.drain().await;
        reader.close().await;
        drained
    };
    assert_eq!(begin("unpublished", StartAt::Unpublished).await, [4, 5]);
    assert_eq!(begin("now", StartAt::Now).await, NONE);
    assert_eq!(published(&outbox, "unpublished").await, [4, 5]);
    assert_eq!(published(&outbox, "now").await, NONE);
    assert_eq!(begin("oldest", StartAt::Oldest).await, [1, 2, 3, 4, 5]);
    outbox.write(&events("a", 6..7)).await;
    let mut expected = vec![6];
    if let Some(late) = late {
        late.commit().await;
        expected.push(10);
    }
    for pipeline in ["unpublished", "now", "oldest"] {
        let mut drained = begin(pipeline, StartAt::Now).await;
        drained.sort_unstable();
        assert_eq!(drained, expected, "{pipeline} has a place already");
    }
    assert_eq!(published(&outbox, "now").await.len(), expected.len());
    assert_eq!(published(&outbox, "oldest").await.len(), 5 + expected.len());
}

/// The events that a pipeline says it has published.
async fn published(outbox: &Subject, pipeline: &str) -> Vec<u32> {
    let operator = outbox.operated().await;
    let stored = operator.stored(&Wanted::default(), i64::MIN, 100).await;
    let stored = stored.expect("stored events can be found");
    let fates = operator.fates(pipeline, &[], &stored).await.expect("fates can be told");
    let of = |position| {
        let (_, fate) = fates.iter().find(|(other, _)| *other == position).expect("it has a fate");
        *fate
    };
    let own = stored.iter().filter(|stored| of(stored.position) == Fate::Published);
    own.map(|stored| number(stored.event_id.parse().expect("an id is a UUID"))).collect()
}

async fn what_another_pipeline_marked_is_not_its_own(outbox: Subject) {
    outbox.write(&events("a", 1..6)).await;
    assert_eq!(drain(&outbox, "former", None).await, [1, 2, 3, 4, 5]);
    outbox.forget("former").await;
    outbox.write(&events("a", 6..10)).await;
    assert_eq!(drain(&outbox, "latter", None).await, [6, 7, 8, 9]);
    assert_eq!(published(&outbox, "latter").await, [6, 7, 8, 9]);
    assert_eq!(published(&outbox, "former").await, NONE, "it has no checkpoint any more");
}
