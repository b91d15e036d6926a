//! The headers of a request.
//!
//! | from | header |
//! |---|---|
//! | the event's id, the time of sending, the secrets | `webhook-id`, `webhook-timestamp`, `webhook-signature` |
//! | format `payload` | `postrider-event-type` … and `postrider-topic`, `postrider-key` |
//! | format `cloudevents` | `ce-type` … |
//! | format `debezium` | `id`, `eventtype` |
//! | the event's headers and the configured ones | as they are |
//!
//! A header of an event must not take the place of one that the relay or the protocol sets, nor be
//! one that a server or a proxy acts upon, unless the configuration names it: whoever writes events
//! would speak with the relay's voice. Such a header is left out rather than refused: it is no
//! mistake for other sinks, which carry it.

use std::time::SystemTime;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::signature::Signer;
use crate::formats::REPLAY_HEADER;
use crate::sink::{Attributes, FailureKind, Message, SinkError};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Names that belong to the protocol or the connection.
const RESERVED: [&str; 13] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Names that a server or a proxy acts upon: who asks, from where, for what, and how the body is to
/// be read.
const STEERING: [&str; 33] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "authorization",
    "cache-control",
    "cf-connecting-ip",
    "content-encoding",
    "content-location",
    "content-range",
    "cookie",
    "fastly-client-ip",
    "forwarded",
    "http2-settings",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "max-forwards",
    "origin",
    "pragma",
    "range",
    "referer",
    "set-cookie",
    "true-client-ip",
    "user-agent",
    "via",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-http-method",
    "x-method-override",
    "x-real-ip",
];
/// Beginnings of such names.
const STEERING_PREFIXES: [&str; 8] = [
    "access-control-",
    "proxy-",
    "sec-",
    "x-envoy-",
    "x-forwarded-",
    "x-http-method-",
    "x-original-",
    "x-rewrite-",
];
/// Prefixes of names that only the relay gives.
const RESERVED_PREFIXES: [&str; 3] = ["ce-", "postrider-", "webhook-"];

/// Whether a header is the relay's or the protocol's own, in every format.
pub(super) fn is_reserved(name: &HeaderName) -> bool {
    let name = name.as_str();
    RESERVED.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a server or a proxy acts upon a header.
fn is_steering(name: &HeaderName) -> bool {
    let name = name.as_str();
    STEERING.contains(&name) || STEERING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Headers that the configuration gives.
pub(super) struct Configured<'c> {
    /// Sent with each request.
    pub(super) secret_headers: &'c HeaderMap,
    /// Names that events may give, although a server acts upon them.
    pub(super) allowed: &'c [HeaderName],
}

/// All headers of the request for a message. Fails, as rejected, if the event has one that HTTP
/// cannot carry.
pub(super) fn headers(
    message: &Message,
    signer: &Signer,
    Configured { secret_headers, allowed }: Configured<'_>,
    now: SystemTime,
) -> Result<HeaderMap, SinkError> {
    let mut headers = HeaderMap::with_capacity(message.headers.len() + secret_headers.len() + 12);
    for (name, text) in &message.headers {
        let header = HeaderName::try_from(name).map_err(|_| {
            rejected(format!("`{name}` is not the name of an HTTP header; rename it"))
        })?;
        let is_taken = is_reserved(&header) && header != REPLAY_HEADER
            || is_steering(&header) && !allowed.contains(&header)
            || secret_headers.contains_key(&header)
            || message.reserves(name);
        if !is_taken {
            let value = value(text, &header)?;
            headers.append(header, value);
        }
    }
    headers.insert(CONTENT_TYPE, value(&message.content_type, &CONTENT_TYPE)?);
    add_webhook_headers(&mut headers, message, signer, now)?;
    add_attributes(&mut headers, message)?;
    for (name, secret) in secret_headers {
        headers.insert(name.clone(), secret.clone());
    }
    Ok(headers)
}

fn add_webhook_headers(
    headers: &mut HeaderMap,
    message: &Message,
    signer: &Signer,
    now: SystemTime,
) -> Result<(), SinkError> {
    let id = message.event.id().to_string();
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let timestamp = seconds.to_string();
    if let Some(signature) = signer.sign(&id, &timestamp, &message.body) {
        headers.insert(WEBHOOK_SIGNATURE, value(&signature, &WEBHOOK_SIGNATURE)?);
    }
    headers.insert(WEBHOOK_TIMESTAMP, value(&timestamp, &WEBHOOK_TIMESTAMP)?);
    headers.insert(WEBHOOK_ID, value(&id, &WEBHOOK_ID)?);
    Ok(())
}

fn add_attributes(headers: &mut HeaderMap, message: &Message) -> Result<(), SinkError> {
    let prefix = match message.attributes {
        Attributes::None => return Ok(()),
        Attributes::Plain => "postrider-",
        Attributes::CloudEvents { .. } => "ce-",
        Attributes::Debezium => "",
    };
    let mut add = |name: &str, text: &str| {
        let name = format!("{prefix}{}", name.replace('_', "-"));
        let header = HeaderName::try_from(name.as_str())
            .map_err(|_| rejected(format!("`{name}` is not the name of an HTTP header")))?;
        let value = value(&percent_encoded(text), &header)?;
        headers.insert(header, value);
        Ok(())
    };
    for (name, text) in message.attribute_values() {
        add(name, &text)?;
    }
    if message.attributes == Attributes::Plain {
        add("topic", &message.topic)?;
        add("key", &message.key)?;
    }
    Ok(())
}

fn value(text: &str, name: &HeaderName) -> Result<HeaderValue, SinkError> {
    // From bytes, as that takes UTF-8, which is opaque to HTTP but allowed (RFC 9110, 5.5).
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| {
        rejected(format!("the value of `{name}` has a character that no HTTP header can hold"))
    })
}

