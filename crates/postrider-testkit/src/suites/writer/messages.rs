//! Events that are written to the log alone.

use std::time::{Duration, SystemTime};

use postrider::event::PAYLOAD_BYTES_MAX;
use postrider::{Event, InvalidEvent, WriteError};
use serde_json::json;
use uuid::Uuid;

use super::{Capabilities, End, OfSize, Subject, event};
use crate::case;
use crate::suites::Case;

const NO_LOG: &str = "the database has no log for events";

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    let cases = vec![
        case!(every_field_is_in_the_log),
        case!(a_message_is_committed_or_was_never_there),
        case!(an_invalid_event_is_no_message),
        case!(a_missing_function_names_the_fix),
    ];
    cases
        .into_iter()
        .map(|case| case.needing(|client: &Capabilities| client.has_log, NO_LOG))
        .collect()
}

/// G-04.
async fn every_field_is_in_the_log(database: Subject) {
    database.watch_log().await;
    let at = |micros| SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    let event = Event::builder("Order", "42", "OrderPaid")
        .id(Uuid::from_u128(7))
        .version(3)
        .payload(vec![0, b'\n', 255], "application/octet-stream")
        .header("a", "b\"")
        .topic("orders")
        // Databases keep microseconds.
        .occurred_at(at(1_767_323_045_123_456) + Duration::from_nanos(789))
        .deliver_after(at(1_770_091_506_000_000))
        .build()
        .expect("the event is valid");
    let written = database.client().await.publish_message(&event, End::Commit).await;
    assert_eq!(written.expect("the event is written"), event.id());
    let messages = database.messages().await;
    let [message] = &messages[..] else { panic!("one message: {messages:?}") };
    let expected = json!({
        "seq": 1,
        "xid": message.fields["xid"],
        "created_at": message.fields["created_at"],
        "published_at": null,
        "id": "00000000-0000-0000-0000-000000000007",
        "aggregate_type": "Order",
        "aggregate_id": "42",
        "event_type": "OrderPaid",
        "event_version": 3,
        "content_type": "application/octet-stream",
        "headers": { "a": "b\"" },
        "topic": "orders",
        "occurred_at": 1_767_323_045_123_456_u64,
        "deliver_after": 1_770_091_506_000_000_u64,
    });
    assert_eq!(message.fields, expected);
    assert_eq!(message.payload, [0, b'\n', 255]);
    assert!(database.ids().await.is_empty(), "it is in no table");
}

/// G-02.
async fn a_message_is_committed_or_was_never_there(database: Subject) {
    database.watch_log().await;
    let mut client = database.client().await;
    let rolled_back = client.publish_message(&event("RolledBack"), End::Rollback).await;
    rolled_back.expect("the write itself works");
    let (one, two) = (event("One"), event("Two"));
    for event in [&one, &two] {
        let committed = client.publish_message(event, End::Commit).await;
        assert_eq!(committed.expect("the event is written"), event.id());
    }
    let ids: Vec<Uuid> = database.messages().await.iter().map(super::Message::id).collect();
    assert_eq!(ids, [one.id(), two.id()]);
}

async fn an_invalid_event_is_no_message(database: Subject) {
    database.watch_log().await;
    let mut client = database.client().await;
    let error = client.publish_message(&OfSize(PAYLOAD_BYTES_MAX + 1), End::Commit).await;
    let error = error.expect_err("it is too large");
    assert!(matches!(error, WriteError::Invalid(InvalidEvent::TooLong { .. })), "{error:?}");
    let written = client.publish_message(&OfSize(PAYLOAD_BYTES_MAX), End::Commit).await;
    let id = written.expect("this one is not");
    let messages = database.messages().await;
    let [message] = &messages[..] else { panic!("one message: {messages:?}") };
    assert_eq!((message.id(), message.payload.len()), (id, PAYLOAD_BYTES_MAX));
}

async fn a_missing_function_names_the_fix(database: Subject) {
    database.unmigrate().await;
    let mut client = database.client().await;
    let error = client.publish_message(&event("E"), End::Rollback).await;
    let error = error.expect_err("the function is missing");
    let expected = "the table outbox is missing or out of date; run `postrider migrate`";
    assert_eq!(error.to_string(), expected);
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert!(source.is_some_and(|source| source.contains("outbox_publish_message")), "{error:?}");
}
