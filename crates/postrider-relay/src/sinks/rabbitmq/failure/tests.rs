use std::sync::Arc;

use lapin::protocol::AMQPError;
use postrider::Event;

use super::*;
use crate::formats::Encoding;

fn place() -> Place {
    Place { vhost: "/".to_owned(), user: "relay".to_owned() }
}

fn message() -> Message {
    let event = Event::builder("Order", "4'2", "OrderPaid").payload("canary", "text/plain");
    Encoding::default().encode(Arc::new(event.build().unwrap())).unwrap()
}

fn said(code: u16, text: &str) -> lapin::Error {
    ErrorKind::ProtocolError(AMQPError::from_id(code, text.into()).unwrap()).into()
}

#[track_caller]
fn is(error: SinkError, kind: FailureKind, text: &str) {
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.message.contains(text), "{:?} should contain {text:?}", error.message);
    assert!(!error.message.contains("canary"), "{error}");
}

#[test]
fn what_the_server_says_to_a_connection() {
    use FailureKind::{Misconfigured, Unavailable};
    let other = Place { vhost: "my host".to_owned(), ..place() };
    for (code, text, kind, expected) in [
        (403, "ACCESS_REFUSED - Login was refused", Misconfigured, "authenticate_user relay"),
        (530, "NOT_ALLOWED - vhost x not found", Misconfigured, "add_vhost 'my host' &&"),
        (
            530,
            "NOT_ALLOWED - access to vhost 'x' refused",
            Misconfigured,
            "rabbitmqctl set_permissions -p 'my host' relay '^$' '.*' '^$'",
        ),
        (530, "NOT_ALLOWED - connection limit (1) is reached", Unavailable, "is full"),
        (320, "CONNECTION_FORCED - shutdown", Unavailable, "CONNECTION_FORCED"),
    ] {
        is(connecting(&said(code, text), "h:1", &other, "; hint"), kind, expected);
    }
    let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
    is(connecting(&reset, "h:1", &other, "; hint"), Unavailable, "; hint");
}

#[test]
fn what_breaks_a_connection() {
    use FailureKind::{Misconfigured, Unavailable};
    let certificate = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
    let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
    let message = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
    for (error, kind, expected) in [
        (std::io::Error::other(certificate), Misconfigured, "tls = { ca_file = \"…\" }"),
        (std::io::Error::other(alert), Misconfigured, "certificate_file and key_file"),
        (std::io::Error::other(message), Misconfigured, "write amqp://, or the port for TLS"),
        (std::io::ErrorKind::ConnectionRefused.into(), Unavailable, "h:1 is not available"),
    ] {
        is(broken(&error, "h:1"), kind, expected);
    }
}

#[test]
fn only_the_message_that_is_meant_is_blamed() {
    use FailureKind::{Misconfigured, Rejected, Unavailable};
    let own = "outbox.event.Order";
    for (code, text, kind, expected) in [
        (
            404,
            format!("NOT_FOUND - no exchange '{own}' in vhost '/'"),
            Misconfigured,
            "run rabbitmqadmin declare exchange name=outbox.event.Order type=topic \
             durable=true, or set create_missing = true",
        ),
        (404, "NOT_FOUND - no exchange 'x' in vhost '/'".to_owned(), Unavailable, "'x'"),
        (
            403,
            format!("ACCESS_REFUSED - access to exchange '{own}' in vhost '/' refused"),
            Misconfigured,
            "run rabbitmqctl set_permissions -p / relay '^$' '.*' '^$'",
        ),
        (
            403,
            format!("ACCESS_REFUSED - access to topic 'a' in exchange '{own}' refused"),
            Misconfigured,
            "rabbitmqctl set_topic_permissions -p / relay outbox.event.Order '.*' '.*'",
        ),
        (
            406,
            "PRECONDITION_FAILED - message size 6 is larger than configured max size 5".into(),
            Rejected,
            "the event has 6 bytes",
        ),
        (
            406,
            "PRECONDITION_FAILED - message size 7 is larger than configured max size 5".into(),
            Unavailable,
            "has closed the channel",
        ),
    ] {
        is(publishing(&said(code, &text), &message(), &place()), kind, expected);
    }
    let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
    is(publishing(&broken, &message(), &place()), Unavailable, "did not confirm");
}

#[test]
fn each_command_names_what_is_missing() {
    let other = Place { vhost: "v".to_owned(), ..place() };
    is(
        unroutable(&message(), &other),
        FailureKind::Failed,
        "rabbitmqadmin --vhost=v declare binding source=outbox.event.Order destination=QUEUE \
         routing_key='4'\\''2'",
    );
    let queue = Message { topic: "amq.default".to_owned(), ..message() };
    is(unroutable(&queue, &place()), FailureKind::Failed, "declare queue name='4'\\''2' durable");
    is(no_exchange("x", &other), FailureKind::Misconfigured, "--vhost=v declare exchange");
    is(nacked(&message()), FailureKind::Throttled, "reject-publish");
    is(blocked("low on memory"), FailureKind::Throttled, "low on memory");
}

#[test]
fn sizes_are_read() {
    assert_eq!(size_in("message size 20 is larger than configured max size 16"), Some((20, 16)));
    assert_eq!(size_in("the event has 20 bytes: message size 20, max size 16"), Some((20, 16)));
    assert_eq!(size_in("inequivalent arg 'type' 20 16"), None);
    assert_eq!(size_in("message size"), None);
}
