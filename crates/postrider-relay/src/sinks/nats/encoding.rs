//! What is sent for a message: its subject and its headers.
//!
//! | header | value |
//! |---|---|
//! | `Nats-Msg-Id` | the message's deduplication id: the event's id, unless it is a replay |
//! | `Nats-Expected-Stream` | the option `stream` |
//! | `content-type` | the media type of the body |
//! | `postrider-…`, `ce-…` | see `header_names.rs` |
//! | `postrider-key` | the key, beside other headers of this prefix |
//!
//! Attributes of CloudEvents are percent-encoded, as their NATS binding (1.0.3) wants it.

use std::borrow::Cow;
use std::fmt::Write as _;

use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::sink::{Attributes, FailureKind, Message, SinkError};
use crate::sinks::header_names::{CONTENT_TYPE, CloudEventsPrefix, attributes, headers};

/// What the headers that steer a stream begin with. An event cannot set them.
const OF_STREAMS: &str = "nats-";
/// Where clients and servers expect answers.
const OF_ANSWERS: [&str; 3] = ["_GR_", "_INBOX", "_R_"];
/// `NATS/1.0`, an empty line, and the ends of both.
const HEADERS_BYTES_BASE: usize = 12;
/// A colon, a space and the end of a line.
const HEADER_BYTES_BASE: usize = 4;
/// The most bytes of headers that a stream takes.
const HEADERS_BYTES_MAX: usize = u16::MAX as usize;
/// A server hangs up on a line of more than 4096 bytes, which holds the inbox and sizes, too.
const SUBJECT_BYTES_MAX: usize = 3000;

/// The headers of a message; fails if it can never be accepted.
pub(super) fn encode(
    message: &Message,
    stream: Option<&str>,
    bytes_max: usize,
) -> Result<HeaderMap, SinkError> {
    let mut encoded = Encoded { headers: HeaderMap::new(), bytes: HEADERS_BYTES_BASE };
    for (name, value) in headers(message, CloudEventsPrefix::Hyphen) {
        if !begins_with(name, OF_STREAMS) {
            let header = HeaderName::try_from(name).map_err(|_| {
                rejected(format!("`{name}` cannot be the name of a header in NATS; rename it"))
            })?;
            encoded.add(header, name, value.into())?;
        }
    }
    let is_cloud_event = matches!(message.attributes, Attributes::CloudEvents { .. });
    for (name, value) in attributes(message, CloudEventsPrefix::Hyphen) {
        let value = if is_cloud_event { percent_encoded(value) } else { value };
        encoded.add_static(name, value)?;
    }
    if is_cloud_event {
        let content_type = percent_encoded(message.content_type.as_str().into());
        encoded.add_static("ce-datacontenttype", content_type)?;
    }
    if message.attributes == Attributes::Plain {
        encoded.add_static("postrider-key", message.key.as_str().into())?;
    }
    encoded.add_static(CONTENT_TYPE, message.content_type.as_str().into())?;
    let id = message.deduplication_id.to_string();
    encoded.add(NATS_MESSAGE_ID, "Nats-Msg-Id", id.into())?;
    if let Some(stream) = stream {
        encoded.add(NATS_EXPECTED_STREAM, "Nats-Expected-Stream", stream.into())?;
    }
    encoded.finish(message.body.len(), bytes_max)
}

struct Encoded {
    headers: HeaderMap,
    bytes: usize,
}

impl Encoded {
    fn add_static(&mut self, name: &'static str, value: Cow<'_, str>) -> Result<(), SinkError> {
        self.add(HeaderName::from_static(name), name, value)
    }

    fn add(
        &mut self,
        header: HeaderName,
        name: &str,
        value: Cow<'_, str>,
    ) -> Result<(), SinkError> {
        // The client panics for what it cannot send.
        if value.contains(['\r', '\n']) {
            let message = format!("the value of `{name}` has a line break, which NATS cannot send");
            return Err(rejected(message));
        }
        self.bytes += name.len() + value.len() + HEADER_BYTES_BASE;
        self.headers.insert(header, HeaderValue::from(value.into_owned()));
        Ok(())
    }

    fn finish(self, body_bytes: usize, bytes_max: usize) -> Result<HeaderMap, SinkError> {
        let bytes = self.bytes + body_bytes;
        if bytes > bytes_max {
            return Err(rejected(format!(
                "the message has {bytes} bytes with its headers, the server takes {bytes_max} \
                 (max_payload)"
            )));
        }
        if self.bytes > HEADERS_BYTES_MAX {
            return Err(rejected(format!(
                "the headers have {} bytes, a stream takes {HEADERS_BYTES_MAX}",
                self.bytes
            )));
        }
        Ok(self.headers)
    }
}

