//! How large a record may be, and how fast they may come.

use std::time::Duration;

use postrider_relay::sink::FailureKind::{Failed, Rejected};
use postrider_relay::sink::Message;
use postrider_testkit::servers::kafka::{make_topic, read, run_script};
use tokio::time::Instant;

use crate::{
    DEADLINE, Shared, assert_refused, command_in, connect, message, new_name, publish, publish_all,
    publish_at_last,
};

/// Messages of different keys, each with so many bytes.
fn messages(topic: &str, count: usize, bytes: usize) -> Vec<Message> {
    (0..count).map(|key| message(topic, &key.to_string(), vec![b'x'; bytes])).collect()
}

async fn configure(brokers: &str, topic: &str, setting: &str) {
    let command = format!(
        "kafka-configs.sh --bootstrap-server {brokers} --alter --topic {topic} --add-config {setting}"
    );
    run_script(&command).await;
}

#[tokio::test]
async fn a_record_that_is_too_large_goes_after_the_command_that_the_error_names() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 1, &[("max.message.bytes", "20000")]).await;
    let sink = connect(&url, "").await;
    let mut call = messages(&topic, 500, 200);
    call.push(message(&topic, "large", vec![b'x'; 30_000]));
    let mut answers = sink.publish(&call).await;
    let told = assert_refused(answers.pop().unwrap(), Rejected, "takes at most 20000");
    assert!(told.starts_with("the record has 30"), "{told}");
    assert!(answers.iter().all(Result::is_ok), "no batch is too large");
    assert_eq!(read(&brokers, &topic).len(), 500);

    run_script(&command_in(&told, &brokers)).await;
    publish_at_last(&*sink, call.pop().unwrap(), Rejected).await;
    assert_eq!(read(&brokers, &topic).len(), 501);
}

#[tokio::test]
async fn a_limit_that_is_lowered_is_kept_to() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 1, &[]).await;
    // Enough time for a batch to fill.
    let sink = connect(&url, "linger = \"50ms\"").await;
    publish_all(&*sink, &messages(&topic, 10, 200)).await;
    configure(&brokers, &topic, "max.message.bytes=20000").await;
    let mut call = messages(&topic, 500, 200);
    call.push(message(&topic, "large", vec![b'x'; 30_000]));
    // The broker may hear of it a moment later.
    let started = Instant::now();
    let (mut first, mut sent) = (Vec::new(), 10);
    while !first.iter().any(Result::is_err) {
        assert!(started.elapsed() < DEADLINE, "no batch is too large");
        first = sink.publish(&call).await;
        sent += first.iter().filter(|answer| answer.is_ok()).count();
    }
    for answer in first.into_iter().filter(Result::is_err) {
        assert_refused(answer, Failed, "refused a batch as too large");
    }
    let mut answers = sink.publish(&call).await;
    assert_refused(answers.pop().unwrap(), Rejected, "takes at most 20000");
    assert!(answers.iter().all(Result::is_ok), "the new limit is known");
    sent += answers.len();
    assert_eq!(read(&brokers, &topic).len(), sent, "what failed was not written");
}

/// A topic with small records has small batches, and another one does not suffer from it.
#[tokio::test]
async fn each_topic_has_its_own_limit() {
    let Shared { url, brokers } = Shared::broker();
    let small = make_topic(&brokers, 1, &[("max.message.bytes", "2000")]).await;
    let large = make_topic(&brokers, 1, &[("max.message.bytes", "2000000")]).await;
    let sink = connect(&url, "").await;
    let mut call = messages(&small, 100, 200);
    // With its headers it is more than topics take by default.
    call.extend(messages(&large, 1, 1_048_576));
    publish_all(&*sink, &call).await;
    assert_eq!(read(&brokers, &large)[0].value.as_ref().unwrap().len(), 1_048_576);
    assert_eq!(read(&brokers, &small).len(), 100);
}

#[tokio::test]
async fn a_quota_slows_down_and_refuses_nothing() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 1, &[]).await;
    let client = new_name();
    let quota = format!(
        "kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type clients --entity-name \
         {client} --add-config producer_byte_rate=50000"
    );
    run_script(&quota).await;
    let sink = connect(&url, &format!("client = {{ \"client.id\" = \"{client}\" }}")).await;
    assert_eq!(publish(&*sink, message(&topic, "first", "a")).await, Ok(()));
    let started = Instant::now();
    // A quota is for eleven seconds together; once they are used up, a broker answers late.
    for _ in 0..16 {
        let answers = sink.publish(&messages(&topic, 50, 1000)).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    }
    let took = started.elapsed();
    assert!(took > Duration::from_secs(2), "800 kB took {took:?}");
    assert_eq!(read(&brokers, &topic).len(), 801);
}