fn rejected(message: String) -> SinkError {
    SinkError::new(FailureKind::Rejected, message)
}

/// A text as the HTTP binding of CloudEvents wants it (3.1.3.2): space, `"`, `%` and all that is
/// not printable ASCII are percent-encoded.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'"' && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use postrider::{Event, EventBuilder};

    use super::*;
    use crate::formats::{Encoding, Format};
    use crate::sinks::Secret;

    /// What a server, or a proxy before it, acts upon.
    const STEERING_OF_EVENTS: [&str; 26] = [
        "Accept-Encoding",
        "Authorization",
        "CF-Connecting-IP",
        "Connection",
        "Content-Encoding",
        "Content-Length",
        "Cookie",
        "Forwarded",
        "Host",
        "If-Match",
        "Keep-Alive",
        "Origin",
        "Proxy-Authorization",
        "Range",
        "Sec-Fetch-Site",
        "TE",
        "Transfer-Encoding",
        "True-Client-IP",
        "User-Agent",
        "Via",
        "X-Forwarded-For",
        "X-Forwarded-Proto",
        "X-HTTP-Method-Override",
        "X-Original-URL",
        "X-Real-IP",
        "X-Rewrite-URL",
    ];

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn event() -> EventBuilder {
        Event::builder("Order", "Z\u{fc}rich 100%", "OrderPaid")
            .id(ID.parse().unwrap())
            .occurred_at(SystemTime::UNIX_EPOCH)
            .payload("{\"a\":1}", "application/json")
    }

    fn built(event: EventBuilder, format: Format) -> Result<Vec<String>, SinkError> {
        built_with(&[], event, format)
    }

    fn built_with(
        allowed: &[HeaderName],
        event: EventBuilder,
        format: Format,
    ) -> Result<Vec<String>, SinkError> {
        let encoding = Encoding { format, ..Encoding::default() };
        let message = encoding.encode(Arc::new(event.build().unwrap())).unwrap();
        let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let signer = Signer::new(&[secret]).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_614_265_330);
        let secrets = HeaderMap::from_iter([(
            HeaderName::from_static("authorization"),
            HeaderValue::from_static("Bearer t"),
        )]);
        let configured = Configured { secret_headers: &secrets, allowed };
        let headers = headers(&message, &signer, configured, now)?;
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))
        };
        let mut texts: Vec<_> = headers.iter().map(text).collect();
        texts.retain(|text| !text.starts_with("webhook-signature: v1,"));
        assert_eq!(texts.len() + 1, headers.len(), "there is one signature");
        texts.sort();
        Ok(texts)
    }

    #[test]
    fn the_payload_format_has_its_headers() {
        let headers = built(event().header("Tenant", "\u{fc}"), Format::Payload).unwrap();
        let expected = [
            "authorization: Bearer t",
            "content-type: application/json",
            "postrider-aggregate-id: Z%C3%BCrich%20100%25",
            "postrider-aggregate-type: Order",
            "postrider-event-type: OrderPaid",
            "postrider-event-version: 1",
            &format!("postrider-id: {ID}"),
            "postrider-key: Z%C3%BCrich%20100%25",
            "postrider-occurred-at: 1970-01-01T00:00:00Z",
            "postrider-topic: outbox.event.Order",
            "tenant: \u{fc}",
            &format!("webhook-id: {ID}"),
            "webhook-timestamp: 1614265330",
        ];
        assert_eq!(headers, expected);
    }

    #[test]
    fn the_cloudevents_formats_have_theirs() {
        let binary = built(event(), Format::CloudEvents).unwrap();
        for expected in [
            "ce-specversion: 1.0",
            "ce-subject: Z%C3%BCrich%20100%25",
            "ce-source: /postrider/Order",
            "ce-type: OrderPaid",
            "content-type: application/json",
        ] {
            assert!(binary.iter().any(|header| header == expected), "{expected} in {binary:#?}");
        }
        let structured = built(event(), Format::CloudEventsStructured).unwrap();
        assert_eq!(structured.len(), 4, "{structured:#?}");
        assert!(structured.contains(&"content-type: application/cloudevents+json".to_owned()));
    }

    #[test]
    fn the_debezium_format_has_its_names_without_a_prefix() {
        let event =
            event().header("ID", "canary").header("EventType", "canary").header("kept", "1");
        let headers = built(event, Format::Debezium).unwrap();
        let expected = [
            "authorization: Bearer t",
            "content-type: application/json",
            "eventtype: OrderPaid",
            &format!("id: {ID}"),
            "kept: 1",
            &format!("webhook-id: {ID}"),
            "webhook-timestamp: 1614265330",
        ];
        assert_eq!(headers, expected);
    }

    #[test]
    fn other_formats_carry_an_events_own_header_of_those_names() {
        for format in [Format::Payload, Format::CloudEvents, Format::CloudEventsStructured] {
            let headers =
                built(event().header("id", "7").header("eventType", "x"), format).unwrap();
            for expected in ["id: 7", "eventtype: x"] {
                assert!(headers.iter().any(|header| header == expected), "{headers:#?}");
            }
        }
    }

    #[test]
    fn reserved_headers_of_an_event_are_left_out() {
        let mut event = event().header("kept", "1");
        for name in ["Host", "Content-Type", "webhook-id", "CE-x", "postrider-key", "Authorization"]
        {
            event = event.header(name, "canary");
        }
        let headers = built(event, Format::CloudEventsStructured).unwrap();
        assert!(!headers.concat().contains("canary"), "{headers:#?}");
        assert!(headers.contains(&"kept: 1".to_owned()));
    }

    #[test]
    fn headers_that_steer_a_server_are_not_taken_from_events() {
        let mut event = event().header("kept", "1").header("x-request-id", "2");
        for name in STEERING_OF_EVENTS {
            event = event.header(name, "canary");
        }
        let headers = built(event, Format::CloudEventsStructured).unwrap();
        assert!(!headers.concat().contains("canary"), "{headers:#?}");
        for kept in ["kept: 1", "x-request-id: 2"] {
            assert!(headers.contains(&kept.to_owned()), "{headers:#?}");
        }
    }

    #[test]
    fn a_header_that_is_named_is_taken_from_events_but_for_the_relays_own() {
        let names = ["content-encoding", "x-forwarded-for", "host", "authorization"];
        let event = names.into_iter().fold(event(), |event, name| event.header(name, "gzip"));
        let headers =
            built_with(&names.map(HeaderName::from_static), event, Format::CloudEventsStructured);
        let headers = headers.unwrap();
        let given: Vec<_> = headers.iter().filter(|header| header.ends_with(": gzip")).collect();
        assert_eq!(given, ["content-encoding: gzip", "x-forwarded-for: gzip"]);
        assert!(headers.contains(&"authorization: Bearer t".to_owned()), "{headers:#?}");
    }

    #[test]
    fn a_header_that_http_cannot_carry_is_rejected() {
        let error = built(event().header("a b", "canary"), Format::Payload).unwrap_err();
        assert_eq!(error.kind, FailureKind::Rejected);
        assert_eq!(error.message, "`a b` is not the name of an HTTP header; rename it");
    }
}
