//! Streams that are missing, are another's, or are made.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, StorageType};
use futures_util::{StreamExt as _, TryStreamExt as _};
use postrider_relay::sink::FailureKind;
use postrider_testkit::servers::nats::{Options, Server};

use crate::{
    SUBJECT, assert_refused, connected, constant, context, event, kept, make_stream, message,
    publish, to,
};

#[tokio::test]
async fn a_missing_stream_is_told_with_the_command_that_makes_it() {
    let server = Server::start(Options::default()).await;
    let sink = connected(&server.url(), "").await;
    let command = "nats stream add NAME --subjects='orders.paid' --storage=file --replicas=1 \
                   --dupe-window=1h --defaults";
    assert_refused(publish(&*sink, message()).await, FailureKind::Misconfigured, command);
    assert_refused(sink.check().await, FailureKind::Misconfigured, command);
    let named = connected(&server.url(), "stream = \"ORDERS\"").await;
    let refused = publish(&*named, message()).await;
    assert_refused(refused, FailureKind::Misconfigured, "nats stream add ORDERS ");
    assert_refused(named.check().await, FailureKind::Misconfigured, "nats stream add ORDERS ");
    // What the command does.
    let config = Config {
        name: "NAME".to_owned(),
        subjects: vec![SUBJECT.to_owned()],
        storage: StorageType::File,
        duplicate_window: Duration::from_secs(3600),
        ..Config::default()
    };
    context(&server).await.create_stream(config).await.unwrap();
    publish(&*sink, message()).await.unwrap();
    assert_eq!(sink.check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_subject_without_a_stream_concerns_no_other() {
    let server = Server::start(Options::default()).await;
    make_stream(&context(&server).await, Config::default()).await;
    let sink = connected(&server.url(), "").await;
    let batch = [message(), to("elsewhere.a", event()), to("elsewhere.b", event()), message()];
    let answers = sink.publish(&batch).await;
    assert_eq!((&answers[0], &answers[3]), (&Ok(()), &Ok(())));
    for (answer, subject) in [(&answers[1], "elsewhere.a"), (&answers[2], "elsewhere.b")] {
        let command = format!("--subjects='{subject}'");
        assert_refused(answer.clone(), FailureKind::Misconfigured, &command);
    }
    assert_eq!(kept(&context(&server).await).await, 2);
}

#[tokio::test]
async fn a_stream_of_another_name_keeps_nothing() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    make_stream(&context, Config::default()).await;
    let other = Config {
        name: "OTHER".to_owned(),
        subjects: vec!["other.>".to_owned()],
        ..Config::default()
    };
    context.create_stream(other).await.unwrap();
    let sink = connected(&server.url(), "stream = \"OTHER\"").await;
    let refused = publish(&*sink, message()).await;
    let expected = "orders.paid is not taken by the stream OTHER but by another one";
    assert_refused(refused, FailureKind::Misconfigured, expected);
    let expected = "taken by the stream ORDERS, not by OTHER; set stream = \"ORDERS\"";
    assert_refused(sink.check().await, FailureKind::Misconfigured, expected);
    assert_eq!(kept(&context).await, 0);
    context.delete_stream("ORDERS").await.unwrap();
    let expected = "nats stream edit OTHER --subjects='other.>,orders.paid'";
    assert_refused(sink.check().await, FailureKind::Misconfigured, expected);
}

#[tokio::test]
async fn a_stream_is_made_on_request_and_then_left_alone() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    let options = "create_missing = true\nstream = \"ORDERS\"";
    let sink = connected(&server.url(), options).await;
    publish(&*sink, message()).await.unwrap();
    assert_eq!(sink.check().await.unwrap(), Vec::<String>::new());
    let mut stream = context.get_stream("ORDERS").await.unwrap();
    let config = stream.info().await.unwrap().config.clone();
    assert_eq!(config.subjects, [SUBJECT]);
    assert_eq!((config.storage, config.num_replicas), (StorageType::File, 1));
    assert_eq!(config.duplicate_window, Duration::from_secs(3600));
    let changed = Config { description: Some("an operator's".to_owned()), ..config };
    context.update_stream(changed).await.unwrap();
    let other = format!("{options}\nstream_subjects = [\"orders.>\", \"paid.>\"]");
    publish(&*connected(&server.url(), &other).await, message()).await.unwrap();
    let config = stream.info().await.unwrap().config.clone();
    assert_eq!(config.subjects, [SUBJECT]);
    assert_eq!(config.description.as_deref(), Some("an operator's"));
    // Deleted, it is made again by whoever connects next and publishes.
    context.delete_stream("ORDERS").await.unwrap();
    publish(&*connected(&server.url(), &other).await, message()).await.unwrap();
    let config = stream.info().await.unwrap().config.clone();
    assert_eq!(config.subjects, ["orders.>", "paid.>"]);
    publish(&*sink, message()).await.unwrap();
}

#[tokio::test]
async fn several_relays_can_make_the_same_stream() {
    let server = Server::start(Options::default()).await;
    let spec = constant(&server.url(), "create_missing = true\nstream = \"ORDERS\"");
    let connecting = (0..8).map(|_| spec.connect());
    let connected = futures_util::future::join_all(connecting).await;
    for sink in connected {
        publish(&*sink.unwrap(), message()).await.unwrap();
    }
    assert_eq!(kept(&context(&server).await).await, 8);
}

