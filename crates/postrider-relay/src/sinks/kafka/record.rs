//! A message as a record of Kafka.

use rdkafka::message::{Header, OwnedHeaders};

use crate::routing::Template;
use crate::sink::{FailureKind, Message, SinkError};
use crate::sinks::header_names::{self, CONTENT_TYPE, CloudEventsPrefix};

/// What a batch takes besides its records.
const BATCH_OVERHEAD: usize = 61;
/// What a record takes besides its key, value and headers, at most: attributes, the differences
/// of time and offset, and five lengths.
const RECORD_OVERHEAD: usize = 1 + 10 + 5 + 5 * 5;
/// What the lengths of a header's name and value take, at most.
const HEADER_OVERHEAD: usize = 5 + 5;
/// Longest name of a topic.
const TOPIC_BYTES_MAX: usize = 249;

/// What the names of Kafka's own topics begin with.
const INTERNAL: &str = "__";

/// A record to be sent.
pub(super) struct Record<'a> {
    pub(super) topic: &'a str,
    pub(super) key: &'a str,
    /// `None` is a tombstone.
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: OwnedHeaders,
    /// `None` is the key's.
    pub(super) partition: Option<i32>,
    header_bytes: usize,
}

impl<'a> Record<'a> {
    /// The record for a message. Fails, as rejected, if the event names no partition where it
    /// should.
    pub(super) fn of(
        message: &'a Message,
        partition: Option<&Template>,
    ) -> Result<Self, SinkError> {
        const PREFIX: CloudEventsPrefix = CloudEventsPrefix::Underscore;
        let mut headers = OwnedHeaders::new_with_capacity(message.headers.len() + 10);
        let mut header_bytes = 0;
        let mut add = |headers: OwnedHeaders, key: &str, value: &str| {
            header_bytes += HEADER_OVERHEAD + key.len() + value.len();
            headers.insert(Header { key, value: Some(value) })
        };
        for (name, value) in header_names::attributes(message, PREFIX) {
            headers = add(headers, name, &value);
        }
        headers = add(headers, CONTENT_TYPE, &message.content_type);
        for (name, value) in header_names::headers(message, PREFIX) {
            headers = add(headers, name, value);
        }
        let partition = partition.map(|template| partition_of(message, template)).transpose()?;
        Ok(Self {
            topic: &message.topic,
            key: &message.key,
            value: (!message.body.is_empty()).then_some(&message.body[..]),
            headers,
            partition,
            header_bytes,
        })
    }

    /// Whether a message surely becomes a smaller record than that. It is a quick look, and no is
    /// not an answer.
    pub(super) fn is_surely_below(message: &Message, bytes: usize) -> bool {
        // Names and lengths, besides what comes from the event, each of which comes twice at most.
        const REST: usize = 1024;
        let of_headers =
            |(name, value): &(String, String)| HEADER_OVERHEAD + name.len() + value.len();
        let headers: usize = message.headers.iter().map(of_headers).sum();
        let event = &message.event;
        let texts = message.key.len()
            + message.content_type.len()
            + event.aggregate_type().len()
            + event.aggregate_id().len()
            + event.event_type().len();
        REST + message.body.len() + headers + 2 * texts < bytes
    }

    /// How large a batch of this record alone is, at most and before compression: what brokers
    /// compare to `max.message.bytes`.
    pub(super) fn batch_bytes(&self) -> usize {
        let value = self.value.map_or(0, <[u8]>::len);
        BATCH_OVERHEAD + RECORD_OVERHEAD + self.key.len() + value + self.header_bytes
    }
}

fn partition_of(message: &Message, template: &Template) -> Result<i32, SinkError> {
    let rejected = |why: String| {
        SinkError::new(FailureKind::Rejected, format!("cannot work out the partition: {why}"))
    };
    let text = template.render(&message.event).map_err(|missing| rejected(missing.to_string()))?;
    let partition = text.parse().ok().filter(|partition: &i32| *partition >= 0);
    partition.ok_or_else(|| rejected("it is not a whole number from 0".to_owned()))
}

