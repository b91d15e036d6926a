//! What a check finds less safe than it could be.

use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{Config, RetentionPolicy, StorageType};
use postrider_relay::sink::FailureKind;
use postrider_testkit::servers::nats::{Options, Server};

use crate::{assert_refused, connected, context, make_stream, spec};

const HOUR: Duration = Duration::from_secs(3600);

fn safe() -> Config {
    Config { duplicate_window: HOUR, ..Config::default() }
}

async fn cautions(config: Config) -> Vec<String> {
    let server = Server::start(Options::default()).await;
    make_stream(&context(&server).await, config).await;
    connected(&server.url(), "").await.check().await.unwrap()
}

#[tokio::test]
async fn a_safe_stream_is_fine() {
    assert_eq!(cautions(safe()).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_duplicate_window_that_is_shorter_than_the_retries_is_named_with_both() {
    let found = cautions(Config { duplicate_window: HOUR / 12, ..safe() }).await;
    let expected = "the stream ORDERS knows duplicates for 5m, but an event may be tried for 1h, \
                    and could be kept twice; nats stream edit ORDERS --dupe-window=1h";
    assert_eq!(found, [expected]);
}

#[tokio::test]
async fn memory_is_named() {
    let found = cautions(Config { storage: StorageType::Memory, ..safe() }).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("in memory") && found[0].contains("--storage=file"), "{found:?}");
}

#[tokio::test]
async fn a_stream_that_keeps_nothing_without_consumers_is_named() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    make_stream(&context, Config { retention: RetentionPolicy::Interest, ..safe() }).await;
    let sink = connected(&server.url(), "").await;
    let found = sink.check().await.unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("retention interest"), "{found:?}");
    let stream = context.get_stream("ORDERS").await.unwrap();
    let durable = pull::Config { durable_name: Some("one".to_owned()), ..Default::default() };
    stream.create_consumer(durable).await.unwrap();
    assert_eq!(sink.check().await.unwrap(), Vec::<String>::new());
}

#[tokio::test]
async fn a_sealed_stream_takes_nothing() {
    let server = Server::start(Options::default()).await;
    let context = context(&server).await;
    make_stream(&context, safe()).await;
    let mut config = context.get_stream("ORDERS").await.unwrap().cached_info().config.clone();
    config.sealed = true;
    context.update_stream(config).await.unwrap();
    let sink = connected(&server.url(), "").await;
    assert_refused(sink.check().await, FailureKind::Misconfigured, "is sealed");
}

/// Whether a stream takes each of its subjects shows when they are known.
#[tokio::test]
async fn a_topic_that_differs_by_event_is_not_looked_for() {
    let server = Server::start(Options::default()).await;
    let sink = spec(&server.url(), "").connect().await.unwrap();
    assert_eq!(sink.check().await.unwrap(), Vec::<String>::new());
}
