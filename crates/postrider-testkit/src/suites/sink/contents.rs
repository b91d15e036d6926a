//! What arrives is what was sent.

use postrider::event::HEADERS_MAX;
use postrider_relay::sink::FailureKind;

use super::{Subject, TargetCapabilities, connect, ids, message, messages};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{building, event, spread};

pub(super) fn cases() -> Vec<Case<Subject, TargetCapabilities>> {
    vec![
        case!(topic_key_and_headers_are_carried),
        case!(any_text_is_carried),
        case!(any_topic_is_carried).needing(|can| can.any_topic, "topics have rules"),
        case!(every_payload_is_carried_byte_for_byte),
        case!(the_largest_payload_is_carried),
        case!(a_payload_that_is_too_large_is_rejected_alone)
            .needing(|can| can.too_large.is_some(), "the sink takes whatever the pipeline sends"),
        case!(as_many_headers_as_an_event_can_have_are_carried),
        case!(reserved_headers_of_an_event_are_left_out)
            .needing(|can| !can.reserved_headers.is_empty(), "every header is carried"),
        case!(an_event_for_a_reserved_topic_is_rejected_alone)
            .needing(|can| can.reserves_topics, "no topic is reserved"),
    ]
}

async fn topic_key_and_headers_are_carried(target: Subject) {
    let sink = connect(&target).await;
    let sent = building("42", 1).header("tenant", "acme").header("x-empty", "");
    let sent = message(&target, sent.build().expect("the event is valid"));
    assert_eq!(sink.publish(std::slice::from_ref(&sent)).await, [Ok(())]);
    let arrivals = target.arrivals().await;
    let arrival = &arrivals[0];
    assert_eq!(arrival.id, sent.event.id());
    assert_eq!(arrival.event_type, "Event1");
    assert_eq!((&arrival.topic, &arrival.key), (&sent.topic, &sent.key));
    assert_eq!(arrival.key, "42");
    assert_eq!(arrival.headers.get("tenant").map(String::as_str), Some("acme"));
    assert_eq!(arrival.headers.get("x-empty").map(String::as_str), Some(""));
}

async fn any_text_is_carried(target: Subject) {
    let sink = connect(&target).await;
    let key = "ключ \"'%0A\\🛒,;=";
    let sent = building(key, 1).header("tenant", "Zoë ✓ \"a\\b\"");
    let sent = message(&target, sent.build().expect("the event is valid"));
    assert_eq!(sink.publish(&[sent]).await, [Ok(())]);
    let arrivals = target.arrivals().await;
    let arrival = &arrivals[0];
    assert_eq!(arrival.key, key);
    assert_eq!(arrival.headers.get("tenant").map(String::as_str), Some("Zoë ✓ \"a\\b\""));
}

async fn any_topic_is_carried(target: Subject) {
    let sink = connect(&target).await;
    let sent = building("a", 1).topic("тема/50%").build().expect("the event is valid");
    assert_eq!(sink.publish(&[message(&target, sent)]).await, [Ok(())]);
    assert_eq!(target.arrivals().await[0].topic, "тема/50%");
}

