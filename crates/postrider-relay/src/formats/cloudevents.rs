//! CloudEvents 1.0: the attributes of the binary mode and the document of the structured one.
//!
//! Beside the attributes of the specification, an event has the extensions `aggregatetype`,
//! `eventversion` and `partitionkey` (the key of the message); the structured mode also carries
//! `traceparent` and `tracestate`, which the binary mode sends as the headers that they are.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use postrider::Event;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{id, is_json, rfc3339, version};

/// The media type of the structured mode.
pub(super) const CONTENT_TYPE: &str = "application/cloudevents+json";
const SPECVERSION: &str = "1.0";

/// The attributes of the binary mode; `datacontenttype` is the message's content type.
pub(super) fn attribute_values<'a>(
    event: &'a Event,
    source: &'a str,
    key: &'a str,
) -> Vec<(&'static str, Cow<'a, str>)> {
    vec![
        ("specversion", SPECVERSION.into()),
        ("id", id(event).into()),
        ("source", source.into()),
        ("type", event.event_type().into()),
        ("subject", event.aggregate_id().into()),
        ("time", rfc3339(event.occurred_at()).into()),
        ("aggregatetype", event.aggregate_type().into()),
        ("eventversion", version(event)),
        ("partitionkey", key.into()),
    ]
}

/// The JSON document of the structured mode.
pub(super) fn structured(event: &Event, source: &str, key: &str) -> Bytes {
    let header = |name: &str| event.headers().get(name).map(String::as_str);
    let document = Document {
        specversion: SPECVERSION,
        id: id(event),
        source,
        event_type: event.event_type(),
        subject: event.aggregate_id(),
        time: rfc3339(event.occurred_at()),
        datacontenttype: event.content_type(),
        aggregatetype: event.aggregate_type(),
        eventversion: version(event),
        partitionkey: key,
        traceparent: header("traceparent"),
        tracestate: header("tracestate"),
        data: Data::of(event),
    };
    serde_json::to_vec(&document).expect("a document of texts can be serialized").into()
}

#[derive(Serialize)]
struct Document<'a> {
    specversion: &'a str,
    id: String,
    source: &'a str,
    #[serde(rename = "type")]
    event_type: &'a str,
    subject: &'a str,
    time: String,
    datacontenttype: &'a str,
    aggregatetype: &'a str,
    eventversion: Cow<'a, str>,
    partitionkey: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<&'a str>,
    #[serde(flatten)]
    data: Data<'a>,
}

/// The payload as the JSON format wants it: JSON as it stands, text as a string, all else, and
/// what is not what its media type says, as base64.
#[derive(Default, Serialize)]
struct Data<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<DataValue<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum DataValue<'a> {
    Json(&'a RawValue),
    Text(&'a str),
}

impl<'a> Data<'a> {
    fn of(event: &'a Event) -> Self {
        let payload = event.payload();
        if payload.is_empty() {
            return Self::default();
        }
        let data = if is_json(event.content_type()) {
            serde_json::from_slice(payload).ok().map(DataValue::Json)
        } else if is_text(event.content_type()) {
            std::str::from_utf8(payload).ok().map(DataValue::Text)
        } else {
            None
        };
        let data_base64 = data.is_none().then(|| BASE64.encode(payload));
        Self { data, data_base64 }
    }
}

fn is_text(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("text/") || essence == "application/xml" || essence.ends_with("+xml")
}

/// A text as a URI reference: characters that have no place in one are percent-encoded.
pub(super) fn uri_reference(text: &str) -> String {
    let mut uri = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            uri.push_str(&format!("%{byte:02X}"));
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use postrider::EventBuilder;
    use serde_json::{Value, json};

    use super::*;
    use crate::formats::{Encoding, Format};

    fn event() -> EventBuilder {
        Event::builder("Purchase Order", "42", "OrderPaid")
            .id("01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap())
            .occurred_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1))
    }

    fn document(event: EventBuilder) -> (String, Value) {
        let encoding = Encoding { format: Format::CloudEventsStructured, ..Encoding::default() };
        let message = encoding.encode(Arc::new(event.build().unwrap())).unwrap();
        assert_eq!(message.content_type, CONTENT_TYPE);
        assert!(message.attribute_values().is_empty());
        let text = String::from_utf8(message.body.to_vec()).unwrap();
        (text.clone(), serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn the_binary_mode_has_the_attributes_beside_the_payload() {
        let encoding = Encoding { format: Format::CloudEvents, ..Encoding::default() };
        let event = event().payload("abc", "text/plain").build().unwrap();
        let message = encoding.encode(Arc::new(event)).unwrap();
        assert_eq!(message.body, "abc");
        assert_eq!(message.content_type, "text/plain");
        let values = message.attribute_values();
        let values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_ref())).collect();
        let expected = [
            ("specversion", "1.0"),
            ("id", "01890a5d-ac96-774b-bcce-b302099a8057"),
            ("source", "/postrider/Purchase%20Order"),
            ("type", "OrderPaid"),
            ("subject", "42"),
            ("time", "1970-01-01T00:00:01Z"),
            ("aggregatetype", "Purchase Order"),
            ("eventversion", "1"),
            ("partitionkey", "42"),
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn the_structured_mode_is_one_document() {
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let (text, value) = document(
            event()
                .payload(r#"{"amount": 1.10000000000000000000001}"#, "application/json")
                .header("traceparent", trace),
        );
        assert!(text.contains(r#""data":{"amount": 1.10000000000000000000001}"#), "{text}");
        assert_eq!(value["specversion"], "1.0");
        assert_eq!(value["id"], "01890a5d-ac96-774b-bcce-b302099a8057");
        assert_eq!(value["source"], "/postrider/Purchase%20Order");
        assert_eq!(value["type"], "OrderPaid");
        assert_eq!(value["subject"], "42");
        assert_eq!(value["time"], "1970-01-01T00:00:01Z");
        assert_eq!(value["datacontenttype"], "application/json");
        assert_eq!(value["partitionkey"], "42");
        assert_eq!(value["traceparent"], trace);
        assert!(value.get("tracestate").is_none());
    }

    #[test]
    fn the_structured_mode_carries_any_payload() {
        let cases: [(&[u8], &str, Value); 6] = [
            (b"[1]", "application/vnd.shop+json", json!({"data": [1]})),
            (b"null", "application/json", json!({"data": null})),
            (b"{\"a\":", "application/json", json!({"data_base64": "eyJhIjo="})),
            ("h\u{e9}".as_bytes(), "text/plain; charset=utf-8", json!({"data": "h\u{e9}"})),
            (b"\xff\x00", "text/plain", json!({"data_base64": "/wA="})),
            (b"abc", "application/protobuf", json!({"data_base64": "YWJj"})),
        ];
        for (payload, content_type, expected) in cases {
            let (_, value) = document(event().payload(payload, content_type));
            for name in ["data", "data_base64"] {
                assert_eq!(value.get(name), expected.get(name), "{content_type} {name}");
            }
        }
        let (_, value) = document(event());
        assert!(value.get("data").is_none() && value.get("data_base64").is_none());
    }
}
