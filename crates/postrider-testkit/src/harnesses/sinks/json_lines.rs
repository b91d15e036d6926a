//! Reads the lines of the file and stdout sinks back, as a user's program would.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::suites::sink::Arrival;

/// How long a line may be torn: a reader may look while it is being written.
const TORN_MAX: Duration = Duration::from_secs(10);

/// What the lines of a file say. Fails on a line that stays torn.
pub(super) async fn read(path: &Path) -> Vec<Arrival> {
    let started = Instant::now();
    loop {
        let bytes = fs::read(path).unwrap_or_default();
        if bytes.is_empty() || bytes.ends_with(b"\n") {
            let text = std::str::from_utf8(&bytes).expect("lines of JSON are UTF-8");
            return text.lines().map(arrival).collect();
        }
        assert!(started.elapsed() < TORN_MAX, "the last line is torn");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn arrival(line: &str) -> Arrival {
    let object: Value = serde_json::from_str(line).expect("each line is JSON");
    let text = |name: &str| {
        let value = object[name].as_str();
        value.unwrap_or_else(|| panic!("{name} is not text in {line}")).to_owned()
    };
    let headers = object["headers"].as_object().expect("headers are an object");
    let header = |(name, value): (&String, &Value)| {
        (name.clone(), value.as_str().expect("a header is text").to_owned())
    };
    Arrival {
        id: text("id").parse().expect("an id is a UUID"),
        event_type: text("event_type"),
        topic: text("topic"),
        key: text("key"),
        headers: headers.iter().map(header).collect(),
        body: body(line, &object),
    }
}

fn body(line: &str, object: &Value) -> Vec<u8> {
    let payload = &object["payload"];
    match object["payload_encoding"].as_str() {
        Some("base64") => {
            let encoded = payload.as_str().expect("base64 is text");
            BASE64.decode(encoded).expect("the base64 is whole")
        }
        Some("text") => payload.as_str().expect("text is text").into(),
        Some(other) => panic!("nobody knows the encoding {other}"),
        // An empty payload; the JSON `null` looks the same, so no case sends it.
        None if payload.is_null() => Vec::new(),
        None => raw_payload(line).into(),
    }
}

/// The payload as it stands in the line, with its numbers untouched.
fn raw_payload(line: &str) -> &str {
    let fields: std::collections::BTreeMap<&str, &RawValue> =
        serde_json::from_str(line).expect("each line is JSON");
    fields["payload"].get()
}