async fn every_payload_is_carried_byte_for_byte(target: Subject) {
    let sink = connect(&target).await;
    let all_bytes: Vec<u8> = (0..=255).collect();
    let payloads: [(&[u8], &str); 7] = [
        (b"", "application/json"),
        (b"", "text/plain"),
        (br#"{"a": 1.50, "b": 9007199254740993}"#, "application/json"),
        (b"{not json", "application/json"),
        ("line\nbreak\r\n\0 ✓".as_bytes(), "text/plain; charset=utf-8"),
        (&all_bytes, "application/octet-stream"),
        (b"\xff\xfe", "application/json"),
    ];
    for (number, (payload, content_type)) in (1..).zip(payloads) {
        let sent = building("a", number).payload(payload.to_vec(), content_type);
        let sent = message(&target, sent.build().expect("the event is valid"));
        assert_eq!(sink.publish(&[sent]).await, [Ok(())]);
        let arrivals = target.arrivals().await;
        let arrival = arrivals.last().expect("something has arrived");
        assert_eq!(arrival.body, payload, "{content_type}");
    }
}

async fn the_largest_payload_is_carried(target: Subject) {
    let sink = connect(&target).await;
    let bytes = target.capabilities().body_bytes_max;
    assert!(bytes <= sink.capabilities().event_bytes_max);
    let sent = building("a", 1).payload(vec![b'x'; bytes], "text/plain");
    let sent = message(&target, sent.build().expect("the payload is within its limit"));
    assert_eq!(sink.publish(&[sent]).await, [Ok(())]);
    assert_eq!(target.arrivals().await[0].body.len(), bytes);
}

/// F54: parked with its size, and nothing else with it.
async fn a_payload_that_is_too_large_is_rejected_alone(target: Subject) {
    let sink = connect(&target).await;
    let bytes = target.capabilities().too_large.expect("the case needs it");
    let large = building("large", 2).payload(vec![b'x'; bytes], "text/plain");
    let large = large.build().expect("the payload is within its limit");
    let sent = messages(&target, vec![event("a", 1), large, event("b", 3)]);
    let answers = sink.publish(&sent).await;
    let accepted: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(accepted, [true, false, true], "{answers:?}");
    let error = answers[1].as_ref().expect_err("it was refused");
    assert_eq!(error.kind, FailureKind::Rejected);
    let digits: String =
        error.message.chars().filter(|c| c.is_ascii_digit() || *c == ' ').collect();
    let names_a_size = |word: &str| word.parse().is_ok_and(|size: usize| size >= bytes);
    assert!(digits.split(' ').any(names_a_size), "no size in {error}");
    assert_eq!(ids(&target.arrivals().await), [1, 3]);
}

async fn as_many_headers_as_an_event_can_have_are_carried(target: Subject) {
    let sink = connect(&target).await;
    let headers = |index| (format!("x-header-{index}"), "v".repeat(200));
    let sent = building("a", 1).headers((0..HEADERS_MAX).map(headers));
    let sent = message(&target, sent.build().expect("the headers are within their limit"));
    assert_eq!(sink.publish(&[sent]).await, [Ok(())]);
    let arrivals = target.arrivals().await;
    for (name, value) in (0..HEADERS_MAX).map(headers) {
        assert_eq!(arrivals[0].headers.get(&name), Some(&value));
    }
}

/// G-05: each of them alone, and all of them together. The event is sent without them.
async fn reserved_headers_of_an_event_are_left_out(target: Subject) {
    let sink = connect(&target).await;
    let reserved = target.capabilities().reserved_headers;
    let mut names: Vec<&[&str]> = reserved.chunks(1).collect();
    names.push(reserved);
    let mut sent = Vec::new();
    for (number, names) in (1..).zip(names) {
        let headers = names.iter().map(|name| (*name, "canary")).chain([("tenant", "acme")]);
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let event = building(&number.to_string(), number).headers(headers).build();
        sent.push(message(&target, event.expect("the headers are within their limits")));
    }
    assert_eq!(sink.publish(&sent).await, vec![Ok(()); sent.len()]);
    let arrivals = target.arrivals().await;
    assert_eq!(arrivals.len(), sent.len());
    for arrival in arrivals {
        assert_eq!(arrival.headers.get("tenant").map(String::as_str), Some("acme"));
        let is_taken = |(_, value): &(&String, &String)| value.contains("canary");
        assert_eq!(arrival.headers.iter().find(is_taken), None);
    }
}

/// G-05: it is never sent, and parked with its topic in the reason. Others are published.
async fn an_event_for_a_reserved_topic_is_rejected_alone(target: Subject) {
    let sink = connect(&target).await;
    let topics = target.reserved_topics();
    let mut sent = messages(&target, spread(1000, 1..2 * topics.len() as u32 + 1));
    for (message, topic) in sent.iter_mut().step_by(2).zip(&topics) {
        message.topic.clone_from(topic);
    }
    let answers = sink.publish(&sent).await;
    for (index, answer) in answers.iter().enumerate() {
        let (0, Err(error)) = (index % 2, answer) else {
            assert_eq!((index % 2, answer), (1, &Ok(())), "{}", sent[index].topic);
            continue;
        };
        let topic = &topics[index / 2];
        assert_eq!(error.kind, FailureKind::Rejected, "{topic}: {error}");
        assert!(!error.by_target && !error.in_company, "{topic}: {error}");
        assert!(error.message.contains(topic), "{topic}: {error}");
    }
    let published: Vec<u32> = (1..=topics.len() as u32).map(|number| 2 * number).collect();
    let mut arrived = ids(&target.arrivals().await);
    arrived.sort_unstable();
    assert_eq!(arrived, published);
}
