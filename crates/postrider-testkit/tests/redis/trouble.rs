//! What the server refuses, and what the pipeline does about it.

use bytes::Bytes;
use postrider_relay::sink::FailureKind::{Misconfigured, Rejected, Throttled, Unavailable};
use postrider_testkit::servers::redis::connect;
use redis::cmd;

use crate::{failing, is, kept, message, messages, published, redis_cli, run, server, sink, until};
use crate::{sink_of, spec};

/// The command in the error does what it says.
#[tokio::test]
async fn a_missing_stream_comes_with_the_command_that_makes_it() {
    let server = server(&[]).await;
    let sink = sink_of("orders", &server.url(), "").await;
    let error = failing(&*sink, message("orders", 1)).await;
    is(&error, Misconfigured, "has no stream orders");
    assert_eq!(sink.check().await.unwrap_err(), error);
    let command = error.message.split('`').nth(1).unwrap();
    assert_eq!(command, "redis-cli XGROUP CREATE orders GROUP 0 MKSTREAM");
    let args: Vec<_> = command.split(' ').skip(1).collect();
    redis_cli(&server, &args).await;
    assert!(sink.check().await.is_ok());
    published(&*sink, &[message("orders", 1)]).await;
    let made = spec(&server.url(), "create_missing = true").connect().await.unwrap();
    published(&*made, &[message("others", 2)]).await;
    assert_eq!(kept(&server, "others").await, [2]);
}

#[tokio::test]
async fn a_key_of_another_kind_is_named() {
    let server = server(&[]).await;
    run(&server, "SET orders x").await;
    for options in ["create_missing = true", "maxlen = 5"] {
        let sink = sink_of("orders", &server.url(), options).await;
        let error = failing(&*sink, message("orders", 1)).await;
        is(&error, Misconfigured, "`redis-cli TYPE orders` says what");
        assert_eq!(sink.check().await.unwrap_err(), error);
    }
}

#[tokio::test]
async fn a_server_without_memory_is_left_alone_until_it_has_some() {
    let server = server(&["maxmemory 4mb", "maxmemory-policy noeviction"]).await;
    let sink = sink(&server.url(), "").await;
    let large = |number| {
        let mut message = message("s", number);
        message.body = Bytes::from(vec![b'x'; 100_000]);
        message
    };
    let mut sent = 0;
    let error = loop {
        sent += 1;
        assert!(sent < 100, "4 MB are enough for 10 MB");
        if let Err(error) = sink.publish(&[large(sent)]).await.remove(0) {
            break error;
        }
    };
    is(&error, Throttled, "answered OOM");
    is(&error, Throttled, "raise maxmemory");
    assert_eq!(kept(&server, "s").await.len(), sent as usize - 1);
    run(&server, "XTRIM s MAXLEN 0").await;
    published(&*sink, &[large(sent)]).await;
    assert_eq!(kept(&server, "s").await, [sent]);
}

/// A snapshot that fails makes the server refuse all writes.
#[tokio::test]
async fn a_server_that_cannot_write_its_files_is_unavailable() {
    let server = server(&["save 3600 1000000", "dbfilename appendonlydir"]).await;
    let sink = sink(&server.url(), "").await;
    published(&*sink, &[message("s", 1)]).await;
    run(&server, "BGSAVE").await;
    let refused = || async { sink.publish(&[message("s", 2)]).await[0].is_err() };
    until("the snapshot fails", refused).await;
    is(&failing(&*sink, message("s", 3)).await, Unavailable, "answered MISCONF");
    run(&server, "CONFIG SET stop-writes-on-bgsave-error no").await;
    published(&*sink, &messages("s", 2..=3)).await;
    assert_eq!(kept(&server, "s").await, [1, 2, 3]);
}

#[tokio::test]
async fn a_server_that_runs_anothers_script_is_unavailable() {
    let server = server(&["busy-reply-threshold 50"]).await;
    let sink = sink(&server.url(), "").await;
    published(&*sink, &[message("s", 1)]).await;
    let mut other = connect(&server.url()).await;
    let endless = tokio::spawn(async move {
        let mut eval = cmd("EVAL");
        eval.arg("while true do end").arg(0);
        drop(eval.exec_async(&mut other).await);
    });
    let mut number = 1;
    loop {
        number += 1;
        match sink.publish(&[message("s", number)]).await.remove(0) {
            Ok(()) => tokio::task::yield_now().await,
            Err(error) => break is(&error, Unavailable, "SCRIPT KILL"),
        }
    }
    redis_cli(&server, &["SCRIPT", "KILL"]).await;
    endless.await.unwrap();
    published(&*sink, &[message("s", number)]).await;
}

#[tokio::test]
async fn a_cluster_is_refused() {
    let server = server(&["cluster-enabled yes"]).await;
    let sink = sink(&server.url(), "").await;
    is(&failing(&*sink, message("s", 1)).await, Unavailable, "answered CLUSTERDOWN");
    is(&sink.check().await.unwrap_err(), Misconfigured, "a node of a cluster");
    // The slot of `s`, and no other one.
    run(&server, "CLUSTER ADDSLOTSRANGE 0 16383").await;
    let answers = || async { sink.publish(&[message("s", 1)]).await.remove(0) };
    until("the cluster is up", || async { answers().await.is_ok() }).await;
    let error = sink.publish(&[message("s", 2), message("t", 3)]).await.remove(0);
    is(&error.unwrap_err(), Misconfigured, "answered CROSSSLOT");
    assert_eq!(kept(&server, "s").await, [1]);
}

/// F54: the limit is known from the first connection on.
#[tokio::test]
async fn what_the_server_does_not_take_is_rejected_with_its_size() {
    let server = server(&["proto-max-bulk-len 1mb"]).await;
    let sink = sink(&server.url(), "").await;
    let mut large = message("s", 1);
    large.body = Bytes::from(vec![b'x'; 2 * 1024 * 1024]);
    let answers = sink.publish(&[large, message("s", 2)]).await;
    is(answers[0].as_ref().unwrap_err(), Rejected, "the message has 2097152 bytes");
    is(answers[1].as_ref().unwrap_err(), Unavailable, "another message of the call is too large");
    assert_eq!(sink.capabilities().event_bytes_max, 1024 * 1024);
    published(&*sink, &[message("s", 2)]).await;
    assert_eq!(kept(&server, "s").await, [2]);
}

#[tokio::test]
async fn a_server_that_is_full_is_unavailable() {
    let server = server(&["maxclients 1"]).await;
    let _first = connect(&server.url()).await;
    let sink = sink(&server.url(), "").await;
    is(&failing(&*sink, message("s", 1)).await, Unavailable, "raise maxclients");
}
