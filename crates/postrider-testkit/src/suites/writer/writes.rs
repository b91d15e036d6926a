//! What a call writes.

use std::time::{Duration, SystemTime};

use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};
use postrider::event::PAYLOAD_BYTES_MAX;
use postrider::{Event, InvalidEvent, ServerError, ToEvent, WriteError, events, timestamp};
use uuid::Uuid;

use super::{Capabilities, End, OfSize, Subject, Why, WrittenRow, event};
use crate::case;
use crate::suites::Case;

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(every_field_is_written),
        case!(a_batch_keeps_its_order),
        case!(a_batch_is_one_statement)
            .needing(|client| client.one_statement_per_batch, "a statement writes one event"),
        case!(an_empty_batch_writes_nothing),
        case!(an_invalid_event_stops_its_whole_batch),
        case!(a_duplicate_id_stops_its_whole_batch).needing(
            |client| client.refuses_known_ids,
            "the database does not know ids of other partitions",
        ),
        case!(the_oldest_and_the_latest_time_are_written),
        case!(the_highest_version_is_written),
        case!(a_missing_table_names_the_fix),
        case!(an_event_that_is_refused_is_not_quoted),
        case!(the_current_span_is_captured),
    ]
}

/// G-04.
async fn every_field_is_written(database: Subject) {
    let at = |micros| SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
    let (occurred_at, deliver_after) = (at(1_767_323_045_123_456), at(1_770_091_506_000_000));
    let id = Uuid::from_u128(7);
    let event = Event::builder("Order", "42", "OrderPaid")
        .id(id)
        .version(3)
        .payload(vec![0, 255], "application/octet-stream")
        .header("a", "b\"")
        .topic("orders")
        // Databases keep microseconds.
        .occurred_at(occurred_at + Duration::from_nanos(789))
        .deliver_after(deliver_after)
        .build()
        .expect("the event is valid");
    let written = database.client().await.publish(&event, End::Commit).await;
    assert_eq!(written.expect("the event is written"), id);
    let row = database.only_row().await;
    let age = SystemTime::now().duration_since(row.created_at);
    assert!(age.is_ok_and(|age| age < Duration::from_secs(60)), "{:?}", row.created_at);
    let expected = WrittenRow {
        id: "00000000-0000-0000-0000-000000000007".to_owned(),
        aggregate_type: "Order".to_owned(),
        aggregate_id: "42".to_owned(),
        event_type: "OrderPaid".to_owned(),
        event_version: 3,
        payload: vec![0, 255],
        content_type: "application/octet-stream".to_owned(),
        headers: r#"{"a":"b\""}"#.to_owned(),
        topic: Some("orders".to_owned()),
        occurred_at,
        created_at: row.created_at,
        deliver_after: Some(deliver_after),
        published: false,
    };
    assert_eq!(row, expected);
}

/// G-03.
async fn a_batch_keeps_its_order(database: Subject) {
    let mut client = database.client().await;
    let batch: Vec<Event> = (0..100).map(|number| event(&format!("E{number}"))).collect();
    let as_events: Vec<&dyn ToEvent> = batch.iter().map(|event| event as _).collect();
    let ids = client.publish_all(&as_events, End::Commit).await;
    let ids = ids.expect("the batch is written");
    assert_eq!(ids, batch.iter().map(Event::id).collect::<Vec<_>>());
    assert_eq!(database.ids().await, ids);
}

/// However many events, the caller's transaction waits for one answer.
async fn a_batch_is_one_statement(database: Subject) {
    let mut client = database.client().await;
    for (count, statements) in [(500, 1), (1, 2), (0, 2)] {
        let batch: Vec<Event> = (0..count).map(|number| event(&format!("E{number}"))).collect();
        let as_events: Vec<&dyn ToEvent> = batch.iter().map(|event| event as _).collect();
        let written = client.publish_all(&as_events, End::Commit).await;
        assert_eq!(written.expect("the batch is written").len(), count);
        assert_eq!(database.insert_statements().await, statements, "{count}");
    }
}

/// What the event's limits allow can be kept.
async fn the_oldest_and_the_latest_time_are_written(database: Subject) {
    let (oldest, latest) = ("0000-01-01T00:00:00.000000Z", "9999-12-30T21:59:59.999999Z");
    let time = |text| timestamp::from_text(text).expect("it is RFC 3339");
    let event = Event::builder("Order", "42", "E").occurred_at(time(oldest));
    let event = event.deliver_after(time(latest)).build().expect("the event is valid");
    let written = database.client().await.publish_all(&[&event], End::Commit).await;
    written.expect("the event is written");
    let row = database.only_row().await;
    assert_eq!(timestamp::to_text(row.occurred_at), oldest);
    assert_eq!(row.deliver_after.map(timestamp::to_text).as_deref(), Some(latest));
}

