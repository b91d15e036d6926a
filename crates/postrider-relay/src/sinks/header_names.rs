//! What a broker's message carries beside its body, by the names that its protocol uses.
//!
//! | from | name |
//! |---|---|
//! | format `payload` | `postrider-id`, `postrider-event-type` … |
//! | format `cloudevents` | the protocol's prefix and the attribute: `ce_type`, `ce-type` … |
//! | format `debezium` | `id`, `eventType` |
//! | the event's headers and the configured ones | as they are |
//!
//! A header of an event must not take the place of one that the relay or the protocol sets. Such
//! a header is left out rather than refused: it is no mistake for other sinks, which carry it.

use std::borrow::Cow;

use crate::formats::REPLAY_HEADER;
use crate::sink::{Attributes, Message};

/// The media type of the body.
pub(super) const CONTENT_TYPE: &str = "content-type";
/// What the names of the relay's own headers begin with.
const OWN: &str = "postrider-";

/// The facts of the format `payload`, in the order in which it has them.
const PLAIN: [&str; 6] = [
    "postrider-id",
    "postrider-aggregate-type",
    "postrider-aggregate-id",
    "postrider-event-type",
    "postrider-event-version",
    "postrider-occurred-at",
];

/// How a protocol names the attributes of CloudEvents in the binary mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloudEventsPrefix {
    /// `ce_type`: Kafka.
    #[cfg(feature = "kafka")]
    Underscore,
    /// `ce-type`: NATS, and what has no binding of its own.
    #[cfg(any(feature = "nats", feature = "redis"))]
    Hyphen,
    /// `cloudEvents:type`: AMQP.
    #[cfg(feature = "rabbitmq")]
    Colon,
}

macro_rules! cloudevents_names {
    ($prefix:literal, $name:expr) => {
        match $name {
            "specversion" => concat!($prefix, "specversion"),
            "id" => concat!($prefix, "id"),
            "source" => concat!($prefix, "source"),
            "type" => concat!($prefix, "type"),
            "subject" => concat!($prefix, "subject"),
            "time" => concat!($prefix, "time"),
            "aggregatetype" => concat!($prefix, "aggregatetype"),
            "eventversion" => concat!($prefix, "eventversion"),
            "partitionkey" => concat!($prefix, "partitionkey"),
            other => other,
        }
    };
}

impl CloudEventsPrefix {
    fn as_str(self) -> &'static str {
        match self {
            #[cfg(feature = "kafka")]
            Self::Underscore => "ce_",
            #[cfg(any(feature = "nats", feature = "redis"))]
            Self::Hyphen => "ce-",
            #[cfg(feature = "rabbitmq")]
            Self::Colon => "cloudEvents:",
        }
    }

    /// The name of an attribute, without an allocation.
    fn name(self, attribute: &'static str) -> &'static str {
        match self {
            #[cfg(feature = "kafka")]
            Self::Underscore => cloudevents_names!("ce_", attribute),
            #[cfg(any(feature = "nats", feature = "redis"))]
            Self::Hyphen => cloudevents_names!("ce-", attribute),
            #[cfg(feature = "rabbitmq")]
            Self::Colon => cloudevents_names!("cloudEvents:", attribute),
        }
    }
}

/// The facts about the event that its format sends beside the body, by the names that the
/// protocol uses.
pub(super) fn attributes(
    message: &Message,
    prefix: CloudEventsPrefix,
) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let name = move |index: usize, attribute| match &message.attributes {
        Attributes::CloudEvents { .. } => prefix.name(attribute),
        Attributes::Plain => PLAIN[index],
        Attributes::Debezium | Attributes::None => attribute,
    };
    let values = message.attribute_values().into_iter().enumerate();
    values.map(move |(index, (attribute, value))| (name(index, attribute), value))
}

/// The event's headers and the configured ones, without those whose names are not theirs to give.
pub(super) fn headers(
    message: &Message,
    prefix: CloudEventsPrefix,
) -> impl Iterator<Item = (&str, &str)> {
    let is_free = move |name: &str| {
        let begins_with = |start: &str| {
            name.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
        };
        (!begins_with(OWN) || name == REPLAY_HEADER)
            && !begins_with(prefix.as_str())
            && !name.eq_ignore_ascii_case(CONTENT_TYPE)
            && !message.reserves(name)
    };
    let headers = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    headers.filter(move |(name, _)| is_free(name))
}

#[cfg(feature = "kafka")]
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use postrider::Event;

    use super::*;
    use crate::formats::{Encoding, Format};

    fn message(format: Format) -> Message {
        let event = Event::builder("Order", "42", "OrderPaid")
            .header("tenant", "acme")
            .header("Postrider-Id", "canary")
            .header("CE_type", "canary")
            .header("Content-Type", "canary")
            .build()
            .unwrap();
        Encoding { format, ..Encoding::default() }.encode(Arc::new(event)).unwrap()
    }

    #[test]
    fn every_attribute_has_the_prefix_of_its_convention() {
        for (format, prefix, count) in [
            (Format::Payload, "postrider-", 6),
            (Format::CloudEvents, "ce_", 9),
            (Format::CloudEventsStructured, "", 0),
            (Format::Debezium, "", 2),
        ] {
            let message = message(format);
            let names: Vec<_> =
                attributes(&message, CloudEventsPrefix::Underscore).map(|(name, _)| name).collect();
            assert_eq!(names.len(), count, "{names:?}");
            assert!(names.iter().all(|name| name.starts_with(prefix)), "{names:?}");
            assert!(names.iter().all(|name| !name[prefix.len()..].contains('_')), "{names:?}");
        }
    }

    #[test]
    fn the_names_of_the_payload_format_are_those_of_its_facts() {
        let message = message(Format::Payload);
        let facts = message.attribute_values().into_iter();
        let names: Vec<_> =
            facts.map(|(name, _)| format!("{OWN}{name}").replace('_', "-")).collect();
        assert_eq!(names, PLAIN);
    }

    #[test]
    fn names_that_are_the_relays_are_left_out() {
        let message = message(Format::Payload);
        let left: Vec<_> = headers(&message, CloudEventsPrefix::Underscore).collect();
        assert_eq!(left, [("tenant", "acme")]);
    }

    #[test]
    fn the_debezium_format_keeps_its_names_from_the_events_headers() {
        let event = Event::builder("Order", "42", "OrderPaid")
            .header("eventtype", "7")
            .header("id", "7")
            .header("tenant", "acme")
            .build()
            .unwrap();
        let event = Arc::new(event);
        for format in Format::ALL {
            let message = Encoding { format, ..Encoding::default() }.encode(event.clone()).unwrap();
            let left = headers(&message, CloudEventsPrefix::Underscore).count();
            assert_eq!(left, if format == Format::Debezium { 1 } else { 3 }, "{format:?}");
        }
        let message = Encoding { format: Format::Debezium, ..Encoding::default() }.encode(event);
        let message = message.unwrap();
        let names: Vec<_> =
            attributes(&message, CloudEventsPrefix::Underscore).map(|(name, _)| name).collect();
        assert_eq!(names, ["id", "eventType"]);
    }
}
