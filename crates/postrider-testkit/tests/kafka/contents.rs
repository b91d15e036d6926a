//! What a record looks like to a reader that has nothing to do with us: kcat.

use std::process::Stdio;
use std::sync::Arc;

use postrider::Event;
use postrider_relay::formats::{Encoding, Format};
use postrider_relay::sink::Message;
use postrider_testkit::servers::kafka::{make_topic, run_script};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{Shared, connect, message, publish};

/// All of a topic as kcat shows it.
async fn kcat(brokers: &str, topic: &str, how: &[&str]) -> Vec<u8> {
    let mut kcat = Command::new("kcat");
    kcat.args(["-C", "-e", "-q", "-b", brokers, "-t", topic]).args(how).stdin(Stdio::null());
    let output = kcat.output().await.expect("`kcat` can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

async fn records(brokers: &str, topic: &str) -> Vec<Value> {
    let text = String::from_utf8(kcat(brokers, topic, &["-J"]).await).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Headers as `name: value`, sorted.
fn headers(record: &Value) -> Vec<String> {
    let texts: Vec<_> =
        record["headers"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let mut headers: Vec<_> =
        texts.chunks(2).map(|pair| format!("{}: {}", pair[0], pair[1])).collect();
    headers.sort();
    headers
}

fn event(topic: &str) -> Event {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    Event::builder("Order", "42", "OrderPaid")
        .version(3)
        .payload("{\"cents\":999}", "application/json")
        .header("traceparent", trace)
        .header("tenant", "Müller")
        .occurred_at(std::time::UNIX_EPOCH + std::time::Duration::from_millis(1_767_225_600_123))
        .topic(topic)
        .build()
        .unwrap()
}

/// What every format sends besides its own.
const COMMON: [&str; 2] =
    ["tenant: Müller", "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"];

#[tokio::test]
async fn every_format_arrives_as_its_readers_expect_it() {
    let Shared { url, brokers } = Shared::broker();
    let sink = connect(&url, "").await;
    for format in Format::ALL {
        let topic = make_topic(&brokers, 3, &[]).await;
        let event = Arc::new(event(&topic));
        let message = Encoding { format, ..Encoding::default() }.encode(event.clone()).unwrap();
        assert_eq!(publish(&*sink, message).await, Ok(()));
        let [record] = &records(&brokers, &topic).await[..] else { panic!("it is one record") };
        assert_eq!(record["key"], "42");
        let id = event.id();
        let of_format: Vec<String> = match format {
            Format::Payload => vec![
                "content-type: application/json".into(),
                "postrider-aggregate-id: 42".into(),
                "postrider-aggregate-type: Order".into(),
                "postrider-event-type: OrderPaid".into(),
                "postrider-event-version: 3".into(),
                format!("postrider-id: {id}"),
                "postrider-occurred-at: 2026-01-01T00:00:00.123Z".into(),
            ],
            Format::CloudEvents => vec![
                "ce_aggregatetype: Order".into(),
                "ce_eventversion: 3".into(),
                format!("ce_id: {id}"),
                "ce_partitionkey: 42".into(),
                "ce_source: /postrider/Order".into(),
                "ce_specversion: 1.0".into(),
                "ce_subject: 42".into(),
                "ce_time: 2026-01-01T00:00:00.123Z".into(),
                "ce_type: OrderPaid".into(),
                "content-type: application/json".into(),
            ],
            Format::CloudEventsStructured => {
                vec!["content-type: application/cloudevents+json".into()]
            }
            Format::Debezium => vec![
                "content-type: application/json".into(),
                "eventType: OrderPaid".into(),
                format!("id: {id}"),
            ],
        };
        let mut expected: Vec<_> = COMMON.map(str::to_owned).into_iter().chain(of_format).collect();
        expected.sort();
        assert_eq!(headers(record), expected, "{format:?}");
        let payload = record["payload"].as_str().unwrap();
        if format == Format::CloudEventsStructured {
            let payload: Value = serde_json::from_str(payload).unwrap();
            assert_eq!(payload["id"], json!(id.to_string()));
            assert_eq!(payload["type"], "OrderPaid");
            assert_eq!(payload["data"], json!({ "cents": 999 }));
        } else {
            assert_eq!(payload, "{\"cents\":999}");
        }
    }
}

#[tokio::test]
async fn payloads_arrive_byte_for_byte_and_empty_ones_as_tombstones() {
    let Shared { url, brokers } = Shared::broker();
    let sink = connect(&url, "").await;
    let topic = make_topic(&brokers, 1, &[("cleanup.policy", "compact")]).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(5000).collect();
    assert_eq!(publish(&*sink, message(&topic, "42", bytes.clone())).await, Ok(()));
    assert_eq!(kcat(&brokers, &topic, &["-D", "", "-f", "%s"]).await, bytes);
    assert_eq!(publish(&*sink, message(&topic, "42", "")).await, Ok(()));
    let shown = kcat(&brokers, &topic, &["-o", "1", "-f", "%k has %S bytes"]).await;
    assert_eq!(String::from_utf8(shown).unwrap(), "42 has -1 bytes", "it is null, not empty");
}

#[tokio::test]
async fn every_codec_makes_batches_smaller_that_everybody_can_read() {
    let Shared { url, brokers } = Shared::broker();
    let mut topics = Vec::new();
    for codec in ["none", "gzip", "lz4", "snappy", "zstd"] {
        let topic = make_topic(&brokers, 1, &[]).await;
        let options = format!("compression = \"{codec}\"\nlinger = \"50ms\"");
        let sink = connect(&url, &options).await;
        let body = "all the same ".repeat(30);
        let messages: Vec<Message> =
            (0..100).map(|key| message(&topic, &key.to_string(), body.clone())).collect();
        assert!(sink.publish(&messages).await.iter().all(Result::is_ok), "{codec}");
        let records = records(&brokers, &topic).await;
        assert_eq!(records.len(), 100, "{codec}");
        assert!(records.iter().all(|record| record["payload"] == body), "{codec}");
        topics.push(topic);
    }
    let describe = format!(
        "kafka-log-dirs.sh --bootstrap-server {brokers} --describe --topic-list {}",
        topics.join(",")
    );
    let said = run_script(&describe).await;
    let sizes = said.lines().find(|line| line.starts_with('{')).expect("sizes are shown");
    let sizes: Value = serde_json::from_str(sizes).unwrap();
    let size = |topic: &str| {
        let partitions = &sizes["brokers"][0]["logDirs"][0]["partitions"];
        let found = partitions.as_array().unwrap().iter();
        let mut found = found.filter(|one| one["partition"] == format!("{topic}-0"));
        found.next().expect("each topic has a size")["size"].as_u64().unwrap()
    };
    let plain = size(&topics[0]);
    for topic in &topics[1..] {
        assert!(size(topic) * 2 < plain, "{plain} bytes became {}", size(topic));
    }
}
