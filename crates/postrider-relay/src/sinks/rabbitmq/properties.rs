//! What a message of AMQP carries beside its body, and what it cannot carry.
//!
//! | property | value |
//! |---|---|
//! | `message_id` | the event's id |
//! | `type` | the event's type |
//! | `timestamp` | when the event happened, in seconds |
//! | `content_type` | the media type of the body |
//! | `delivery_mode` | persistent |
//! | `headers` | the facts about the event, and its headers, as texts |

use std::time::SystemTime;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use super::options::SHORT_BYTES_MAX;
use crate::sink::{FailureKind, Message, SinkError};
use crate::sinks::PipelineFacts;
use crate::sinks::header_names::{CloudEventsPrefix, attributes, headers};

/// The topic that means the default exchange, as RabbitMQ's own tools call it.
const DEFAULT_EXCHANGE: &str = "amq.default";
/// What the names of the server's own exchanges begin with.
const OF_SERVER: &str = "amq.";
/// Those of them that every virtual host has for everybody.
const PREDECLARED: [&str; 5] =
    ["amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic"];
/// Headers that name more routing keys. They have to be lists, and all headers here are texts, for
/// which the server closes the channel.
const COPIES: [&str; 2] = ["BCC", "CC"];
/// Headers that the server or one of its plugins acts upon, in their spelling: delays, what
/// dead-lettering, federation and shovels count hops by, deduplication.
const STEERING: [&str; 9] = [
    "x-acquired-count",
    "x-cache-ttl",
    "x-death",
    "x-deduplication-header",
    "x-delay",
    "x-delivery-count",
    "x-exchange",
    "x-received-from",
    "x-routing-key",
];
/// What the names of more of them begin with.
const STEERING_STARTS: [&str; 6] =
    ["x-first-death-", "x-last-death-", "x-mqtt-", "x-opt-", "x-shovelled", "x-stream-offset"];
const PERSISTENT: u8 = 2;
const PREFIX: CloudEventsPrefix = CloudEventsPrefix::Colon;
/// The type and the lengths of a header.
const HEADER_BYTES: usize = 6;
/// All properties but the headers, at their longest.
const PROPERTIES_BYTES: usize = 1024;

/// The name of the exchange that a topic means.
pub(super) fn exchange(topic: &str) -> &str {
    if topic == DEFAULT_EXCHANGE { "" } else { topic }
}

/// Why an event cannot name this exchange, after `the exchange …`. The one that the configuration
/// names for all events is the operator's choice.
fn reserved(topic: &str, configured: Option<&str>) -> Option<&'static str> {
    match topic {
        _ if configured == Some(topic) => None,
        "" | DEFAULT_EXCHANGE => Some(
            "leads to every queue by its name, so an event cannot choose it; change the event's \
             topic, or set topic = \"amq.default\" for all events",
        ),
        _ if PREDECLARED.contains(&topic) => None,
        _ if topic.starts_with(OF_SERVER) => {
            Some("belongs to RabbitMQ; change the event's topic, or the template `topic`")
        }
        _ => None,
    }
}

/// Why a message can never be sent, if that is so.
pub(super) fn refusal(
    message: &Message,
    event_bytes_max: usize,
    pipeline: &PipelineFacts,
) -> Option<SinkError> {
    let rejected = |message: String| Some(SinkError::new(FailureKind::Rejected, message));
    if let Some(why) = reserved(&message.topic, pipeline.topic.as_deref()) {
        return rejected(format!("the exchange `{}` {why}", message.topic));
    }
    let bytes = message.body.len();
    if bytes > event_bytes_max {
        return rejected(format!(
            "the event has {bytes} bytes, and at most {event_bytes_max} are sent; if the server \
             takes more (its max_message_size), raise event_bytes_max"
        ));
    }
    for (what, text) in [
        ("the name of the exchange", &message.topic),
        ("the routing key", &message.key),
        ("the media type", &message.content_type),
    ] {
        let bytes = text.len();
        if bytes > SHORT_BYTES_MAX {
            return rejected(format!("{what} has {bytes} bytes, AMQP takes at most 255"));
        }
    }
    let long = carried(message, pipeline).find(|(name, _)| name.len() > SHORT_BYTES_MAX)?;
    rejected(format!("the name of a header has {} bytes, AMQP takes at most 255", long.0.len()))
}

