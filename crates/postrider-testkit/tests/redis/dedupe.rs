//! An event that comes again is recognised, and what is remembered for that has bounds.

use postrider_relay::sink::FailureKind::{Misconfigured, Unavailable};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use redis::Value;

use crate::{failing, is, kept, message, messages, published, run, server, sink, sink_of, until};

#[tokio::test]
async fn an_event_that_comes_again_is_there_once() {
    let server = server(&[]).await;
    let (one, other) = (sink(&server.url(), "").await, sink(&server.url(), "").await);
    assert!(one.capabilities().deduplicates);
    published(&*one, &messages("s", 1..=10)).await;
    // In other calls, by another relay, among new ones.
    published(&*other, &messages("s", 5..=15)).await;
    published(&*one, &messages("s", [15, 1, 16])).await;
    assert_eq!(kept(&server, "s").await, (1..=16).collect::<Vec<_>>());
    // Another stream is another matter.
    published(&*one, &messages("t", 1..=3)).await;
    assert_eq!(kept(&server, "t").await, [1, 2, 3]);
}

/// F50.
#[tokio::test]
async fn an_answer_that_is_lost_leads_to_no_duplicate() {
    let server = server(&[]).await;
    let proxy = Proxy::start(address(&server.url())).await;
    let sink = sink(&proxy.url(&server.url()), "response_timeout = \"3s\"").await;
    published(&*sink, &messages("s", 1..=3)).await;
    proxy.lose_answers();
    let answers = sink.publish(&messages("s", 4..=6)).await;
    for answer in answers {
        is(&answer.unwrap_err(), Unavailable, "did not answer within 3s");
    }
    until("they are kept", || async { kept(&server, "s").await.len() == 6 }).await;
    proxy.cut();
    proxy.heal();
    published(&*sink, &messages("s", 4..=9)).await;
    assert_eq!(kept(&server, "s").await, (1..=9).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_remembered_has_bounds() {
    let server = server(&[]).await;
    let sink = sink(&server.url(), "dedupe_events = 10\ndedupe_window = \"1h\"").await;
    for first in (1..=100).step_by(4) {
        published(&*sink, &messages("s", first..first + 4)).await;
        // At least ten are known, up to the very first.
        let known = (first + 4).saturating_sub(10).max(1)..first + 4;
        published(&*sink, &messages("s", known)).await;
        for key in ["{s}:postrider-ids", "{s}:postrider-ids-older"] {
            let Value::Int(count) = run(&server, &format!("SCARD {key}")).await else { panic!() };
            assert!(count <= 10 + 10 + 4, "{count} in {key}");
            let Value::Int(seconds) = run(&server, &format!("TTL {key}")).await else { panic!() };
            assert!(count == 0 || (3500..=3600).contains(&seconds), "{seconds} s for {key}");
        }
    }
    assert_eq!(kept(&server, "s").await, (1..=100).collect::<Vec<_>>());
    // What is long forgotten comes again.
    published(&*sink, &[message("s", 1)]).await;
    assert_eq!(kept(&server, "s").await.len(), 101);
}

#[tokio::test]
async fn it_can_be_turned_off() {
    let server = server(&[]).await;
    let sink = sink(&server.url(), "dedupe_events = 0").await;
    assert!(!sink.capabilities().deduplicates);
    for _ in 0..2 {
        published(&*sink, &messages("s", 1..=3)).await;
    }
    assert_eq!(kept(&server, "s").await, [1, 2, 3, 1, 2, 3]);
    assert_eq!(run(&server, "DBSIZE").await, Value::Int(1));
}

/// G-03: what comes after a message that fails is not there either, and comes once in the end.
#[tokio::test]
async fn a_call_stops_at_the_first_failure() {
    let server = server(&[]).await;
    run(&server, "XGROUP CREATE good group 0 MKSTREAM").await;
    let sink = sink_of("good", &server.url(), "").await;
    assert!(sink.capabilities().ordered_by_key);
    let sent = [message("good", 1), message("missing", 2), message("good", 3)];
    let answers = sink.publish(&sent).await;
    assert_eq!(answers[0], Ok(()));
    is(answers[1].as_ref().unwrap_err(), Misconfigured, "has no stream missing; make it with");
    is(answers[2].as_ref().unwrap_err(), Unavailable, "an earlier event of its key failed");
    assert_eq!(kept(&server, "good").await, [1]);
    run(&server, "XGROUP CREATE missing group 0 MKSTREAM").await;
    published(&*sink, &sent).await;
    assert_eq!(kept(&server, "good").await, [1, 3]);
    assert_eq!(kept(&server, "missing").await, [2]);
}

/// Without a script each message is on its own.
#[tokio::test]
async fn plain_commands_fail_one_by_one() {
    let server = server(&[]).await;
    run(&server, "XGROUP CREATE good group 0 MKSTREAM").await;
    run(&server, "SET other x").await;
    for options in ["dedupe_events = 0", "dedupe_events = 0\nretention = \"1h\""] {
        let sink = sink_of("good", &server.url(), options).await;
        assert!(!sink.capabilities().ordered_by_key);
        assert!(sink.check().await.is_ok());
        let sent = [message("good", 1), message("missing", 2), message("other", 3)];
        let answers = sink.publish(&[&sent[..], &[message("good", 4)]].concat()).await;
        assert_eq!((&answers[0], &answers[3]), (&Ok(()), &Ok(())));
        is(answers[1].as_ref().unwrap_err(), Misconfigured, "has no stream missing; make it with");
        is(answers[2].as_ref().unwrap_err(), Misconfigured, "other of 127.0.0.1");
    }
    assert_eq!(kept(&server, "good").await, [1, 4, 1, 4]);
}

#[tokio::test]
async fn a_key_that_somebody_else_has_is_named() {
    let server = server(&[]).await;
    run(&server, "SET {s}:postrider-ids x").await;
    let sink = sink(&server.url(), "").await;
    let error = failing(&*sink, message("s", 1)).await;
    is(&error, Misconfigured, "`redis-cli TYPE '{s}:postrider-ids'` says what");
    assert!(kept(&server, "s").await.is_empty());
}