/// What is wrong with a text as a subject to publish to, after `it`.
pub(super) fn subject_problem(subject: &str) -> Option<&'static str> {
    let has_token = |token: &str| subject.split('.').any(|one| one == token);
    if subject.is_empty() {
        Some("is empty")
    } else if subject.len() > SUBJECT_BYTES_MAX {
        Some("is longer than 3000 bytes")
    } else if subject.starts_with('$') {
        Some("begins with $, which belongs to the server")
    } else if subject.contains(|char: char| char.is_whitespace() || char.is_control()) {
        Some("has a space or a control character")
    } else if has_token("") {
        Some("has nothing before, after or between dots")
    } else if has_token("*") || has_token(">") {
        Some("has a wildcard (* or >)")
    } else {
        None
    }
}

/// What is wrong with a text as a subject of events, after `it`. Answers arrive at subjects that
/// begin with `inbox_prefix`.
pub(super) fn topic_problem(subject: &str, inbox_prefix: &str) -> Option<&'static str> {
    let is_below = |prefix: &str| {
        subject.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let is_taken = OF_ANSWERS.iter().any(|prefix| is_below(prefix)) || is_below(inbox_prefix);
    subject_problem(subject)
        .or_else(|| is_taken.then_some("is where answers arrive, which events could forge"))
}

/// Fails if a topic cannot be a subject of events.
pub(super) fn check_subject(subject: &str, inbox_prefix: &str) -> Result<(), SinkError> {
    match topic_problem(subject, inbox_prefix) {
        None => Ok(()),
        Some(problem) => {
            let shown: String = subject.chars().take(80).collect();
            let message = format!("the topic {shown:?} is no subject of NATS: it {problem}");
            Err(rejected(message))
        }
    }
}

