//! The line that the file and stdout sinks write for a message: one JSON object.
//!
//! Its fields are `id, aggregate_type, aggregate_id, event_type, event_version, topic, key,
//! headers, occurred_at, payload`, in that order. A JSON payload is embedded as it stands, with
//! its numbers and the order of its fields untouched; only if it has line breaks is the white
//! space between its tokens left out. Any other payload is a string, and a last field
//! `payload_encoding` says whether it is `text` or `base64`. An empty payload is `null`. The
//! [archive](crate::prune::archive) writes payloads in the same way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::formats::{is_json, rfc3339};
use crate::sink::Message;

/// Room for a line beside its payload.
const LINE_BYTES_GUESS: usize = 256;

/// The lines of several messages, each with its line break.
pub(super) fn lines(messages: &[Message]) -> Vec<u8> {
    let bytes = messages.iter().map(|message| message.body.len() + LINE_BYTES_GUESS).sum();
    let mut lines = Vec::with_capacity(bytes);
    for message in messages {
        serde_json::to_writer(&mut lines, &Line::of(message))
            .expect("texts are written to memory, which cannot fail");
        lines.push(b'\n');
    }
    lines
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(serialize_with = "as_text")]
    id: Uuid,
    aggregate_type: &'a str,
    aggregate_id: &'a str,
    event_type: &'a str,
    event_version: u32,
    topic: &'a str,
    key: &'a str,
    #[serde(serialize_with = "as_object")]
    headers: &'a [(String, String)],
    occurred_at: String,
    payload: Payload<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_encoding: Option<&'static str>,
}

/// A payload as it stands in a line.
#[derive(Serialize)]
#[serde(untagged)]
pub(crate) enum Payload<'a> {
    Empty,
    Json(&'a RawValue),
    CompactedJson(Box<RawValue>),
    Text(&'a str),
    Base64(String),
}

impl<'a> Line<'a> {
    fn of(message: &'a Message) -> Self {
        let event = &message.event;
        let payload = Payload::of(&message.body, &message.content_type);
        Self {
            id: event.id(),
            aggregate_type: event.aggregate_type(),
            aggregate_id: event.aggregate_id(),
            event_type: event.event_type(),
            event_version: event.event_version(),
            topic: &message.topic,
            key: &message.key,
            headers: &message.headers,
            occurred_at: rfc3339(event.occurred_at()),
            payload_encoding: payload.encoding(),
            payload,
        }
    }
}

impl<'a> Payload<'a> {
    pub(crate) fn of(bytes: &'a [u8], content_type: &str) -> Self {
        if bytes.is_empty() {
            return Self::Empty;
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Self::Base64(BASE64.encode(bytes));
        };
        if !is_json(content_type) {
            return Self::Text(text);
        }
        match serde_json::from_str::<&RawValue>(text) {
            Ok(json) if json.get().contains(['\n', '\r']) => {
                match RawValue::from_string(compacted(json.get())) {
                    Ok(json) => Self::CompactedJson(json),
                    Err(_) => Self::Text(text),
                }
            }
            Ok(json) => Self::Json(json),
            Err(_) => Self::Text(text),
        }
    }

    /// What `payload_encoding` says of it.
    pub(crate) fn encoding(&self) -> Option<&'static str> {
        match self {
            Self::Empty | Self::Json(_) | Self::CompactedJson(_) => None,
            Self::Text(_) => Some("text"),
            Self::Base64(_) => Some("base64"),
        }
    }
}

/// Valid JSON without the white space between its tokens.
fn compacted(json: &str) -> String {
    let mut compact = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for character in json.chars() {
        if in_string {
            in_string = escaped || character != '"';
            escaped = character == '\\' && !escaped;
        } else if matches!(character, ' ' | '\t' | '\n' | '\r') {
            continue;
        } else {
            in_string = character == '"';
        }
        compact.push(character);
    }
    compact
}

fn as_text<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn as_object<S: Serializer>(
    headers: &&[(String, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.iter().map(|(name, value)| (name, value)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use postrider::Event;

    use super::*;
    use crate::formats::Encoding;

    fn line(payload: &[u8], content_type: &str) -> String {
        let event = Event::builder("Order", "42", "Order\"Paid")
            .id("01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap())
            .header("tenant", "acme")
            .occurred_at(SystemTime::UNIX_EPOCH)
            .payload(payload.to_vec(), content_type)
            .build()
            .unwrap();
        let message = Encoding::default().encode(Arc::new(event)).unwrap();
        String::from_utf8(lines(&[message])).unwrap()
    }

    #[test]
    fn a_line_has_the_documented_fields_in_order() {
        let expected = concat!(
            r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","aggregate_type":"Order","#,
            r#""aggregate_id":"42","event_type":"Order\"Paid","event_version":1,"#,
            r#""topic":"outbox.event.Order","key":"42","headers":{"tenant":"acme"},"#,
            r#""occurred_at":"1970-01-01T00:00:00Z","payload":{"a": 1}}"#,
            "\n"
        );
        assert_eq!(line(br#"{"a": 1}"#, "application/json"), expected);
    }

    #[test]
    fn every_payload_is_one_line_and_can_be_had_back() {
        let cases: [(&[u8], &str, &str); 9] = [
            (b"1.50E+400", "application/json", r#""payload":1.50E+400}"#),
            (
                b"{\r\n  \"a b\\\" \": [1,\n 2.0],\t\"c\\\\\": \" x\"\n}\n",
                "application/json",
                r#""payload":{"a b\" ":[1,2.0],"c\\":" x"}}"#,
            ),
            (b"  {\"b\": 1, \"a\" : 2}\n", "application/json", r#""payload":{"b": 1, "a" : 2}}"#),
            (b"", "application/json", r#""payload":null}"#),
            (b"", "text/plain", r#""payload":null}"#),
            (b"{\"a\":", "application/json", r#""payload":"{\"a\":","payload_encoding":"text"}"#),
            (b"a\nb", "text/plain", r#""payload":"a\nb","payload_encoding":"text"}"#),
            (b"null", "application/json", r#""payload":null}"#),
            (b"\xff\x00", "application/json", r#""payload":"/wA=","payload_encoding":"base64"}"#),
        ];
        for (payload, content_type, expected) in cases {
            let line = line(payload, content_type);
            assert!(line.trim_end().ends_with(expected), "{line} should end with {expected}");
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert!(!line.contains('\r'));
        }
    }
}
