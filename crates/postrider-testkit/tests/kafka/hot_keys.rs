//! Many records of one key: they are under way together, and never overtake one another.

use std::collections::VecDeque;

use postrider_relay::sink::FailureKind::Rejected;
use postrider_relay::sink::{Message, Sink};
use postrider_testkit::servers::kafka::{make_topic, read, run_script};
use tokio::time::Instant;

use crate::{DEADLINE, Shared, connect, message, publish_all};

/// Numbered messages of one key; some of them are large.
fn run_of(
    topic: &str,
    numbers: std::ops::Range<u32>,
    bytes: impl Fn(u32) -> usize,
) -> Vec<Message> {
    let body = |number| format!("{number} {}", "x".repeat(bytes(number)));
    numbers.map(|number| message(topic, "hot", body(number))).collect()
}

/// The numbers that a topic has.
fn numbers(brokers: &str, topic: &str) -> Vec<u32> {
    let number = |value: Option<Vec<u8>>| {
        let text = String::from_utf8(value.unwrap()).unwrap();
        text.split_once(' ').unwrap().0.parse().unwrap()
    };
    read(brokers, topic).into_iter().map(|record| number(record.value)).collect()
}

/// How many records each batch of a topic with one partition has.
async fn batches(brokers: &str, topic: &str) -> Vec<usize> {
    let command =
        format!("kafka-log-dirs.sh --bootstrap-server {brokers} --describe --topic-list {topic}");
    let told = run_script(&command).await;
    let folder = told.split("\"logDir\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let folder = folder.expect("the broker says where its log is");
    let file = format!("{folder}/{topic}-0/00000000000000000000.log");
    let told = run_script(&format!("kafka-dump-log.sh --files {file}")).await;
    let counts = told.lines().filter(|line| line.starts_with("baseOffset:"));
    let count = |line: &str| {
        let count = line.split(" count: ").nth(1).and_then(|rest| rest.split(' ').next());
        count.expect("a batch has a count").parse().unwrap()
    };
    counts.map(count).collect()
}

/// Publishes as the pipeline does: goes on after what was taken, with half as many where several
/// were refused together. The answer is what was refused by itself, and what is behind it.
async fn publish_in_order(sink: &dyn Sink, messages: Vec<Message>) -> VecDeque<Message> {
    let started = Instant::now();
    let mut left: VecDeque<Message> = messages.into();
    let mut most = 1000;
    while !left.is_empty() {
        assert!(started.elapsed() < DEADLINE, "{} are left", left.len());
        let call: Vec<Message> = left.iter().take(most).cloned().collect();
        let answers = sink.publish(&call).await;
        let taken = answers.iter().take_while(|answer| answer.is_ok()).count();
        left.drain(..taken);
        let Some(Err(error)) = answers.get(taken) else { continue };
        assert!(answers[taken..].iter().all(Result::is_err), "nothing overtakes: {answers:?}");
        // What is refused alone was refused because of itself.
        if error.in_company && call.len() > 1 {
            most = ((call.len() - taken) / 2).max(1);
        } else {
            assert_eq!(error.kind, Rejected, "{error}");
            break;
        }
    }
    left
}

#[tokio::test]
async fn the_records_of_a_key_in_a_call_are_one_batch() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 1, &[]).await;
    let sink = connect(&url, "").await;
    for (first, last) in [(1, 2), (2, 502), (502, 1002)] {
        publish_all(&*sink, &run_of(&topic, first..last, |_| 100)).await;
    }
    // The first record of a key to a topic goes alone, and so does a call of one.
    assert_eq!(batches(&brokers, &topic).await, [1, 1, 499, 500]);
    // More than a batch can hold goes in several, one after the other.
    publish_all(&*sink, &run_of(&topic, 1002..1502, |_| 5000)).await;
    let batches = batches(&brokers, &topic).await;
    assert_eq!(batches.iter().sum::<usize>(), 1501);
    assert!((7..=9).contains(&batches.len()), "{batches:?}");
    assert_eq!(numbers(&brokers, &topic), (1..1502).collect::<Vec<_>>());
}