async fn the_highest_version_is_written(database: Subject) {
    let event = Event::builder("Order", "42", "E").version(u32::MAX).build();
    let event = event.expect("the event is valid");
    let written = database.client().await.publish(&event, End::Commit).await;
    written.expect("the event is written");
    assert_eq!(database.only_row().await.event_version, u32::MAX);
}

async fn an_empty_batch_writes_nothing(database: Subject) {
    let ids = database.client().await.publish_all(&[], End::Commit).await;
    assert!(ids.expect("an empty batch is fine").is_empty());
    assert!(database.ids().await.is_empty());
}

/// All or none.
async fn an_invalid_event_stops_its_whole_batch(database: Subject) {
    let mut client = database.client().await;
    let batch: [&dyn ToEvent; 3] =
        [&OfSize(1), &OfSize(PAYLOAD_BYTES_MAX), &OfSize(PAYLOAD_BYTES_MAX + 1)];
    let error = client.publish_all(&batch, End::Commit).await;
    let error = error.expect_err("one of them is too large");
    assert!(matches!(error, WriteError::Invalid(InvalidEvent::TooLong { .. })), "{error:?}");
    assert!(database.ids().await.is_empty());
    let written = client.publish_all(&batch[..2], End::Commit).await;
    assert_eq!(written.expect("the others are not").len(), 2);
}

/// All or none.
async fn a_duplicate_id_stops_its_whole_batch(database: Subject) {
    let mut client = database.client().await;
    let known = event("Known");
    client.publish(&known, End::Commit).await.expect("it is new");
    let error = client.publish_all(&[&event("New"), &known], End::Commit).await;
    let error = error.expect_err("one of them is there already");
    assert!(matches!(error, WriteError::Duplicate { id } if id == known.id()), "{error:?}");
    let error = client.publish(&known, End::Commit).await;
    let error = error.expect_err("it is there already").to_string();
    assert!(error.contains("is in the outbox already"), "{error}");
    assert_eq!(database.ids().await, [known.id()]);
}

async fn a_missing_table_names_the_fix(database: Subject) {
    database.unmigrate().await;
    let error = database.client().await.publish(&event("E"), End::Rollback).await;
    let error = error.expect_err("the table is missing");
    let expected = "the table outbox is missing or out of date; run `postrider migrate`";
    assert_eq!(error.to_string(), expected);
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert!(source.is_some_and(|source| source.contains("outbox")), "{error:?}");
}

/// G-11: servers quote the row that they refuse, and the value that they cannot read.
async fn an_event_that_is_refused_is_not_quoted(database: Subject) {
    let secret = || {
        let event = Event::builder("Order", "canary-id", "OrderPaid").header("h", "canary-header");
        event.payload("canary-payload", "text/plain").build().expect("the event is valid")
    };
    for (why, code) in [(Why::Constraint, "23514"), (Why::Value, "22P02")] {
        database.refuse_events(why).await;
        let mut client = database.client().await;
        let one = client.publish(&secret(), End::Rollback).await.map(drop);
        let several = client.publish_all(&[&secret(), &secret()], End::Rollback).await.map(drop);
        let transacted = client.transact(Ok(events![secret()])).await;
        let transacted = transacted.map_err(|error| *error.downcast().expect("it is the outbox's"));
        for refused in [one, several, transacted] {
            let error = refused.expect_err("the database refuses it");
            let shown = chain(&error);
            assert!(!shown.contains("canary"), "{why:?}: {shown}");
            assert!(why == Why::Value || shown.contains("outbox_none"), "{shown}");
            let source = std::error::Error::source(&error).expect("the database said why");
            if let Some(said) = source.downcast_ref::<ServerError>() {
                // diesel does not tell all of them.
                assert!(said.code().is_none_or(|said| said == code), "{shown}");
                assert!(said.code().is_some() || why == Why::Value, "{shown}");
            }
        }
    }
}

/// An error and all below it, in both ways of writing them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut below = error.source();
    while let Some(error) = below {
        text.push_str(&format!(" {error} {error:?}"));
        below = error.source();
    }
    text
}

/// The trace goes on at the consumer.
async fn the_current_span_is_captured(database: Subject) {
    let mut client = database.client().await;
    let span = SpanContext::new(
        TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").expect("it is hexadecimal"),
        SpanId::from_hex("b7ad6b7169203331").expect("it is hexadecimal"),
        TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    let attached = Context::new().with_remote_span_context(span).attach();
    let written = client.publish(&event("E"), End::Commit).await;
    drop(attached);
    written.expect("the event is written");
    let expected = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = database.only_row().await.headers;
    assert_eq!(headers, format!("{{\"traceparent\":\"{expected}\"}}"));
}
