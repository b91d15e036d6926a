//! Which partition a record goes to.

use std::collections::BTreeMap;

use postrider::Event;
use postrider_relay::sink::FailureKind::Rejected;
use postrider_testkit::servers::kafka::{make_topic, read, run_script, run_script_with};

use crate::{
    Shared, assert_refused, connect, encode, message, publish, publish_all, publish_at_last,
};

/// Keys with their hash, of the tests of Kafka itself.
const HASHES: [(&str, i32); 6] = [
    ("21", -973_932_308),
    ("foobar", -790_332_482),
    ("a-little-bit-long-string", -985_981_536),
    ("a-little-bit-longer-string", -1_486_304_829),
    ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
    ("abc", 479_470_107),
];

const OTHER_KEYS: [&str; 8] = ["", "1", "42", "Ünïcödé", "заказ-7", "注文", "🦀", "a b"];

/// The partition of each key.
fn partitions_of(brokers: &str, topic: &str) -> BTreeMap<String, i32> {
    let record = |record: postrider_testkit::servers::kafka::Read| {
        (String::from_utf8(record.key.unwrap()).unwrap(), record.partition)
    };
    read(brokers, topic).into_iter().map(record).collect()
}

#[tokio::test]
async fn keys_are_where_the_java_client_puts_them() {
    const PARTITIONS: i32 = 61;
    let Shared { url, brokers } = Shared::broker();
    let ours = make_topic(&brokers, PARTITIONS, &[]).await;
    let javas = make_topic(&brokers, PARTITIONS, &[]).await;
    let keys = || HASHES.iter().map(|(key, _)| *key).chain(OTHER_KEYS);
    let messages: Vec<_> = keys()
        .map(|key| {
            let mut message = message(&ours, "any", "x");
            message.key = key.to_owned();
            message
        })
        .collect();
    let sink = connect(&url, "").await;
    publish_all(&*sink, &messages).await;
    let found = partitions_of(&brokers, &ours);
    assert_eq!(found.len(), keys().count());
    for (key, hash) in HASHES {
        assert_eq!(found[key], (hash & i32::MAX) % PARTITIONS, "{key}");
    }
    let produce = format!(
        "kafka-console-producer.sh --bootstrap-server {brokers} --topic {javas} --property \
         parse.key=true --property key.separator=|"
    );
    let lines: String = keys().map(|key| format!("{key}|x\n")).collect();
    run_script_with(&produce, &lines).await;
    assert_eq!(found, partitions_of(&brokers, &javas));
}

#[tokio::test]
async fn an_event_can_name_its_partition() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 4, &[]).await;
    let event = |key: &str, partition: &str| {
        let event = Event::builder("Order", key, "OrderPaid").topic(&topic);
        encode(event.header("shard", partition).build().unwrap())
    };
    let sink = connect(&url, "partition = \"{header.shard}\"").await;
    // What cannot go anywhere stops none of those around it.
    let messages = [event("a", "0"), event("c", "4"), event("d", "x"), event("b", "3")];
    let answers = sink.publish(&messages).await;
    assert_eq!((&answers[0], &answers[3]), (&Ok(()), &Ok(())));
    let expected = format!("the topic {topic} does not have: it has 4, from 0");
    assert_refused(answers[1].clone(), Rejected, &expected);
    assert_refused(answers[2].clone(), Rejected, "it is not a whole number from 0");
    let without = message(&topic, "e", "x");
    assert_refused(publish(&*sink, without).await, Rejected, "cannot work out the partition");
    let found = partitions_of(&brokers, &topic);
    assert_eq!(found, [("a".to_owned(), 0), ("b".to_owned(), 3)].into());

    let more = format!(
        "kafka-topics.sh --bootstrap-server {brokers} --alter --topic {topic} --partitions 5"
    );
    run_script(&more).await;
    publish_at_last(&*sink, event("c", "4"), Rejected).await;
    assert_eq!(partitions_of(&brokers, &topic)["c"], 4);
}
