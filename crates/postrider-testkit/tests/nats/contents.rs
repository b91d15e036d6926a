//! What a consumer finds, read by a plain client.

use std::collections::BTreeMap;
use std::sync::Arc;

use postrider_relay::formats::{Encoding, Format};
use postrider_testkit::servers::nats::{Options, Read, Server, read};

use crate::{SUBJECT, connected, context, event, make_stream, publish};

async fn arrived(format: Format, options: &str) -> (Read, String) {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    make_stream(&context, Default::default()).await;
    let sink = connected(&server.url(), options).await;
    let event = event().header("traceparent", "00-a-b-01").header("Nats-Rollup", "all");
    let event = Arc::new(event.build().unwrap());
    let mut encoding = Encoding { format, ..Encoding::default() };
    encoding.route.topic = SUBJECT.parse().unwrap();
    publish(&*sink, encoding.encode(Arc::clone(&event)).unwrap()).await.unwrap();
    let mut reads = read(&context, "ORDERS").await;
    (reads.pop().unwrap(), event.id().to_string())
}

fn names(headers: &BTreeMap<String, String>) -> Vec<&str> {
    headers.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn the_payload_format_has_id_type_version_key_and_trace() {
    let (read, id) = arrived(Format::Payload, "stream = \"ORDERS\"").await;
    assert_eq!((read.subject.as_str(), &read.payload[..]), (SUBJECT, &br#"{"amount":5}"#[..]));
    for (name, value) in [
        ("Nats-Expected-Stream", "ORDERS"),
        ("Nats-Msg-Id", &id),
        ("content-type", "application/json"),
        ("postrider-aggregate-id", "42"),
        ("postrider-aggregate-type", "Order"),
        ("postrider-event-type", "OrderPaid"),
        ("postrider-event-version", "1"),
        ("postrider-id", &id),
        ("postrider-key", "42"),
        ("traceparent", "00-a-b-01"),
    ] {
        assert_eq!(read.headers.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(read.headers.contains_key("postrider-occurred-at"));
    assert_eq!(read.headers.len(), 11, "{:?}", names(&read.headers));
}

#[tokio::test]
async fn the_debezium_format_has_id_and_type() {
    let (read, id) = arrived(Format::Debezium, "").await;
    assert_eq!(read.payload, br#"{"amount":5}"#);
    for (name, value) in [("Nats-Msg-Id", id.as_str()), ("eventType", "OrderPaid"), ("id", &id)] {
        assert_eq!(read.headers.get(name).map(String::as_str), Some(value), "{name}");
    }
    let headers = names(&read.headers);
    assert_eq!(headers, ["Nats-Msg-Id", "content-type", "eventType", "id", "traceparent"]);
}

#[tokio::test]
async fn cloudevents_are_in_headers_or_in_the_body() {
    let (binary, id) = arrived(Format::CloudEvents, "").await;
    assert_eq!(binary.payload, br#"{"amount":5}"#);
    for (name, value) in [
        ("Nats-Msg-Id", id.as_str()),
        ("ce-datacontenttype", "application/json"),
        ("ce-id", &id),
        ("ce-partitionkey", "42"),
        ("ce-source", "/postrider/Order"),
        ("ce-specversion", "1.0"),
        ("ce-type", "OrderPaid"),
    ] {
        assert_eq!(binary.headers.get(name).map(String::as_str), Some(value), "{name}");
    }
    let (structured, id) = arrived(Format::CloudEventsStructured, "").await;
    let body: serde_json::Value = serde_json::from_slice(&structured.payload).unwrap();
    assert_eq!((&body["id"], &body["data"]["amount"]), (&id.as_str().into(), &5.into()));
    let headers = names(&structured.headers);
    assert_eq!(headers, ["Nats-Msg-Id", "content-type", "traceparent"]);
}
