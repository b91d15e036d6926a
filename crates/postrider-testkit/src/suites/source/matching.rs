//! What a pipeline matches changes from one start to the next.

use postrider::Event;

use super::reader::Reader;
use super::{Connection, OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{AGGREGATE_TYPE, id};

const NONE: [u32; 0] = [];

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    let filters = |can: &OutboxCapabilities| can.filters;
    let all = "the source reads every aggregate type";
    vec![
        case!(a_type_that_is_matched_later_is_delivered_whole).needing(filters, all),
        case!(a_type_that_is_matched_again_goes_on_where_it_was).needing(filters, all),
        case!(everything_that_is_matched_later_is_delivered_whole).needing(filters, all),
        case!(a_type_is_matched_later_while_the_relay_crashes).needing(filters, all),
        case!(a_type_that_lies_between_unsettled_events_keeps_its_order).needing(filters, all),
        case!(the_status_counts_what_no_pipeline_matches)
            .needing(|can| can.filters && can.operated, all),
        case!(a_change_of_progress_and_of_types_at_once_loses_nothing).needing(filters, all),
    ]
}

const ORDER: &str = AGGREGATE_TYPE;
const INVOICE: &str = "Invoice";
const REFUND: &str = "Refund";

fn typed(aggregate_type: &str, key: &str, number: u32) -> Event {
    let event = Event::builder(aggregate_type, key, format!("Event{number}"));
    event.id(id(number)).json(&number).build().expect("a numbered event is valid")
}

async fn start(outbox: &Subject, aggregate_types: &[&str]) -> Reader {
    let connection = Connection { aggregate_types, ..Connection::default() };
    Reader::stand_by(&**outbox, connection).await
}

/// Drains the pipeline while it matches these types, and stops it.
async fn drain(outbox: &Subject, aggregate_types: &[&str]) -> Vec<u32> {
    let reader = start(outbox, aggregate_types).await;
    let drained = reader.drain().await;
    reader.close().await;
    drained
}

/// G-01, G-03: events of a type that no pipeline matches wait, and come in the order of their
/// key.
async fn a_type_that_is_matched_later_is_delivered_whole(outbox: Subject) {
    outbox.write(&[typed(ORDER, "a", 1), typed(INVOICE, "k", 2), typed(ORDER, "a", 3)]).await;
    outbox.write(&[typed(INVOICE, "k", 4), typed(INVOICE, "l", 5)]).await;
    assert_eq!(drain(&outbox, &[ORDER]).await, [1, 3]);
    outbox.write(&[typed(INVOICE, "k", 6), typed(ORDER, "a", 7), typed(REFUND, "r", 8)]).await;
    let reader = start(&outbox, &[ORDER, INVOICE]).await;
    outbox.write(&[typed(INVOICE, "k", 9)]).await;
    let came = reader.drain().await;
    let of_key = |numbers: &[u32]| -> Vec<u32> {
        came.iter().copied().filter(|number| numbers.contains(number)).collect()
    };
    assert_eq!(of_key(&[2, 4, 6, 9]), [2, 4, 6, 9], "of {came:?}");
    assert_eq!((of_key(&[5, 7]).len(), came.len()), (2, 6), "of {came:?}");
    reader.close().await;
    assert_eq!(drain(&outbox, &[ORDER, INVOICE]).await, NONE, "everything was delivered");
}

/// G-04: what was delivered before the type was left out is not repeated.
async fn a_type_that_is_matched_again_goes_on_where_it_was(outbox: Subject) {
    outbox.write(&[typed(ORDER, "a", 1), typed(INVOICE, "k", 2)]).await;
    assert_eq!(drain(&outbox, &[ORDER, INVOICE]).await, [1, 2]);
    outbox.write(&[typed(INVOICE, "k", 3), typed(ORDER, "a", 4)]).await;
    assert_eq!(drain(&outbox, &[ORDER]).await, [4]);
    outbox.write(&[typed(INVOICE, "k", 5)]).await;
    assert_eq!(drain(&outbox, &[ORDER]).await, NONE);
    assert_eq!(drain(&outbox, &[INVOICE, ORDER]).await, [3, 5]);
    outbox.write(&[typed(INVOICE, "k", 6)]).await;
    assert_eq!(drain(&outbox, &[INVOICE, ORDER]).await, [6]);
}