/// A record in the middle is more than a topic takes since a moment ago, of which nobody knows: the
/// broker refuses the whole batch, then its size is known.
#[tokio::test]
async fn a_limit_lowered_in_mid_stream_lets_nothing_overtake() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 1, &[]).await;
    let sink = connect(&url, "").await;
    publish_all(&*sink, &run_of(&topic, 1..101, |_| 100)).await;
    let lower = format!(
        "kafka-configs.sh --bootstrap-server {brokers} --alter --topic {topic} --add-config \
         max.message.bytes=20000"
    );
    run_script(&lower).await;
    let large = |number| if number == 700 { 30_000 } else { 100 };
    let left = publish_in_order(&*sink, run_of(&topic, 101..1001, large)).await;
    assert_eq!(left.len(), 301, "the large one, and what is behind it");
    assert_eq!(numbers(&brokers, &topic), (1..700).collect::<Vec<_>>());
    // Without it, the rest goes on where it was.
    let left = publish_in_order(&*sink, left.into_iter().skip(1).collect()).await;
    assert!(left.is_empty());
    let expected: Vec<u32> = (1..700).chain(701..1001).collect();
    assert_eq!(numbers(&brokers, &topic), expected);
}

/// The topic takes only records of this very millisecond: batches are refused again and again, some
/// as a whole and some because of single records.
#[tokio::test]
async fn batches_refused_again_and_again_let_nothing_overtake() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 1, &[("message.timestamp.before.max.ms", "0")]).await;
    let sink = connect(&url, "").await;
    let mut left = run_of(&topic, 1..301, |_| 100);
    for _ in 0..10 {
        left = publish_in_order(&*sink, left).await.into();
        let taken = 300 - left.len() as u32;
        assert_eq!(numbers(&brokers, &topic), (1..=taken).collect::<Vec<_>>());
    }
}

/// Nothing more of any key can be sent until it is answered.
#[tokio::test]
async fn a_call_that_is_not_full_does_not_wait_for_more() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 3, &[]).await;
    let sink = connect(&url, "linger = \"20s\"").await;
    // Until the partitions are known.
    publish_all(&*sink, &[message(&topic, "first", "0 ")]).await;
    let others: Vec<_> = (0..100).map(|key| message(&topic, &key.to_string(), "0 ")).collect();
    let started = Instant::now();
    publish_all(&*sink, &others).await;
    publish_all(&*sink, &run_of(&topic, 0..100, |_| 100)).await;
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
}

/// Calls of many keys beside those of a hot one.
#[tokio::test]
async fn hot_keys_and_others_are_under_way_at_once() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 3, &[]).await;
    let sink = connect(&url, "").await;
    let others = |first: u32| -> Vec<Message> {
        (first..first + 100).map(|key| message(&topic, &key.to_string(), "0 ")).collect()
    };
    for round in 0..10 {
        let hot = run_of(&topic, round * 100..(round + 1) * 100, |_| 100);
        let (first, second) = (others(round * 200), others(round * 200 + 100));
        tokio::join!(
            publish_all(&*sink, &hot),
            publish_all(&*sink, &first),
            publish_all(&*sink, &second)
        );
    }
    let records = read(&brokers, &topic);
    assert_eq!(records.len(), 3000);
    let hot = records.iter().filter(|record| record.key.as_deref() == Some(b"hot"));
    let number = |value: &Option<Vec<u8>>| {
        let text = String::from_utf8(value.clone().unwrap()).unwrap();
        text.split_once(' ').unwrap().0.parse::<u32>().unwrap()
    };
    let order: Vec<u32> = hot.map(|record| number(&record.value)).collect();
    assert_eq!(order, (0..1000).collect::<Vec<_>>());
}
