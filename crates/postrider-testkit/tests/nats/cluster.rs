//! Streams on several servers.

use std::time::Duration;

use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use postrider_relay::sink::FailureKind;
use postrider_testkit::servers::nats::{Server, connect};

use crate::{assert_refused, connected, message, publish, spec, until};

/// Makes a stream, once the cluster can.
async fn make(server: &Server, replicas: usize) -> Context {
    let context = jetstream::new(connect(&server.url()).await);
    let config = Config {
        name: "ORDERS".to_owned(),
        subjects: vec!["orders.>".to_owned()],
        num_replicas: replicas,
        duplicate_window: Duration::from_secs(3600),
        ..Config::default()
    };
    let made = || async { context.create_stream(config.clone()).await.is_ok() };
    until("the cluster has a leader", made).await;
    context
}

/// A stream that loses its leader takes nothing for a moment, and its subject looks like one that
/// no stream takes. That must not stop a pipeline.
#[tokio::test]
async fn a_stream_without_a_leader_is_waited_for() {
    let mut servers = Server::cluster().await;
    make(&servers[0], 3).await;
    let url = servers[0].url();
    let sink = connected(&url, "ack_timeout = \"4s\"").await;
    publish(&*sink, message()).await.unwrap();
    assert_eq!(sink.check().await.unwrap(), Vec::<String>::new());
    let (left, others) = servers.split_at_mut(1);
    for server in &mut *others {
        server.kill9().await;
    }
    // One of three is no majority.
    for _ in 0..5 {
        let error = publish(&*sink, message()).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Unavailable, "{error}");
    }
    for server in &mut *others {
        server.start_again().await;
    }
    until("the stream has a leader", || async { publish(&*sink, message()).await.is_ok() }).await;
    // Any server will do.
    let both = format!("{},{}", url, others[0].address());
    let sink = spec(&both, "stream = \"ORDERS\"").connect().await.unwrap();
    publish(&*sink, message()).await.unwrap();
    left[0].kill9().await;
    until("the other server is used", || async { publish(&*sink, message()).await.is_ok() }).await;
}

#[tokio::test]
async fn one_replica_in_a_cluster_is_named() {
    let servers = Server::cluster().await;
    let context = make(&servers[0], 1).await;
    let sink = connected(&servers[1].url(), "").await;
    let cautions = sink.check().await.unwrap();
    assert_eq!(cautions.len(), 1, "{cautions:?}");
    assert!(cautions[0].contains("nats stream edit ORDERS --replicas=3"), "{cautions:?}");
    // What is not there is not there, in a cluster, too.
    context.delete_stream("ORDERS").await.unwrap();
    let refused = publish(&*sink, message()).await;
    assert_refused(refused, FailureKind::Misconfigured, "--replicas=3");
}