/// Why a message does not fit into the frames of a connection, if that is so: all its properties
/// and headers must go into one.
pub(super) fn oversize(properties: &BasicProperties, frame_bytes_max: usize) -> Option<SinkError> {
    let table = properties.headers().as_ref().map(FieldTable::inner);
    let of_header = |(name, value): (&ShortString, &AMQPValue)| {
        let value = match value {
            AMQPValue::LongString(text) => text.as_bytes().len(),
            _ => 0,
        };
        name.as_str().len() + value + HEADER_BYTES
    };
    let bytes = PROPERTIES_BYTES + table.into_iter().flatten().map(of_header).sum::<usize>();
    (bytes > frame_bytes_max).then(|| {
        let message = format!(
            "the headers have {bytes} bytes, and the server takes at most {frame_bytes_max} (its \
             frame_max)"
        );
        SinkError::new(FailureKind::Rejected, message)
    })
}

/// The headers that are carried: an event does not steer the server, the configuration may.
fn carried<'m>(
    message: &'m Message,
    pipeline: &'m PipelineFacts,
) -> impl Iterator<Item = (&'m str, &'m str)> {
    let steers = |name: &str| {
        STEERING.contains(&name) || STEERING_STARTS.iter().any(|start| name.starts_with(start))
    };
    let is_configured = |name: &str| pipeline.header_names.iter().any(|own| own == name);
    headers(message, PREFIX)
        .filter(move |(name, _)| !COPIES.contains(name) && (!steers(name) || is_configured(name)))
}