fn begins_with(name: &str, start: &str) -> bool {
    name.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

/// Space, `"`, `%` and all that is not printable ASCII become `%XY`.
fn percent_encoded(text: Cow<'_, str>) -> Cow<'_, str> {
    let stays = |byte: &u8| byte.is_ascii_graphic() && !b"\"%".contains(byte);
    if text.as_bytes().iter().all(stays) {
        return text;
    }
    let mut encoded = String::with_capacity(text.len() + 16);
    for byte in text.bytes() {
        if stays(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a text can be written to");
        }
    }
    encoded.into()
}

fn rejected(message: String) -> SinkError {
    SinkError::new(FailureKind::Rejected, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use postrider::{Event, EventBuilder};

    use super::*;
    use crate::formats::{Encoding, Format};

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn event() -> EventBuilder {
        Event::builder("Order", "Z\u{fc}rich 100%", "OrderPaid")
            .id(ID.parse().unwrap())
            .occurred_at(std::time::SystemTime::UNIX_EPOCH)
            .payload("{\"a\":1}", "application/json")
    }

    fn message(event: EventBuilder, format: Format) -> Message {
        let encoding = Encoding { format, ..Encoding::default() };
        encoding.encode(Arc::new(event.build().unwrap())).unwrap()
    }

    fn encoded(event: EventBuilder, format: Format) -> Result<Vec<String>, SinkError> {
        let headers = encode(&message(event, format), Some("S"), 10_000)?;
        let text =
            |(name, values): (&HeaderName, &Vec<HeaderValue>)| format!("{name}: {}", values[0]);
        let mut texts: Vec<_> = headers.iter().map(text).collect();
        texts.sort();
        Ok(texts)
    }

    #[test]
    fn the_payload_format_has_its_headers() {
        let expected = [
            "Nats-Expected-Stream: S",
            &format!("Nats-Msg-Id: {ID}"),
            "content-type: application/json",
            "postrider-aggregate-id: Z\u{fc}rich 100%",
            "postrider-aggregate-type: Order",
            "postrider-event-type: OrderPaid",
            "postrider-event-version: 1",
            &format!("postrider-id: {ID}"),
            "postrider-key: Z\u{fc}rich 100%",
            "postrider-occurred-at: 1970-01-01T00:00:00Z",
            "tenant: \u{fc}",
        ];
        let tenant = event().header("tenant", "\u{fc}");
        assert_eq!(encoded(tenant, Format::Payload).unwrap(), expected);
    }

    #[test]
    fn the_cloudevents_formats_have_theirs() {
        let binary = encoded(event(), Format::CloudEvents).unwrap();
        for expected in [
            "ce-datacontenttype: application/json",
            "ce-partitionkey: Z%C3%BCrich%20100%25",
            "ce-specversion: 1.0",
            "ce-subject: Z%C3%BCrich%20100%25",
            "ce-type: OrderPaid",
            "content-type: application/json",
        ] {
            assert!(binary.iter().any(|header| header == expected), "{expected} in {binary:#?}");
        }
        assert!(!binary.concat().contains("postrider-"), "{binary:#?}");
        let structured = encoded(event(), Format::CloudEventsStructured).unwrap();
        assert_eq!(structured.len(), 3, "{structured:#?}");
        assert!(structured.contains(&"content-type: application/cloudevents+json".to_owned()));
    }

    #[test]
    fn an_event_cannot_steer_the_stream() {
        let steering = ["Nats-Rollup", "nats-msg-id", "NATS-TTL", "Nats-Expected-Last-Sequence"];
        let event = steering.iter().fold(event(), |event, name| event.header(*name, "canary"));
        let headers = encoded(event.header("nat", "kept"), Format::Payload).unwrap();
        assert!(!headers.concat().contains("canary"), "{headers:#?}");
        assert!(headers.contains(&"nat: kept".to_owned()));
    }

    #[test]
    fn what_nats_cannot_send_is_rejected() {
        let error = encoded(event().header("a b", "canary"), Format::Payload).unwrap_err();
        assert_eq!(error.kind, FailureKind::Rejected);
        assert!(error.message.starts_with("`a b` cannot be the name of a header"), "{error}");
        // An event cannot hold such a value, a template can.
        let mut broken = message(event(), Format::Payload);
        broken.headers.push(("x".to_owned(), "canary\r\nNats-Rollup: all".to_owned()));
        let error = encode(&broken, None, 10_000).unwrap_err();
        assert_eq!(error.kind, FailureKind::Rejected);
        assert!(error.message.starts_with("the value of `x` has a line break"), "{error}");
        assert!(!error.message.contains("canary"), "{error}");
    }

    #[test]
    fn the_size_is_that_of_the_wire() {
        let message = message(event(), Format::Payload);
        let headers = encode(&message, None, 10_000).unwrap();
        let line = |(name, values): (&HeaderName, &Vec<HeaderValue>)| {
            format!("{name}: {}\r\n", values[0]).len()
        };
        let bytes =
            "NATS/1.0\r\n\r\n".len() + headers.iter().map(line).sum::<usize>() + message.body.len();
        assert!(encode(&message, None, bytes).is_ok());
        let error = encode(&message, None, bytes - 1).unwrap_err();
        let expected = format!("the message has {bytes} bytes with its headers, the server takes");
        assert!(error.message.starts_with(&expected), "{error}");
    }

    #[test]
    fn subjects_have_rules() {
        for subject in ["a", "a.b", "outbox.event.Order", "a*.b>", "\u{fc}.b-c_d", "a.$b"] {
            assert_eq!(subject_problem(subject), None, "{subject}");
        }
        for (subject, problem) in [
            ("", "is empty"),
            ("$JS.API.STREAM.DELETE.S", "begins with $"),
            ("a b", "has a space"),
            ("a\tb", "has a space or a control character"),
            ("a\r\nPUB", "has a space or a control character"),
            ("a\u{7f}", "control character"),
            (".a", "has nothing before"),
            ("a.", "has nothing before, after"),
            ("a..b", "between dots"),
            ("a.*", "wildcard"),
            (">", "wildcard"),
            (&"x".repeat(3001), "longer than 3000 bytes"),
        ] {
            let found = subject_problem(subject).unwrap_or_default();
            assert!(found.contains(problem), "{subject:?}: {found}");
            let refused = check_subject(subject, "_INBOX").unwrap_err();
            assert_eq!(refused.kind, FailureKind::Rejected);
        }
    }

    #[test]
    fn where_answers_arrive_is_not_for_events() {
        for subject in ["_INBOX", "_INBOX.x", "_R_.x", "_GR_.a.b", "relay.inbox.x"] {
            let refused = check_subject(subject, "relay.inbox").unwrap_err();
            assert_eq!(refused.kind, FailureKind::Rejected);
            assert!(refused.message.contains("is where answers arrive"), "{refused}");
        }
        for subject in ["_INBOXES.x", "a._INBOX", "relay.inboxes", "relay"] {
            assert_eq!(check_subject(subject, "relay.inbox"), Ok(()), "{subject}");
        }
    }
}