/// Why no event can go to a topic of this name, if none can. Relays note their progress in
/// `progress_topics`: an event there could make one forget what it has published.
pub(super) fn topic_problem(topic: &str, progress_topics: &[String]) -> Option<SinkError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let why = if topic.is_empty() || topic == "." || topic == ".." {
        "no topic of Kafka can be called so"
    } else if topic.len() > TOPIC_BYTES_MAX {
        "the name of a topic has at most 249 characters"
    } else if !topic.bytes().all(is_allowed) {
        "the name of a topic has only letters, digits, `.`, `_` and `-`"
    } else if topic.starts_with(INTERNAL) {
        "names that begin with `__` are for Kafka's own topics"
    } else if progress_topics.iter().any(|progress| progress == topic) {
        "relays note there what they have published"
    } else {
        return None;
    };
    let message = format!(
        "cannot send to the topic `{topic}`: {why}; change the event's topic, or the template `topic`"
    );
    Some(SinkError::new(FailureKind::Rejected, message))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use postrider::Event;
    use rdkafka::message::Headers as _;

    use super::*;
    use crate::formats::{Encoding, Format};

    fn message(format: Format, payload: &str) -> Message {
        let event = Event::builder("Order", "42", "OrderPaid")
            .payload(payload.to_owned(), "text/plain")
            .header("tenant", "acme")
            .header("traceparent", "00-1-2-01")
            .header("partition", "3")
            .build()
            .unwrap();
        Encoding { format, ..Encoding::default() }.encode(Arc::new(event)).unwrap()
    }

    fn shown(record: &Record<'_>) -> Vec<String> {
        let text = |header: Header<'_, &[u8]>| {
            format!("{}: {}", header.key, String::from_utf8_lossy(header.value.unwrap()))
        };
        record.headers.iter().map(text).collect()
    }

    #[test]
    fn a_record_has_everything_of_its_message() {
        let message = message(Format::Payload, "x");
        let record = Record::of(&message, None).unwrap();
        assert_eq!((record.topic, record.key), ("outbox.event.Order", "42"));
        assert_eq!((record.value, record.partition), (Some(&b"x"[..]), None));
        let headers = shown(&record);
        assert_eq!(headers.len(), 10, "{headers:#?}");
        for expected in [
            &format!("postrider-id: {}", message.event.id()),
            "postrider-event-type: OrderPaid",
            "postrider-event-version: 1",
            "content-type: text/plain",
            "traceparent: 00-1-2-01",
            "tenant: acme",
        ] {
            assert!(headers.iter().any(|header| header == expected), "{expected}: {headers:#?}");
        }
    }

    #[test]
    fn cloudevents_have_the_names_of_their_binding() {
        let binary = message(Format::CloudEvents, "x");
        let headers = shown(&Record::of(&binary, None).unwrap());
        assert!(headers.contains(&"ce_type: OrderPaid".to_owned()), "{headers:#?}");
        assert!(headers.contains(&"ce_specversion: 1.0".to_owned()), "{headers:#?}");
        let structured = message(Format::CloudEventsStructured, "x");
        let headers = shown(&Record::of(&structured, None).unwrap());
        assert!(headers.contains(&"content-type: application/cloudevents+json".to_owned()));
    }

    #[test]
    fn an_empty_body_is_a_tombstone() {
        let message = message(Format::Payload, "");
        assert_eq!(Record::of(&message, None).unwrap().value, None);
    }

    #[test]
    fn an_event_can_name_its_partition() {
        let message = message(Format::Payload, "x");
        let partition = |template: &str| {
            let template = Template::parse(template).unwrap();
            let record = Record::of(&message, Some(&template));
            record.map(|record| record.partition.unwrap()).map_err(|error| error.message)
        };
        assert_eq!(partition("{header.partition}"), Ok(3));
        assert_eq!(partition("7"), Ok(7));
        for template in ["-1", "{header.tenant}", "{header.gone}", "99999999999"] {
            let error = partition(template).unwrap_err();
            assert!(error.starts_with("cannot work out the partition: "), "{error}");
        }
    }

    #[test]
    fn what_no_topic_can_be_called_is_rejected() {
        for name in ["", ".", "..", "a b", "тема", "a/b", &"x".repeat(250)] {
            let problem = topic_problem(name, &[]).unwrap();
            assert_eq!(problem.kind, FailureKind::Rejected, "{name}");
        }
        let progress = ["postrider.progress".to_owned(), "p".to_owned()];
        for name in ["__consumer_offsets", "__transaction_state", "postrider.progress", "p"] {
            let problem = topic_problem(name, &progress).unwrap();
            assert_eq!(problem.kind, FailureKind::Rejected, "{name}");
        }
        for name in ["a", "outbox.event.Order", "A-b_c.1", &"x".repeat(249)] {
            assert!(topic_problem(name, &progress).is_none(), "{name}");
        }
    }
}
