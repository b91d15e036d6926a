//! What stands in a stream, read without the sink's help.

use postrider::Event;
use postrider_relay::formats::Format;
use postrider_relay::sink::FailureKind::Misconfigured;
use postrider_testkit::servers::redis::read;
use uuid::Uuid;

use crate::{
    encoded, failing, is, kept, message, messages, numbers, published, redis_cli, run, server, sink,
};

fn order() -> postrider::EventBuilder {
    Event::builder("Order", "42", "OrderPaid")
        .id(Uuid::from_u128(7))
        .topic("s")
        .header("tenant", "acme")
        .header("payload", "canary")
        .header("postrider-key", "canary")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .payload("{\"cents\":999}", "application/json")
}

#[tokio::test]
async fn redis_own_program_shows_every_field() {
    let server = server(&[]).await;
    let sink = sink(&server.url(), "").await;
    published(&*sink, &[encoded(order().build().unwrap(), Format::Payload)]).await;
    let output = redis_cli(&server, &["XRANGE", "s", "-", "+"]).await;
    let output = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = output.lines().skip(1).collect();
    let pairs: Vec<_> = lines.chunks(2).map(|pair| (pair[0], pair[1])).collect();
    let expected = [
        ("postrider-id", "00000000-0000-0000-0000-000000000007"),
        ("postrider-aggregate-type", "Order"),
        ("postrider-aggregate-id", "42"),
        ("postrider-event-type", "OrderPaid"),
        ("postrider-event-version", "1"),
        ("postrider-occurred-at", pairs[5].1),
        ("postrider-key", "42"),
        ("content-type", "application/json"),
        ("tenant", "acme"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("payload", "{\"cents\":999}"),
    ];
    assert_eq!(pairs, expected);
}

#[tokio::test]
async fn each_format_has_its_fields() {
    let server = server(&[]).await;
    let sink = sink(&server.url(), "dedupe_events = 0").await;
    for format in Format::ALL {
        published(&*sink, &[encoded(order().build().unwrap(), format)]).await;
    }
    let entries = read(&server.url(), "s").await;
    let has = |index: usize, name: &str| entries[index].fields.contains_key(name);
    let index = |wanted| Format::ALL.iter().position(|format| *format == wanted).unwrap();
    let binary = index(Format::CloudEvents);
    assert_eq!(entries[binary].fields["ce-id"], "00000000-0000-0000-0000-000000000007");
    assert_eq!(entries[binary].fields["ce-type"], "OrderPaid");
    assert!(!has(binary, "postrider-id"));
    let structured = index(Format::CloudEventsStructured);
    assert!(!has(structured, "ce-id") && !has(structured, "postrider-id"));
    let body: serde_json::Value = serde_json::from_slice(&entries[structured].payload).unwrap();
    assert_eq!(body["id"], "00000000-0000-0000-0000-000000000007");
    let debezium = index(Format::Debezium);
    assert_eq!(entries[debezium].fields["eventType"], "OrderPaid");
    for entry in &entries {
        assert_eq!(entry.fields["tenant"], "acme");
        assert_eq!(entry.fields["postrider-key"], "42");
    }
}

/// G-03: also of one key over several streams.
#[tokio::test]
async fn one_call_goes_to_many_streams_of_any_name() {
    let server = server(&[]).await;
    let sink = sink(&server.url(), "").await;
    let names = ["тема/50%", "a b", "orders{eu}", "{", "\"'"];
    let sent: Vec<_> = (0..50).map(|number| message(names[number % 5], number as u32)).collect();
    for _ in 0..2 {
        published(&*sink, &sent).await;
    }
    for (index, name) in names.iter().enumerate() {
        let expected: Vec<_> = (0..10).map(|round| round * 5 + index as u32).collect();
        assert_eq!(kept(&server, name).await, expected, "{name:?}");
    }
}

#[tokio::test]
async fn the_path_of_the_url_is_the_database() {
    let server = server(&[]).await;
    let url = format!("{}/3", server.url());
    published(&*sink(&url, "").await, &[message("s", 1)]).await;
    assert!(kept(&server, "s").await.is_empty());
    assert_eq!(numbers(&read(&url, "s").await), [1]);
    let beyond = sink(&format!("{}/99", server.url()), "").await;
    is(&failing(&*beyond, message("s", 1)).await, Misconfigured, "DB index is out of range");
}

#[tokio::test]
async fn streams_are_trimmed_by_length() {
    let server = server(&[]).await;
    let sink = sink(&server.url(), "maxlen = 100").await;
    for round in 0..20 {
        published(&*sink, &messages("s", round * 50..round * 50 + 50)).await;
    }
    let kept = kept(&server, "s").await;
    // Trimming is approximate: whole nodes of up to 100 entries are removed.
    assert!((100..=300).contains(&kept.len()), "{} are left", kept.len());
    assert_eq!(kept.last(), Some(&999));
}

#[tokio::test]
async fn streams_are_trimmed_by_age() {
    let server = server(&["stream-node-max-entries 1"]).await;
    for number in [1, 2] {
        run(&server, &format!("XADD s {number}-0 payload x")).await;
    }
    let sink = sink(&server.url(), "retention = \"1h\"").await;
    published(&*sink, &[message("s", 3)]).await;
    published(&*sink, &[message("s", 4)]).await;
    assert_eq!(kept(&server, "s").await, [3, 4]);
}
