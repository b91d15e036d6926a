//! What a check finds, without changing anything.

use std::time::Duration;

use postrider_relay::sink::FailureKind::Misconfigured;
use postrider_relay::sinks::{PipelineFacts, SinkSpec};
use redis::Value;

use crate::{is, kept, message, messages, published, run, server, sink, sink_of, spec};

#[tokio::test]
async fn a_safe_server_has_no_cautions() {
    let server = server(&[]).await;
    let sink = sink(&server.url(), "maxlen = 1000").await;
    assert_eq!(sink.check().await, Ok(Vec::new()));
}

#[tokio::test]
async fn what_is_less_safe_is_said() {
    let cases: [(&[&str], &str, &str); 7] = [
        (&["appendonly no"], "maxlen = 9", "set appendonly yes"),
        (&["appendfsync no"], "maxlen = 9", "leaves it to the system"),
        (&["appendfsync everysec"], "maxlen = 9", "the events of its last second are gone"),
        (&["maxmemory 100mb", "maxmemory-policy allkeys-lru"], "maxlen = 9", "throws streams away"),
        (&["maxmemory 100mb", "maxmemory-policy volatile-lru"], "maxlen = 9", "forgets event ids"),
        (&[], "", "streams grow for ever; set maxlen or retention"),
        (&[], "maxlen = 9\ndedupe_events = 0", "dedupe_events is 0"),
    ];
    for (settings, options, words) in cases {
        let server = server(settings).await;
        let cautions = sink(&server.url(), options).await.check().await.unwrap();
        assert_eq!(cautions.len(), 1, "{cautions:?}");
        assert!(cautions[0].contains(words), "{cautions:?}");
    }
}

#[tokio::test]
async fn ids_must_be_remembered_for_as_long_as_events_are_tried() {
    let server = server(&[]).await;
    let pipeline =
        PipelineFacts { retry_horizon: Duration::from_secs(511), ..PipelineFacts::default() };
    for (window, count) in [("5m", 1), ("10m", 0)] {
        let options = format!("maxlen = 9\ndedupe_window = \"{window}\"");
        let spec = SinkSpec { pipeline: pipeline.clone(), ..spec(&server.url(), &options) };
        let cautions = spec.connect().await.unwrap().check().await.unwrap();
        assert_eq!(cautions.len(), count, "{cautions:?}");
    }
}

#[tokio::test]
async fn nothing_is_changed() {
    let server = server(&[]).await;
    let stream = sink_of("s", &server.url(), "create_missing = true\nmaxlen = 1").await;
    assert!(stream.check().await.is_ok());
    assert_eq!(run(&server, "DBSIZE").await, Value::Int(0));
    published(&*stream, &[message("s", 1), message("s", 2)]).await;
    let state = || async {
        let stream = run(&server, "XINFO STREAM s").await;
        (stream, run(&server, "SMEMBERS {s}:postrider-ids").await)
    };
    let before = state().await;
    assert!(stream.check().await.is_ok());
    assert_eq!(state().await, before);
}

/// G-01: a known fault of Redis, redis#14541.
#[tokio::test]
async fn a_server_that_would_drop_transactions_is_refused() {
    let mut server = server(&["user default off", "user relay on >secret ~* +@all -acl"]).await;
    let refusing = sink(&server.url(), "maxlen = 9").await;
    let error = refusing.check().await.unwrap_err();
    is(&error, Misconfigured, "would lose all events when it starts again");
    // So it is, in the version of these tests.
    published(&*refusing, &messages("s", 1..=3)).await;
    server.kill9().await;
    server.start_again().await;
    assert!(kept(&server, "s").await.is_empty());

    let url = server.url().replace("postrider:postrider", "relay:secret");
    let cautions = sink(&url, "maxlen = 9").await.check().await.unwrap();
    assert!(cautions.concat().contains("which we may not look at"), "{cautions:?}");

    let command = error.message.split('`').nth(1).unwrap();
    run(&server, command).await;
    run(&server, "CONFIG REWRITE").await;
    assert_eq!(refusing.check().await, Ok(Vec::new()));
    server.kill9().await;
    server.start_again_as_it_is().await;
    // They were in the file all the time.
    published(&*refusing, &messages("s", 1..=4)).await;
    assert_eq!(kept(&server, "s").await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn plain_commands_survive_whatever_the_user_default_may() {
    let mut server = server(&["user default off"]).await;
    let sink = sink(&server.url(), "maxlen = 9\ndedupe_events = 0").await;
    assert!(sink.check().await.is_ok());
    published(&*sink, &messages("s", 1..=3)).await;
    server.kill9().await;
    server.start_again().await;
    assert_eq!(kept(&server, "s").await, [1, 2, 3]);
}