/// Everything but the body. The message must not be [refused](refusal).
pub(super) fn properties(message: &Message, pipeline: &PipelineFacts) -> BasicProperties {
    let mut table = FieldTable::default();
    let text = |bytes: Vec<u8>| AMQPValue::LongString(LongString::from(bytes));
    for (name, value) in carried(message, pipeline) {
        table.insert(name.into(), text(value.into()));
    }
    for (name, value) in attributes(message, PREFIX) {
        table.insert(name.into(), text(value.into_owned().into()));
    }
    let event = &message.event;
    let properties = BasicProperties::default()
        .with_content_type(message.content_type.as_str().into())
        .with_delivery_mode(PERSISTENT)
        .with_headers(table)
        .with_message_id(event.id().to_string().into())
        .with_type(event.event_type().into());
    match event.occurred_at().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(time) => properties.with_timestamp(time.as_secs()),
        // AMQP has no time before 1970.
        Err(_) => properties,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use postrider::{Event, EventBuilder};

    use super::*;
    use crate::formats::{Encoding, Format};

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn event() -> EventBuilder {
        Event::builder("Order", "42", "OrderPaid")
            .id(ID.parse().unwrap())
            .occurred_at(SystemTime::UNIX_EPOCH + Duration::from_millis(7_900))
            .payload("{}", "application/json")
    }

    fn message(event: EventBuilder, format: Format) -> Message {
        let encoding = Encoding { format, ..Encoding::default() };
        encoding.encode(Arc::new(event.build().unwrap())).unwrap()
    }

    fn sent(message: &Message) -> BasicProperties {
        properties(message, &PipelineFacts::default())
    }

    fn texts(properties: &BasicProperties) -> Vec<String> {
        let table = properties.headers().as_ref().unwrap().inner();
        let text = |(name, value): (&ShortString, &AMQPValue)| match value {
            AMQPValue::LongString(value) => format!("{name}: {value}"),
            other => panic!("{other:?}"),
        };
        table.iter().map(text).collect()
    }

    #[test]
    fn the_payload_format_has_its_properties() {
        let properties = sent(&message(event().header("tenant", "ü"), Format::Payload));
        assert_eq!(properties.delivery_mode(), &Some(2));
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), ID);
        assert_eq!(properties.kind().as_ref().unwrap().as_str(), "OrderPaid");
        assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
        assert_eq!(properties.timestamp(), &Some(7));
        let expected = [
            "postrider-aggregate-id: 42",
            "postrider-aggregate-type: Order",
            "postrider-event-type: OrderPaid",
            "postrider-event-version: 1",
            &format!("postrider-id: {ID}"),
            "postrider-occurred-at: 1970-01-01T00:00:07.9Z",
            "tenant: ü",
        ];
        assert_eq!(texts(&properties), expected);
    }

    #[test]
    fn cloudevents_have_the_prefix_of_their_binding() {
        let binary = texts(&sent(&message(event(), Format::CloudEvents)));
        assert!(binary.contains(&"cloudEvents:type: OrderPaid".to_owned()), "{binary:?}");
        assert!(binary.iter().all(|text| text.starts_with("cloudEvents:")), "{binary:?}");
        let structured = sent(&message(event(), Format::CloudEventsStructured));
        assert!(texts(&structured).is_empty());
        let media_type = structured.content_type().as_ref().unwrap().as_str();
        assert_eq!(media_type, "application/cloudevents+json");
    }

    #[test]
    fn a_time_before_1970_is_left_out() {
        let early = event().occurred_at(SystemTime::UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(sent(&message(early, Format::Payload)).timestamp(), &None);
    }

    #[test]
    fn what_amqp_cannot_carry_is_refused_with_its_size() {
        let refusal = |message: &Message| {
            refusal(message, 10, &PipelineFacts::default()).map(|error| error.message)
        };
        let fine = message(event(), Format::Payload);
        assert_eq!(refusal(&fine), None);
        let long = "x".repeat(256);
        let of = |change: fn(&mut Message, String)| {
            let mut message = fine.clone();
            change(&mut message, long.clone());
            refusal(&message).unwrap()
        };
        assert!(of(|message, long| message.body = long.into()).contains("has 256 bytes, and at"));
        for refused in [
            of(|message, long| message.topic = long),
            of(|message, long| message.key = long),
            of(|message, long| message.content_type = long),
            of(|message, long| message.headers = vec![(long, String::new())]),
        ] {
            assert!(refused.contains("has 256 bytes, AMQP takes at most 255"), "{refused}");
        }
    }

    #[test]
    fn headers_must_fit_into_a_frame() {
        let large = message(event().header("a", "v".repeat(8000)), Format::Payload);
        let properties = sent(&large);
        assert!(oversize(&properties, 131_072).is_none());
        let refused = oversize(&properties, 8192).unwrap();
        assert_eq!(refused.kind, FailureKind::Rejected);
        assert!(refused.message.contains("the server takes at most 8192"), "{refused}");
    }

    #[test]
    fn exchanges_of_the_server_are_not_for_events() {
        for topic in ["", "amq.default", "amq.gen-1", "amq.rabbitmq.trace"] {
            assert!(reserved(topic, None).is_some(), "{topic}");
            assert!(reserved(topic, Some("orders")).is_some(), "{topic}");
            assert_eq!(reserved(topic, Some(topic)), None, "the operator has said so");
        }
        for topic in ["orders", "amq.topic", "amq.match", "amqp.orders"] {
            assert_eq!(reserved(topic, None), None, "{topic}");
        }
    }

    #[test]
    fn headers_that_the_server_acts_upon_are_left_out() {
        let names = ["BCC", "CC", "x-death", "x-first-death-queue", "x-opt-a", "x-stream-offset"];
        let event = names.iter().fold(event(), |event, name| event.header(*name, "canary"));
        let event = event.header("cc", "kept").header("x-tenant", "kept");
        let message = message(event, Format::Payload);
        let carried = texts(&sent(&message));
        assert!(!carried.concat().contains("canary"), "{carried:?}");
        assert!(carried.contains(&"cc: kept".to_owned()), "{carried:?}");
        assert!(carried.contains(&"x-tenant: kept".to_owned()), "{carried:?}");
        let header_names = ["CC", "x-opt-a"].map(str::to_owned).into();
        let pipeline = PipelineFacts { header_names, ..PipelineFacts::default() };
        let carried = texts(&properties(&message, &pipeline)).concat();
        assert_eq!(carried.matches("canary").count(), 1, "{carried}");
        assert!(carried.contains("x-opt-a: canary"), "{carried}");
    }

    #[test]
    fn the_default_exchange_has_a_name() {
        assert_eq!((exchange("amq.default"), exchange("amq.topic")), ("", "amq.topic"));
    }
}