#[tokio::test]
async fn a_stream_that_cannot_be_made_is_an_operators_matter() {
    let server = Server::start(Options::default()).await;
    make_stream(&context(&server).await, Config::default()).await;
    let overlapping = "create_missing = true\nstream = \"MORE\"";
    let sink = connected(&server.url(), overlapping).await;
    let refused = publish(&*sink, message()).await;
    assert_refused(refused, FailureKind::Misconfigured, "cannot make the stream MORE: subjects");
    let expected = "taken by the stream ORDERS, not by MORE";
    assert_refused(sink.check().await, FailureKind::Misconfigured, expected);
}

#[tokio::test]
async fn a_server_without_streams_is_an_operators_matter() {
    let server = Server::start(Options { has_jetstream: false, ..Options::default() }).await;
    let sink = connected(&server.url(), "").await;
    let expected = "has no JetStream; enable JetStream: jetstream { store_dir";
    assert_refused(publish(&*sink, message()).await, FailureKind::Misconfigured, expected);
    assert_refused(sink.check().await, FailureKind::Misconfigured, expected);
}

#[tokio::test]
async fn an_account_without_streams_is_an_operators_matter() {
    let authorization = "accounts {
        A: { users: [ { user: postrider, password: postrider } ] }
        B: { jetstream: enabled, users: [ { user: other, password: other } ] }
    }";
    let options = Options { authorization: authorization.to_owned(), ..Options::default() };
    let server = Server::start(options).await;
    let sink = connected(&server.url(), "").await;
    let expected = "jetstream: enabled for the relay's account";
    assert_refused(publish(&*sink, message()).await, FailureKind::Misconfigured, expected);
    assert_refused(sink.check().await, FailureKind::Misconfigured, expected);
}

#[tokio::test]
async fn streams_of_a_domain_are_found_there() {
    let jetstream = vec!["domain: hub".to_owned()];
    let server = Server::start(Options { jetstream, ..Options::default() }).await;
    let options = "create_missing = true\nstream = \"ORDERS\"\ndomain = ";
    let sink = connected(&server.url(), &format!("{options} \"hub\"")).await;
    publish(&*sink, message()).await.unwrap();
    assert_eq!(sink.check().await.unwrap(), Vec::<String>::new());
    let elsewhere = connected(&server.url(), &format!("{options} \"spoke\"")).await;
    let refused = publish(&*elsewhere, message()).await;
    assert_refused(refused, FailureKind::Unavailable, "the JetStream domain spoke");
}

/// Anybody may listen to a subject, and answer.
#[tokio::test]
async fn only_a_stream_can_confirm() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    let client = context.client();
    let mut requests = client.subscribe(SUBJECT).await.unwrap();
    client.flush().await.unwrap();
    let answering = tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            for answer in ["ok", "{}", r#"{"stream":"S"}"#] {
                let reply = request.reply.clone().unwrap();
                client.publish(reply, answer.into()).await.unwrap();
            }
        }
    });
    let sink = connected(&server.url(), "ack_timeout = \"5s\"").await;
    let expected = "no stream has confirmed it within 5s";
    assert_refused(publish(&*sink, message()).await, FailureKind::Unavailable, expected);
    make_stream(&context, Config::default()).await;
    publish(&*sink, message()).await.unwrap();
    assert_eq!(kept(&context).await, 1);
    answering.abort();
}

/// A stream that never confirms must not be mistaken for one that is away.
#[tokio::test]
async fn a_stream_that_does_not_confirm_is_found() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    make_stream(&context, Config { no_ack: true, ..Config::default() }).await;
    let sink = connected(&server.url(), "ack_timeout = \"5s\"").await;
    let expected = "nats stream edit ORDERS --ack";
    assert_refused(sink.check().await, FailureKind::Misconfigured, expected);
    let expected = "no_ack must be off";
    assert_refused(publish(&*sink, message()).await, FailureKind::Unavailable, expected);
    // One that is not answered while others are is tried a limited number of times.
    let more = Config {
        name: "MORE".to_owned(),
        subjects: vec!["more.>".to_owned()],
        ..Config::default()
    };
    context.create_stream(more).await.unwrap();
    let answers = sink.publish(&[to("more.a", event()), message()]).await;
    assert_eq!(answers[0], Ok(()));
    assert_refused(answers[1].clone(), FailureKind::Failed, expected);
}

#[tokio::test]
async fn a_check_changes_nothing() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    let making = "create_missing = true\nstream = \"ORDERS\"\nstream_subjects = [\"orders.*\"]";
    let mut sinks = Vec::new();
    for options in ["", making] {
        let sink = connected(&server.url(), options).await;
        // What is to be made may be missing.
        assert_eq!(sink.check().await.is_ok(), options == making);
        let names: Vec<String> = context.stream_names().try_collect().await.unwrap();
        assert_eq!(names, Vec::<String>::new());
        sinks.push(sink);
    }
    make_stream(&context, Config::default()).await;
    let before = context.get_stream("ORDERS").await.unwrap().cached_info().config.clone();
    for sink in sinks {
        sink.check().await.unwrap();
        let after = context.get_stream("ORDERS").await.unwrap().cached_info().clone();
        let state = (after.state.messages, after.state.consumer_count);
        assert_eq!((&after.config, state), (&before, (0, 0)));
    }
}
