//! What a server or a stream has no room for.

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use postrider_relay::sink::FailureKind;
use postrider_testkit::servers::nats::{Options, Server};

use crate::{
    SUBJECT, assert_refused, connected, context, event, kept, make_stream, message, publish, to,
};

#[tokio::test]
async fn a_full_stream_is_waited_for() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    let full = Config { max_messages: 3, discard: DiscardPolicy::New, ..Config::default() };
    make_stream(&context, full).await;
    let sink = connected(&server.url(), "").await;
    let batch: Vec<_> = (0..5).map(|_| message()).collect();
    let answers = sink.publish(&batch).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 3);
    let expected = "the stream ORDERS is full (maximum messages exceeded)";
    assert_refused(answers[4].clone(), FailureKind::Throttled, expected);
    context.get_stream("ORDERS").await.unwrap().purge().await.unwrap();
    publish(&*sink, batch[4].clone()).await.unwrap();
    let by_bytes = Config { max_bytes: 2000, discard: DiscardPolicy::New, ..Config::default() };
    context.delete_stream("ORDERS").await.unwrap();
    make_stream(&context, by_bytes).await;
    let large = to(SUBJECT, event().payload(vec![b'x'; 3000], "text/plain"));
    assert_refused(publish(&*sink, large).await, FailureKind::Throttled, "is full");
}

#[tokio::test]
async fn a_full_store_is_waited_for() {
    let options =
        Options { jetstream: vec!["max_file_store: 1MB".to_owned()], ..Options::default() };
    let server = Server::start(options).await;
    let context = context(&server).await;
    make_stream(&context, Config::default()).await;
    let sink = connected(&server.url(), "").await;
    let large = || to(SUBJECT, event().payload(vec![b'x'; 100_000], "text/plain"));
    let batch: Vec<_> = (0..30).map(|_| large()).collect();
    let answers = sink.publish(&batch).await;
    let error = answers.into_iter().find_map(Result::err).expect("the store is full");
    let waits = [FailureKind::Throttled, FailureKind::Unavailable];
    assert!(waits.contains(&error.kind), "{error:?}");
    context.get_stream("ORDERS").await.unwrap().purge().await.unwrap();
    publish(&*sink, message()).await.unwrap();
}

#[tokio::test]
async fn a_message_that_the_stream_finds_too_large_is_rejected_with_its_size() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    make_stream(&context, Config { max_message_size: 1000, ..Config::default() }).await;
    let sink = connected(&server.url(), "").await;
    let large = to(SUBJECT, event().payload(vec![b'x'; 1234], "text/plain"));
    let answers = sink.publish(&[message(), large, message()]).await;
    assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
    let expected = "the message has 1234 bytes and headers, more than the stream";
    assert_refused(answers[1].clone(), FailureKind::Rejected, expected);
}

/// The server would hang up on one that is a byte too large.
#[tokio::test]
async fn the_servers_limit_is_met_to_the_byte() {
    let settings = vec!["max_payload: 4096".to_owned()];
    let mut server = Server::start(Options { settings, ..Options::default() }).await;
    let context = context(&server).await;
    make_stream(&context, Config::default()).await;
    let sink = connected(&server.url(), "").await;
    assert_eq!(sink.capabilities().event_bytes_max, 4096);
    // The same id and time, so that headers have the same length.
    let id = event().build().unwrap().id();
    let sized = |bytes: usize| {
        let event = event().id(id).occurred_at(std::time::UNIX_EPOCH);
        to(SUBJECT, event.payload(vec![b'x'; bytes], "text/plain"))
    };
    let error = publish(&*sink, sized(4096)).await.unwrap_err();
    let said = error.message.split(' ').find_map(|word| word.parse::<usize>().ok()).unwrap();
    let headers = said - 4096;
    assert!(error.message.contains("the server takes 4096 (max_payload)"), "{error}");
    let too_large = publish(&*sink, sized(4097 - headers)).await;
    assert_refused(too_large, FailureKind::Rejected, "has 4097 bytes with its headers");
    publish(&*sink, sized(4096 - headers)).await.unwrap();
    assert_eq!(kept(&context).await, 1);
    // A limit that has changed is known with the next connection.
    server.stop().await;
    server.change(|options| options.settings = vec!["max_payload: 2048".to_owned()]);
    server.start_again().await;
    let too_large = publish(&*sink, sized(2049)).await;
    assert_refused(too_large, FailureKind::Rejected, "the server takes 2048");
    publish(&*sink, sized(1000)).await.unwrap();
}

#[tokio::test]
async fn a_topic_that_is_no_subject_is_rejected_alone() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    make_stream(&context, Config::default()).await;
    let sink = connected(&server.url(), "").await;
    let mut bad = vec![message()];
    for topic in ["orders.*", "orders. x", "$JS.API.STREAM.DELETE.ORDERS", "orders..x"] {
        let mut one = message();
        one.topic = topic.to_owned();
        bad.push(one);
    }
    bad.push(message());
    let answers = sink.publish(&bad).await;
    let (first, last) = (answers.first().unwrap(), answers.last().unwrap());
    assert_eq!((first, last), (&Ok(()), &Ok(())));
    for answer in &answers[1..5] {
        assert_refused(answer.clone(), FailureKind::Rejected, "is no subject of NATS");
    }
    assert_eq!(kept(&context).await, 2);
}
