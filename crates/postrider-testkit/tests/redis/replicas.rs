//! Events that replicas must have, and servers that are replicas.

use postrider_relay::sink::FailureKind::Unavailable;
use postrider_testkit::servers::redis::Server;
use redis::Value;
use tokio::time::timeout;

use crate::{
    DEADLINE, failing, is, kept, message, messages, published, redis_cli, run, server, sink, until,
};

async fn has_replica(server: &Server, state: &str) -> bool {
    let Value::BulkString(info) = run(server, "INFO replication").await else { panic!() };
    String::from_utf8_lossy(&info).contains(state)
}

async fn replicated() -> (Server, Server) {
    let primary = server(&["repl-diskless-sync-delay 0"]).await;
    let replica = primary.replica().await;
    until("it follows", || has_replica(&primary, "state=online")).await;
    (primary, replica)
}

const ONE: &str = "wait_replicas = 1\nwait_timeout = \"10s\"";
const IMPATIENT: &str = "wait_replicas = 1\nwait_timeout = \"300ms\"";

#[tokio::test]
async fn ok_means_that_replicas_have_it() {
    let (primary, mut replica) = replicated().await;
    published(&*sink(&primary.url(), ONE).await, &messages("s", 1..=3)).await;
    assert_eq!(kept(&replica, "s").await, [1, 2, 3]);

    replica.pause(true);
    let sink = sink(&primary.url(), IMPATIENT).await;
    let error = failing(&*sink, message("s", 4)).await;
    is(&error, Unavailable, "0 replicas of");
    // It is there already, and still nobody else has it: for a new connection, too.
    assert_eq!(kept(&primary, "s").await.len(), 4);
    is(&failing(&*sink, message("s", 4)).await, Unavailable, "wait_replicas is 1");
    let other = crate::sink(&primary.url(), IMPATIENT).await;
    is(&failing(&*other, message("s", 4)).await, Unavailable, "wait_replicas is 1");

    replica.pause(false);
    let caught_up = || async { sink.publish(&[message("s", 4)]).await[0].is_ok() };
    until("the replica goes on", caught_up).await;
    assert_eq!(kept(&replica, "s").await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn too_few_replicas_are_found_by_a_check() {
    let primary = server(&[]).await;
    let sink = sink(&primary.url(), ONE).await;
    is(&sink.check().await.unwrap_err(), Unavailable, "0 replicas of");
    let strict = server(&["min-replicas-to-write 1"]).await;
    let sink = crate::sink(&strict.url(), "").await;
    is(&failing(&*sink, message("s", 1)).await, Unavailable, "answered NOREPLICAS");
    run(&strict, "CONFIG SET min-replicas-to-write 0").await;
    published(&*sink, &[message("s", 1)]).await;
}

/// F56.
#[tokio::test]
async fn a_replica_is_waited_for_until_it_is_the_primary() {
    let (mut primary, replica) = replicated().await;
    published(&*sink(&primary.url(), ONE).await, &messages("s", 1..=3)).await;
    let sink = sink(&replica.url(), "").await;
    is(&sink.check().await.unwrap_err(), Unavailable, "is a replica, which takes no writes");
    is(&failing(&*sink, message("s", 4)).await, Unavailable, "answered READONLY");
    // The next call is a new connection, which may lead elsewhere.
    let is_gone = || async {
        let clients = redis_cli(&replica, &["CLIENT", "LIST"]).await.stdout;
        !String::from_utf8_lossy(&clients).contains("name=postrider")
    };
    until("it hangs up", is_gone).await;
    primary.kill9().await;
    run(&replica, "REPLICAOF NO ONE").await;
    // It has what the old primary has remembered.
    published(&*sink, &messages("s", 2..=4)).await;
    assert!(sink.check().await.is_ok());
    assert_eq!(kept(&replica, "s").await, [1, 2, 3, 4]);
}

/// F46: it is there, and says nothing.
#[tokio::test]
async fn a_server_that_stands_still_is_unavailable() {
    let mut server = server(&[]).await;
    let options = "response_timeout = \"3s\"\nconnect_timeout = \"3s\"";
    let sink = sink(&server.url(), options).await;
    published(&*sink, &[message("s", 1)]).await;
    server.pause(true);
    for _ in 0..2 {
        let answer = timeout(DEADLINE, failing(&*sink, message("s", 2))).await;
        is(&answer.expect("it is given up"), Unavailable, "did not answer within 3s");
    }
    server.pause(false);
    published(&*sink, &messages("s", 2..=3)).await;
    // The calls that were given up arrive, too, and change nothing.
    until("it has heard them all", || async { kept(&server, "s").await == [1, 2, 3] }).await;
}
