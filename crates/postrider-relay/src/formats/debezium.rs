//! What Debezium's outbox event router sends, so that its consumers need no change.
//!
//! The router's defaults give a message the topic `outbox.event.` and the aggregate type, the
//! aggregate id as its key, the payload as its value, and the event's id in the header `id`. Topic
//! and key are what a [route](crate::routing::Route) makes by default. The type of an event is no
//! part of those defaults (they leave it out), but consumers of topics with several types need it:
//! it goes by the name that most configurations give it, with
//! `table.fields.additional.placement=type:header:eventType`.

use std::borrow::Cow;

use postrider::Event;

const ID: &str = "id";
const EVENT_TYPE: &str = "eventType";

pub(super) fn attribute_values(event: &Event) -> Vec<(&'static str, Cow<'_, str>)> {
    vec![(ID, super::id(event).into()), (EVENT_TYPE, event.event_type().into())]
}

/// Whether an attribute has that name, in any case: HTTP does not tell cases apart.
pub(super) fn is_attribute(name: &str) -> bool {
    [ID, EVENT_TYPE].iter().any(|attribute| attribute.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::formats::{Encoding, Format};

    #[test]
    fn a_message_is_what_the_event_router_sends_by_default() {
        let encoding = Encoding { format: Format::Debezium, ..Encoding::default() };
        let payload = b"{ \"b\": 1.10,\n\"a\": null}";
        let event = Event::builder("order", "42", "OrderPaid")
            .id("01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap())
            .payload(payload.as_slice(), "application/json")
            .build()
            .unwrap();
        let message = encoding.encode(Arc::new(event)).unwrap();
        assert_eq!(message.topic, "outbox.event.order");
        assert_eq!(message.key, "42");
        assert_eq!(message.body, payload.as_slice(), "byte for byte");
        assert_eq!(message.content_type, "application/json");
        let values = message.attribute_values();
        let values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_ref())).collect();
        let expected = [("id", "01890a5d-ac96-774b-bcce-b302099a8057"), ("eventType", "OrderPaid")];
        assert_eq!(values, expected);
    }

    #[test]
    fn its_names_are_not_for_headers_and_only_in_this_format() {
        let event = Arc::new(Event::builder("order", "42", "OrderPaid").build().unwrap());
        for format in Format::ALL {
            let message = Encoding { format, ..Encoding::default() }.encode(event.clone()).unwrap();
            for name in ["id", "ID", "eventType", "eventtype"] {
                assert_eq!(message.reserves(name), format == Format::Debezium, "{name} {format:?}");
            }
            for name in ["eventTypes", "type", "event_type", "traceparent"] {
                assert!(!message.reserves(name), "{name} {format:?}");
            }
        }
    }
}
