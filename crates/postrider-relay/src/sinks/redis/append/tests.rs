use std::sync::Arc;

use bytes::Bytes;
use postrider::Event;
use redis::Arg;

use super::*;
use crate::formats::{Encoding, Format};

const APPENDING: Appending =
    Appending { creates: false, ids_max: 9, ids_seconds: 60, trim: Trim::Nothing };

fn message(topic: &str, format: Format, header: Option<&str>) -> Message {
    let mut event = Event::builder("Order", "42", "OrderPaid").topic(topic);
    if let Some(header) = header {
        event = event.header(header, "value");
    }
    let event = event.payload("body", "text/plain").build().unwrap();
    Encoding { format, ..Encoding::default() }.encode(Arc::new(event)).unwrap()
}

/// What follows the script.
fn args(command: &Cmd) -> Vec<String> {
    let text = |arg: Arg<&[u8]>| match arg {
        Arg::Simple(arg) => String::from_utf8_lossy(arg).into_owned(),
        _ => panic!("there is no cursor"),
    };
    command.args_iter().skip(2).map(text).collect()
}

fn fields(message: &Message) -> Vec<String> {
    texts(message).map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn names_are_sent_once() {
    let sent = [
        message("a", Format::Payload, None),
        message("b", Format::Payload, Some("tenant")),
        message("a", Format::Payload, None),
    ];
    let args = args(&APPENDING.command(&sent, &[]));
    assert_eq!(args[..4], ["6", "a", "{a}:postrider-ids", "{a}:postrider-ids-older"]);
    assert_eq!(args[7..14], ["9", "60", "NOMKSTREAM", "", "0", "2", "3"]);
    assert_eq!(args[14..17], ["1", "9", "postrider-id"]);
    let of = |name: &str| args.iter().filter(|arg| *arg == name).count();
    assert_eq!((of("postrider-id"), of("payload"), of("tenant")), (2, 2, 1));
    assert_eq!((of("value"), of("body"), of("OrderPaid")), (1, 3, 3));
}

#[test]
fn what_is_not_wanted_is_not_sent() {
    let appending = Appending { creates: true, trim: Trim::Maxlen(5), ..APPENDING };
    let args = args(&appending.command(&[], &["a"]));
    assert_eq!(args[4..], ["9", "60", "", "MAXLEN", "5", "0", "0", "0"]);
}

#[test]
fn every_format_has_its_fields_and_no_name_is_there_twice() {
    for (format, first, count) in [
        (Format::Payload, "postrider-id", 8),
        (Format::CloudEvents, "ce-specversion", 11),
        (Format::CloudEventsStructured, "postrider-key", 2),
        (Format::Debezium, "id", 4),
    ] {
        for header in ["Payload", "postrider-key", "CE-id", "content-type"] {
            let names = fields(&message("a", format, Some(header)));
            assert_eq!((names[0].as_str(), names.len()), (first, count), "{format:?} {names:?}");
        }
        let names = fields(&message("a", format, Some("tenant")));
        assert_eq!(names.last().map(String::as_str), Some("tenant"));
    }
}

#[test]
fn many_shapes_are_sent_as_they_come() {
    let headers: Vec<_> = (0..60).map(|number| format!("x-{}", number % 30)).collect();
    let sent: Vec<_> =
        headers.iter().map(|header| message("a", Format::Payload, Some(header))).collect();
    let args = args(&APPENDING.command(&sent, &[]));
    assert_eq!(args[9..11], ["60", "60"], "they are too far apart to be found again");
    assert_eq!(args.iter().filter(|arg| *arg == "body").count(), 60);
}

#[test]
fn any_bytes_are_sent() {
    let mut sent = message("a", Format::Payload, None);
    sent.body = Bytes::from_static(b"\0\r\n\xff");
    let command = APPENDING.command(&[sent], &[]);
    assert!(command.args_iter().any(|arg| arg == Arg::Simple(b"\0\r\n\xff")));
}

/// As Redis finds a hash tag.
#[test]
fn ids_are_in_the_slot_of_their_stream() {
    for (stream, expected) in [
        ("orders", "{orders}:postrider-ids"),
        ("orders{eu}", "orders{eu}:postrider-ids"),
        ("orders{}", "{orders{}}:postrider-ids"),
        ("or}d{ers", "{or}d{ers}:postrider-ids"),
    ] {
        assert_eq!(ids_keys(stream)[0], expected);
    }
}
