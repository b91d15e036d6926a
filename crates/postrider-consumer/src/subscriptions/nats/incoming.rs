//! What a message of NATS says.
//!
//! Attributes of CloudEvents are percent-encoded by their NATS binding, and decoded here.

use std::borrow::Cow;

use async_nats::Message;
use percent_encoding::percent_decode_str;

use crate::subscription::Incoming;

const CLOUDEVENTS: &str = "ce-";
const CONTENT_TYPE: &str = "content-type";
const CLOUDEVENTS_CONTENT_TYPE: &str = "ce-datacontenttype";
const KEY: &str = "postrider-key";

/// The message, as the decoder takes it.
pub(super) fn incoming(message: Message, place: String) -> Incoming {
    let mut headers = Vec::new();
    for (name, values) in message.headers.iter().flat_map(|headers| headers.iter()) {
        let name: &str = name.as_ref();
        for value in values {
            headers.push((name.to_owned(), value_of(name, value.as_str())));
        }
    }
    let named = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.clone())
    };
    let key = named(KEY);
    // Others than the relay may send it only there.
    let content_type = match named(CONTENT_TYPE) {
        None => named(CLOUDEVENTS_CONTENT_TYPE),
        Some(_) => None,
    };
    headers.extend(content_type.map(|value| (CONTENT_TYPE.to_owned(), value)));
    let topic = message.subject.as_str().to_owned();
    Incoming { topic, key, headers, body: message.payload, place, is_revived: false }
}

fn value_of(name: &str, value: &str) -> String {
    let prefix = name.get(..CLOUDEVENTS.len());
    let is_encoded = prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(CLOUDEVENTS));
    if is_encoded { percent_decoded(value) } else { value.to_owned() }
}

/// What is no encoding, or that of no text, stays as it is.
fn percent_decoded(text: &str) -> String {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map_or_else(|_| text.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;

    use super::*;

    fn message(headers: &[(&str, &str)]) -> Message {
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| map.append(*name, *value));
        Message {
            subject: "orders.paid".into(),
            reply: None,
            payload: "{}".into(),
            headers: Some(map),
            status: None,
            description: None,
            length: 2,
        }
    }

    #[test]
    fn attributes_of_cloudevents_are_decoded_and_nothing_else() {
        let sent = message(&[("ce-subject", "caf%C3%A9 %25"), ("tenant", "50%25")]);
        let incoming = incoming(sent, "ORDERS@7".to_owned());
        let expected = [("ce-subject", "café %"), ("tenant", "50%25")];
        for (name, value) in expected {
            assert!(incoming.headers.contains(&(name.to_owned(), value.to_owned())), "{name}");
        }
        assert_eq!(incoming.topic, "orders.paid");
    }

    #[test]
    fn what_is_no_encoding_stays() {
        for text in ["100%", "%zz", "%C3", "%", ""] {
            assert_eq!(percent_decoded(text), text);
        }
        assert_eq!(percent_decoded("%41%"), "A%");
    }

    #[test]
    fn the_key_and_the_media_type_are_found() {
        let sent = message(&[("Postrider-Key", "42"), ("ce-datacontenttype", "text/plain")]);
        let found = incoming(sent, String::new());
        assert_eq!(found.key.as_deref(), Some("42"));
        assert!(found.headers.contains(&("content-type".to_owned(), "text/plain".to_owned())));
        let sent = message(&[("content-type", "a/b"), ("ce-datacontenttype", "c/d")]);
        assert_eq!(incoming(sent, String::new()).headers.len(), 2);
    }
}
