//! What a message of AMQP says.
//!
//! | property | becomes |
//! |---|---|
//! | `message_id`, `type`, `content_type` | the headers `message-id`, `type`, `content-type` |
//! | `timestamp` | the header `postrider-occurred-at`, if no other says when it happened |
//! | `headers` | headers: texts as they are, numbers and truths as texts |

use bytes::Bytes;
use jiff::Timestamp;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable};
use uuid::Uuid;

use crate::subscription::Incoming;

/// What the relay calls the default exchange, as RabbitMQ's own tools do.
const DEFAULT_EXCHANGE: &str = "amq.default";
const OCCURRED_AT: &str = "postrider-occurred-at";
/// The headers that say when the event happened.
const TIMES: [&str; 3] = [OCCURRED_AT, "cloudEvents:time", "cloudEvents_time"];
/// What the names of the server's own headers begin with.
const OF_SERVER: &str = "x-";
const STREAM_OFFSET: &str = "x-stream-offset";

/// Whether it was read from a stream.
pub(super) fn is_of_a_stream(delivery: &Delivery) -> bool {
    table(delivery).any(|(name, _)| name == STREAM_OFFSET)
}

/// The message, as the decoder takes it.
pub(super) fn incoming(delivery: Delivery, queue: &str) -> Incoming {
    let properties = &delivery.properties;
    let mut headers: Vec<(String, String)> = table(&delivery)
        .filter_map(|(name, value)| Some((name.to_owned(), text_of(name, value)?)))
        .collect();
    for (name, value) in [
        ("content-type", properties.content_type()),
        ("message-id", properties.message_id()),
        ("type", properties.kind()),
    ] {
        headers.extend(value.as_ref().map(|value| (name.to_owned(), value.to_string())));
    }
    let has_time =
        headers.iter().any(|(name, _)| TIMES.iter().any(|known| name.eq_ignore_ascii_case(known)));
    let seconds = properties.timestamp().filter(|_| !has_time);
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds.try_into().ok()?).ok());
    headers.extend(time.map(|time| (OCCURRED_AT.to_owned(), time.to_string())));
    let exchange = delivery.exchange.as_str();
    let place = format!("{queue}#{}", identity(&delivery, &headers));
    Incoming {
        topic: if exchange.is_empty() { DEFAULT_EXCHANGE } else { exchange }.to_owned(),
        key: Some(delivery.routing_key.to_string()).filter(|key| !key.is_empty()),
        headers,
        body: Bytes::from(delivery.data),
        place,
        is_revived: false,
    }
}

fn table(delivery: &Delivery) -> impl Iterator<Item = (&str, &AMQPValue)> {
    let table = delivery.properties.headers().as_ref().map(FieldTable::inner);
    table.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

fn text_of(name: &str, value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        // What the server counts is different with each delivery.
        _ if name.starts_with(OF_SERVER) => None,
        AMQPValue::Boolean(truth) => Some(truth.to_string()),
        AMQPValue::ShortShortInt(number) => Some(number.to_string()),
        AMQPValue::ShortShortUInt(number) => Some(number.to_string()),
        AMQPValue::ShortInt(number) => Some(number.to_string()),
        AMQPValue::ShortUInt(number) => Some(number.to_string()),
        AMQPValue::LongInt(number) => Some(number.to_string()),
        AMQPValue::LongUInt(number) => Some(number.to_string()),
        AMQPValue::LongLongInt(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Which message of the queue it is. A queue has no places that stay, so one without an id of its
/// own is known by what it says.
fn identity(delivery: &Delivery, headers: &[(String, String)]) -> Uuid {
    let id = delivery.properties.message_id().as_ref();
    if let Some(id) = id.and_then(|id| id.as_str().parse().ok()) {
        return id;
    }
    let mut said = Vec::with_capacity(delivery.data.len() + 256);
    let own = headers.iter().filter(|(name, _)| !name.starts_with(OF_SERVER));
    let texts = own.flat_map(|(name, value)| [name.as_str(), value.as_str()]);
    for text in [delivery.exchange.as_str(), delivery.routing_key.as_str()].into_iter().chain(texts)
    {
        said.extend_from_slice(text.as_bytes());
        said.push(0);
    }
    said.extend_from_slice(&delivery.data);
    Uuid::new_v5(&Uuid::NAMESPACE_OID, &said)
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;

    use super::*;

    const ID: &str = "01980000-0000-7000-8000-000000000001";

    fn delivery(tag: u64, properties: BasicProperties, headers: &[(&str, AMQPValue)]) -> Delivery {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert((*name).into(), value.clone());
        }
        let mut delivery = Delivery::mock(tag, "orders".into(), "42".into(), false, b"{}".into());
        delivery.properties = properties.with_headers(table);
        delivery
    }

    fn text(value: &str) -> AMQPValue {
        AMQPValue::LongString(value.into())
    }

    #[test]
    fn properties_and_the_table_become_headers() {
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_message_id(ID.into())
            .with_type("OrderPaid".into())
            .with_timestamp(1_000_000_000);
        let sent = [
            ("tenant", text("café")),
            ("number", AMQPValue::LongInt(7)),
            ("x-delivery-count", AMQPValue::LongLongInt(2)),
        ];
        let mut found = incoming(delivery(1, properties, &sent), "billing");
        found.headers.sort();
        let headers: Vec<_> =
            found.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let expected = [
            ("content-type", "application/json"),
            ("message-id", ID),
            ("number", "7"),
            ("postrider-occurred-at", "2001-09-09T01:46:40Z"),
            ("tenant", "café"),
            ("type", "OrderPaid"),
        ];
        assert_eq!(headers, expected);
        assert_eq!((found.topic.as_str(), found.key.as_deref()), ("orders", Some("42")));
        assert_eq!(found.place, format!("billing#{ID}"));
    }

    #[test]
    fn the_events_own_time_is_better_than_the_property() {
        for name in ["postrider-occurred-at", "cloudEvents:time"] {
            let properties = BasicProperties::default().with_timestamp(1_000_000_000);
            let sent = [(name, text("2001-09-09T01:46:40.5Z"))];
            let found = incoming(delivery(1, properties, &sent), "billing");
            assert_eq!(found.headers.len(), 1, "{name}");
        }
    }

    #[test]
    fn a_message_without_an_id_has_the_same_place_with_each_delivery() {
        let place = |tag, count, value| {
            let sent = [("x-delivery-count", AMQPValue::LongLongInt(count)), ("a", text(value))];
            incoming(delivery(tag, BasicProperties::default(), &sent), "billing").place
        };
        assert_eq!(place(1, 0, "b"), place(2, 1, "b"));
        assert_ne!(place(1, 0, "b"), place(1, 0, "c"));
    }

    #[test]
    fn a_stream_is_known_by_its_offsets() {
        let sent = [("x-stream-offset", AMQPValue::LongLongInt(0))];
        assert!(is_of_a_stream(&delivery(1, BasicProperties::default(), &sent)));
        assert!(!is_of_a_stream(&delivery(1, BasicProperties::default(), &[])));
    }
}