/// G-01, G-04: the same with a pipeline that matches everything.
async fn everything_that_is_matched_later_is_delivered_whole(outbox: Subject) {
    outbox.write(&[typed(ORDER, "a", 1), typed(INVOICE, "k", 2)]).await;
    assert_eq!(drain(&outbox, &[]).await, [1, 2]);
    outbox.write(&[typed(INVOICE, "k", 3), typed(ORDER, "a", 4), typed(REFUND, "r", 5)]).await;
    assert_eq!(drain(&outbox, &[ORDER]).await, [4]);
    assert_eq!(drain(&outbox, &[REFUND]).await, [5]);
    outbox.write(&[typed(ORDER, "a", 6)]).await;
    let mut came = drain(&outbox, &[]).await;
    came.sort_unstable();
    assert_eq!(came, [3, 6]);
    assert_eq!(drain(&outbox, &[]).await, NONE);
}

/// G-01: what was read and not settled comes again, of the old types and of the new one.
async fn a_type_is_matched_later_while_the_relay_crashes(outbox: Subject) {
    outbox.write(&[typed(ORDER, "a", 1), typed(INVOICE, "k", 2), typed(ORDER, "b", 3)]).await;
    let reader = start(&outbox, &[ORDER]).await;
    let read = reader.read(2).await;
    reader.deliver(&read[..1]).await;
    reader.kill();
    let reader = start(&outbox, &[ORDER, INVOICE]).await;
    let read = reader.read_all().await;
    assert_eq!(read.len(), 2, "{read:?}");
    reader.kill();
    let reader = start(&outbox, &[ORDER, INVOICE]).await;
    let mut came = reader.drain().await;
    came.sort_unstable();
    assert_eq!(came, [2, 3]);
}

/// G-03: before, between and behind events that were read, of which some are settled.
async fn a_type_that_lies_between_unsettled_events_keeps_its_order(outbox: Subject) {
    let order = |key: &str, number| typed(ORDER, key, number);
    let invoice = |number| typed(INVOICE, "k", number);
    let events = [order("a", 1), order("b", 2), invoice(3), order("c", 4), order("d", 5)];
    outbox.write(&events).await;
    outbox.write(&[invoice(6), order("e", 7), invoice(8), order("f", 9)]).await;
    let reader = start(&outbox, &[ORDER]).await;
    let read = reader.read(6).await;
    for settled in [0, 3, 4] {
        reader.deliver(&read[settled..=settled]).await;
    }
    reader.kill();
    let reader = start(&outbox, &[ORDER, INVOICE]).await;
    let came = reader.drain().await;
    let invoices: Vec<u32> = came.iter().copied().filter(|it| [3, 6, 8].contains(it)).collect();
    assert_eq!(invoices, [3, 6, 8], "of {came:?}");
    let mut sorted = came.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [2, 3, 4, 6, 8, 9]);
}

/// G-01: a way of progress that takes over from another takes over what that has published, and no
/// more.
async fn a_change_of_progress_and_of_types_at_once_loses_nothing(outbox: Subject) {
    use postrider_relay::sources::Progress;
    outbox.write(&[typed(ORDER, "a", 1), typed(INVOICE, "k", 2)]).await;
    assert_eq!(drain(&outbox, &[ORDER]).await, [1]);
    outbox.write(&[typed(ORDER, "a", 3)]).await;
    for (progress, expected) in [(Progress::Mark, vec![2, 3]), (Progress::Cursor, vec![])] {
        let connection = Connection {
            aggregate_types: &[ORDER, INVOICE],
            progress: Some(progress),
            ..Connection::default()
        };
        let reader = Reader::stand_by(&*outbox, connection).await;
        let mut came = reader.drain().await;
        came.sort_unstable();
        assert_eq!(came, expected, "{progress}");
        reader.close().await;
    }
}

async fn the_status_counts_what_no_pipeline_matches(outbox: Subject) {
    outbox.forget("default").await;
    outbox.write(&[typed(ORDER, "a", 1), typed(INVOICE, "k", 2), typed(REFUND, "r", 3)]).await;
    outbox.write(&[typed(INVOICE, "k", 4)]).await;
    let admin = outbox.admin().await;
    let unmatched = async || admin.status().await.expect("the status can be read").unmatched;
    assert_eq!(unmatched().await.events, 0, "there is no pipeline");
    drain(&outbox, &[ORDER]).await;
    let found = unmatched().await;
    assert_eq!((found.events, found.aggregate_types), (3, vec![INVOICE.into(), REFUND.into()]));
    drain(&outbox, &[ORDER, INVOICE]).await;
    let found = unmatched().await;
    assert_eq!((found.events, found.aggregate_types), (1, vec![REFUND.to_owned()]));
    drain(&outbox, &[]).await;
    assert_eq!(unmatched().await.events, 0);
}
