//! Transactions: who may go on, what is seen of them, and what is read when a relay takes over.

use std::time::Duration;

use postrider_relay::sink::FailureKind::{Misconfigured, Unavailable};
use postrider_relay::sink::{Message, Sink};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::kafka::{
    Options, Server, make_topic, make_topic_as, read, run_script,
};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use tokio::time::{Instant, sleep};

use crate::{
    DEADLINE, Shared, assert_refused, check_at_last, command_in, message, publish, publish_all,
    publish_all_at_last, publish_at_last, room_for_broker, spec,
};

const WINDOW: usize = 8;
/// How much later than a sink the pipeline gives up.
const MARGIN: Duration = Duration::from_secs(5);
/// How a topic of progress is made where the sink does not make it.
const COMPACTED: [(&str, &str); 1] = [("cleanup.policy", "compact")];

/// The relays of one pipeline, which has a topic and a topic for its progress.
struct Pipeline {
    shared: Shared,
    topic: String,
    progress: String,
}

impl Pipeline {
    async fn new() -> Self {
        Self::at(Shared::broker(), &[]).await
    }

    /// At a broker, with settings of its topic.
    async fn at(shared: Shared, settings: &[(&str, &str)]) -> Self {
        let topic = make_topic(&shared.brokers, 3, settings).await;
        Self { progress: format!("{topic}-progress"), shared, topic }
    }

    fn spec(&self, more: &str) -> SinkSpec {
        let options = format!(
            "exactly_once = true\nprogress_topic = \"{}\"\ntransactional_id = \"{}\"\n{more}",
            self.progress, self.topic
        );
        let pipeline = PipelineFacts { window_events: WINDOW, ..PipelineFacts::default() };
        SinkSpec { pipeline, ..spec(&self.shared.url, &options) }
    }

    async fn relay(&self) -> Box<dyn Sink> {
        self.relay_with("create_missing = true\nreplication_factor = 1").await
    }

    async fn relay_with(&self, more: &str) -> Box<dyn Sink> {
        self.spec(more).connect().await.expect("the sink can be connected")
    }

    /// Makes the topic of progress.
    async fn make_progress(&self, settings: &[(&str, &str)]) {
        make_topic_as(&self.shared.brokers, &self.progress, 1, 1, settings).await;
    }

    fn messages(&self, numbers: std::ops::Range<u32>) -> Vec<Message> {
        numbers.map(|n| message(&self.topic, &format!("k{}", n % 3), n.to_string())).collect()
    }

    /// What a reader of committed records sees, in order of numbers.
    fn seen(&self) -> Vec<u32> {
        let records = read(&self.shared.brokers, &self.topic).into_iter();
        let number = |value: Vec<u8>| String::from_utf8(value).unwrap().parse().unwrap();
        let mut seen: Vec<u32> = records.map(|record| number(record.value.unwrap())).collect();
        seen.sort_unstable();
        seen
    }
}

/// Tells a relay that events are settled, as its pipeline does.
fn settle(relay: &dyn Sink, messages: &[Message]) {
    let ids: Vec<_> = messages.iter().map(|message| message.event.id()).collect();
    relay.settled(&ids, &[]);
}

/// G-04: published and not settled, it comes back to the relay that takes over.
#[tokio::test]
async fn what_comes_back_is_answered_and_not_sent_again() {
    let pipeline = Pipeline::new().await;
    let first = pipeline.messages(0..20);
    let relay = pipeline.relay().await;
    for call in first.chunks(7) {
        publish_all(&*relay, call).await;
    }
    drop(relay);
    // It died before the last events were settled: they come back, with new ones behind them.
    let relay = pipeline.relay().await;
    let again = [&first[12..], &pipeline.messages(20..25)].concat();
    publish_all(&*relay, &again).await;
    assert_eq!(pipeline.seen(), (0..25).collect::<Vec<_>>());
    // Whoever publishes it once more on purpose, after it was settled, is not kept from it.
    settle(&*relay, &again);
    publish_all(&*relay, &first[12..13]).await;
    assert_eq!(pipeline.seen().iter().filter(|number| **number == 12).count(), 2);
}

/// As many relays as one likes, each of which dies after a call, whatever its size.
#[tokio::test]
async fn relays_that_take_turns_repeat_nothing() {
    let pipeline = Pipeline::new().await;
    let all = pipeline.messages(0..40);
    let mut start = 0;
    for size in [1, 8, 2, 5, 1, 1, 8, 3, 7] {
        let relay = pipeline.relay().await;
        let end = (start + size).min(all.len());
        // What the one before has published comes back, up to a window of it.
        let call = &all[end.saturating_sub(WINDOW)..end];
        // On a busy machine a relay may have to begin more than once.
        publish_all_at_last(&*relay, call, Unavailable).await;
        start = end;
    }
    assert_eq!(pipeline.seen(), (0..start as u32).collect::<Vec<_>>());
}

/// G-04: what may come back depends on the window of the relay that died.
#[tokio::test]
async fn a_smaller_window_after_a_crash_repeats_nothing() {
    let pipeline = Pipeline::new().await;
    let all = pipeline.messages(0..40);
    let with_window = async |window_events: usize| {
        let mut spec = pipeline.spec("create_missing = true\nreplication_factor = 1");
        spec.pipeline.window_events = window_events;
        spec.connect().await.expect("the sink can be connected")
    };
    let relay = with_window(40).await;
    for call in all.chunks(5) {
        publish_all(&*relay, call).await;
    }
    drop(relay);
    // The first relay with the smaller window dies as well, while they come back.
    for end in [8, 40] {
        let relay = with_window(4).await;
        for call in all[..end].chunks(4) {
            publish_all(&*relay, call).await;
        }
    }
    assert_eq!(pipeline.seen(), (0..40).collect::<Vec<_>>());
}

/// G-04: a key that was paused, or that stands behind a bulk of events, comes back when it comes.
#[tokio::test]
async fn what_was_not_settled_is_known_however_late_it_comes_back() {
    let pipeline = Pipeline::new().await;
    let first = pipeline.messages(0..4);
    publish_all(&*pipeline.relay().await, &first).await;
    let window = u32::try_from(WINDOW).unwrap();
    let mut next = 4;
    for is_set_aside in [false, true] {
        let relay = pipeline.relay().await;
        if is_set_aside {
            let ids: Vec<_> = first[2..].iter().map(|message| message.event.id()).collect();
            relay.settled(&[], &ids);
        }
        for _ in 0..5 {
            let call = pipeline.messages(next..next + window);
            publish_all(&*relay, &call).await;
            settle(&*relay, &call);
            next += window;
        }
    }
    publish_all(&*pipeline.relay().await, &first).await;
    assert_eq!(pipeline.seen(), (0..next).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_relay_that_was_taken_over_is_kept_from_going_on() {
    let pipeline = Pipeline::new().await;
    let messages = pipeline.messages(0..6);
    let zombie = pipeline.relay().await;
    assert_eq!(publish(&*zombie, messages[0].clone()).await, Ok(()));
    // One that stands by disturbs nobody.
    let next = pipeline.relay().await;
    assert_eq!(next.check().await, Ok(vec![]));
    assert_eq!(publish(&*zombie, messages[1].clone()).await, Ok(()));

    assert_eq!(publish(&*next, messages[2].clone()).await, Ok(()));
    // It does not know yet that its lease has passed on, and the broker does.
    let refused = publish(&*zombie, messages[3].clone()).await;
    assert_refused(refused, Unavailable, "has taken over the transactional.id");
    // Its lease ends while it begins anew: it sends nothing.
    zombie.allow_until(Some(tokio::time::Instant::now() + std::time::Duration::from_millis(1)));
    let refused = publish(&*zombie, messages[4].clone()).await;
    assert_refused(refused, Unavailable, "the lease has run out");
    let again = publish(&*next, messages[5].clone()).await;
    assert_refused(again, Unavailable, "has taken over the transactional.id");
    assert_eq!(publish(&*next, messages[5].clone()).await, Ok(()));
    assert_eq!(pipeline.seen(), [0, 1, 2, 5]);
}

#[tokio::test]
async fn a_call_that_was_given_up_is_seen_once_or_not_at_all() {
    let pipeline = Pipeline::new().await;
    let relay = pipeline.relay().await;
    let (mut expected, mut given_up) = (0, 0);
    for round in 0..16_u32 {
        let messages = pipeline.messages(expected..expected + 5);
        let pause = std::time::Duration::from_millis(u64::from(round) * 2);
        let is_answered = tokio::select! {
            biased;
            answers = relay.publish(&messages) => answers.iter().all(Result::is_ok),
            () = tokio::time::sleep(pause) => false,
        };
        if !is_answered {
            given_up += 1;
            // The pipeline tries them again.
            assert_eq!(relay.publish(&messages).await, vec![Ok(()); 5]);
        }
        expected += 5;
    }
    assert!(given_up > 2, "no call was given up");
    assert_eq!(pipeline.seen(), (0..expected).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_topic_of_progress_is_made_by_the_command_that_the_error_names() {
    let pipeline = Pipeline::new().await;
    let relay = pipeline.spec("").connect().await.expect("the sink can be connected");
    let expected = "in which exactly_once notes what was published";
    let told = assert_refused(relay.check().await, Misconfigured, expected);
    let message = pipeline.messages(0..1).remove(0);
    assert_refused(publish(&*relay, message.clone()).await, Misconfigured, expected);
    let command = command_in(&told, &pipeline.shared.brokers);
    assert!(command.contains("--config cleanup.policy=compact --config "), "{command}");
    let guide = include_str!("../../../../docs/guides/kafka.md");
    for setting in command.split(" --config ").skip(1) {
        assert!(guide.contains(&format!("--config {setting}")), "the guide has not {setting}");
    }
    let command = command.replace("--replication-factor 3", "--replication-factor 1");
    run_script(&command).await;
    assert_eq!(relay.check().await, Ok(vec![]));
    assert_eq!(publish(&*relay, message).await, Ok(()));
    assert_eq!(pipeline.seen(), [0]);
}

#[tokio::test]
async fn pipelines_that_share_the_topic_of_progress_do_not_mix() {
    let one = Pipeline::new().await;
    let other = Pipeline { progress: one.progress.clone(), ..Pipeline::new().await };
    let messages = one.messages(0..4);
    let relays = [one.relay().await, other.relay().await];
    publish_all(&*relays[0], &messages).await;
    // The very same events, by another pipeline to another topic, are not taken for known.
    let elsewhere: Vec<_> = messages
        .iter()
        .map(|message| Message { topic: other.topic.clone(), ..message.clone() })
        .collect();
    publish_all(&*relays[1], &elsewhere).await;
    assert_eq!((one.seen().len(), other.seen().len()), (4, 4));
}

/// A producer by whose side a relay works.
struct Neighbour(BaseProducer);

impl Neighbour {
    /// Has a transaction open in a topic.
    fn with_open_transaction(pipeline: &Pipeline) -> Self {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &pipeline.shared.brokers)
            .set("transactional.id", format!("{}-neighbour", pipeline.topic));
        let producer: BaseProducer = config.create().unwrap();
        producer.init_transactions(DEADLINE).unwrap();
        producer.begin_transaction().unwrap();
        let note = BaseRecord::to(&pipeline.progress).key("neighbour/0").payload("12345678");
        producer.send(note).unwrap();
        producer.flush(DEADLINE).unwrap();
        Self(producer)
    }

    async fn abort(self) {
        let aborted = tokio::task::spawn_blocking(move || self.0.abort_transaction(DEADLINE));
        aborted.await.unwrap().unwrap();
    }
}

/// G-04: what a transaction of somebody else hides is there all the same.
#[tokio::test]
async fn a_note_behind_an_open_transaction_is_waited_for() {
    let pipeline = Pipeline::new().await;
    pipeline.make_progress(&COMPACTED).await;
    let messages = pipeline.messages(0..3);
    let relay = pipeline.relay().await;
    assert_eq!(publish(&*relay, messages[0].clone()).await, Ok(()));
    let neighbour = Neighbour::with_open_transaction(&pipeline);
    assert_eq!(relay.publish(&messages[1..]).await, vec![Ok(()); 2]);
    drop(relay);

    let timeout = Duration::from_secs(8);
    let relay = pipeline.relay_with("timeout = \"8s\"").await;
    for _ in 0..2 {
        let started = Instant::now();
        for answer in relay.publish(&messages).await {
            assert_refused(answer, Unavailable, "somebody else has a transaction open in it");
        }
        assert!(started.elapsed() < timeout + MARGIN, "{:?}", started.elapsed());
    }
    neighbour.abort().await;
    for message in messages {
        publish_at_last(&*relay, message, Unavailable).await;
    }
    assert_eq!(pipeline.seen(), [0, 1, 2]);
}

/// G-06: the pipeline would count what is not answered in time as a failure of the events.
#[tokio::test]
async fn an_outage_is_answered_in_time_whatever_it_interrupts() {
    let pipeline = Pipeline::new().await;
    pipeline.make_progress(&COMPACTED).await;
    let proxy = Proxy::start_before_kafka(&pipeline.shared.brokers).await;
    let url = proxy.url("kafka://127.0.0.1:1");
    let timeout = Duration::from_secs(8);
    let relay = SinkSpec { url, ..pipeline.spec("timeout = \"8s\"") }.connect().await.unwrap();
    let messages = pipeline.messages(0..6);
    publish_at_last(&*relay, messages[0].clone(), Unavailable).await;

    proxy.black_hole(true);
    // The first one interrupts a transaction, the second the beginning of a new producer.
    for _ in 0..2 {
        let started = Instant::now();
        let answers = relay.publish(&messages).await;
        let took = started.elapsed();
        assert!(took < timeout + MARGIN, "{took:?}: {answers:?}");
        for answer in answers {
            let error = answer.expect_err("nobody has answered");
            assert_eq!(error.kind, Unavailable, "{error}");
        }
    }
    proxy.heal();
    for message in &messages[1..] {
        publish_at_last(&*relay, message.clone(), Unavailable).await;
    }
    assert_eq!(pipeline.seen(), (0..6).collect::<Vec<_>>());
}

/// What was settled comes back only if the database has lost that, within a window: whoever publishes
/// it anew later means it.
#[tokio::test]
async fn what_was_settled_before_a_restart_can_be_published_anew() {
    let pipeline = Pipeline::new().await;
    let first = pipeline.messages(0..4);
    let relay = pipeline.relay().await;
    publish_all(&*relay, &first).await;
    settle(&*relay, &first);
    relay.close().await.unwrap();
    let relay = pipeline.relay().await;
    let window = u32::try_from(WINDOW).unwrap();
    let next = pipeline.messages(4..4 + window);
    assert_eq!(relay.publish(&next[..WINDOW - 1]).await, vec![Ok(()); WINDOW - 1]);
    assert_eq!(publish(&*relay, first[0].clone()).await, Ok(()), "it may have come back");
    assert_eq!(publish(&*relay, next[WINDOW - 1].clone()).await, Ok(()));
    assert_eq!(pipeline.seen(), (0..4 + window).collect::<Vec<_>>());
    assert_eq!(publish(&*relay, first[1].clone()).await, Ok(()));
    assert_eq!(pipeline.seen().iter().filter(|number| **number == 1).count(), 2);
}

#[tokio::test]
async fn a_topic_of_progress_that_is_unfit_is_mended_by_the_command_that_the_error_names() {
    let pipeline = Pipeline::new().await;
    pipeline.make_progress(&[("max.message.bytes", "200")]).await;
    let relay = pipeline.relay_with("").await;
    let message = pipeline.messages(0..1).remove(0);
    for expected in ["has to be compacted; run kafka-configs.sh", "takes no record of"] {
        let started = Instant::now();
        let told = loop {
            let told = assert_refused(relay.check().await, Misconfigured, &pipeline.progress);
            if told.contains(expected) {
                break told;
            }
            assert!(started.elapsed() < DEADLINE, "{told}");
            sleep(Duration::from_millis(100)).await;
        };
        assert_refused(publish(&*relay, message.clone()).await, Misconfigured, expected);
        run_script(&command_in(&told, &pipeline.shared.brokers)).await;
    }
    check_at_last(&*relay).await;
    publish_at_last(&*relay, message, Misconfigured).await;
    assert_eq!(pipeline.seen(), [0]);
}

/// G-07: as many places would take gigabytes.
#[tokio::test]
async fn a_record_that_no_relay_writes_is_refused_by_its_key() {
    let pipeline = Pipeline::new().await;
    pipeline.make_progress(&COMPACTED).await;
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &pipeline.shared.brokers);
    let producer: BaseProducer = config.create().unwrap();
    let key = format!("{}/4294967294", pipeline.topic);
    producer.send(BaseRecord::to(&pipeline.progress).key(&key).payload(&[0; 24])).unwrap();
    producer.flush(DEADLINE).unwrap();
    let relay = pipeline.relay_with("").await;
    let message = pipeline.messages(0..1).remove(0);
    let told = assert_refused(publish(&*relay, message.clone()).await, Misconfigured, &key);
    assert!(told.contains("write one with the same key and no value"), "{told}");
    producer.send(BaseRecord::<_, [u8; 0]>::to(&pipeline.progress).key(&key)).unwrap();
    producer.flush(DEADLINE).unwrap();
    publish_at_last(&*relay, message, Misconfigured).await;
    assert_eq!(pipeline.seen(), [0]);
}

/// The ids of a window take more room than a record of a topic with small ones may have.
#[tokio::test]
async fn a_note_may_be_larger_than_the_records_of_the_topic() {
    const EVENTS: usize = 500;
    let pipeline = Pipeline::at(Shared::broker(), &[("max.message.bytes", "2000")]).await;
    pipeline.make_progress(&COMPACTED).await;
    let mut spec = pipeline.spec("");
    spec.pipeline.window_events = EVENTS;
    let relay = spec.connect().await.unwrap();
    let messages = pipeline.messages(0..u32::try_from(EVENTS).unwrap());
    let answers = relay.publish(&messages).await;
    assert!(answers.iter().all(Result::is_ok), "{:?}", answers[0]);
    assert_eq!(pipeline.seen().len(), EVENTS);
}

#[tokio::test]
async fn a_timeout_beyond_that_of_the_brokers_is_a_mistake() {
    let pipeline = Pipeline::new().await;
    pipeline.make_progress(&COMPACTED).await;
    let relay = pipeline.relay_with("timeout = \"20m\"").await;
    let published = publish(&*relay, pipeline.messages(0..1).remove(0)).await;
    assert_refused(published, Misconfigured, "set a shorter timeout, or raise transaction.max");
}

/// The permissions of the guide are enough: none on a group is among them.
#[tokio::test]
async fn it_takes_the_permissions_that_the_guide_names() {
    let _room = room_for_broker().await;
    let server = Server::start(Options { password: true, rules: true, ..Options::default() }).await;
    let brokers = server.internal();
    let shared = Shared { url: server.url(), brokers: brokers.clone() };
    let pipeline = Pipeline::at(shared, &[]).await;
    pipeline.make_progress(&COMPACTED).await;
    let allow = format!(
        "kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal User:postrider \
         --operation Describe --operation DescribeConfigs --operation Write"
    );
    run_script(&format!("{allow} --topic {}", pipeline.topic)).await;
    run_script(&format!("{allow} --operation Read --topic {}", pipeline.progress)).await;
    let relay = pipeline.relay_with("username = \"postrider\"\npassword = \"postrider\"").await;
    check_at_last(&*relay).await;
    let message = pipeline.messages(0..1).remove(0);
    let expected = format!("no permission for the transactional id {}", pipeline.topic);
    let told = assert_refused(publish(&*relay, message.clone()).await, Misconfigured, &expected);
    run_script(&command_in(&told, &brokers).replace("NAME", "postrider")).await;
    publish_at_last(&*relay, message.clone(), Misconfigured).await;
    // The next one has something to read.
    let relay = pipeline.relay_with("username = \"postrider\"\npassword = \"postrider\"").await;
    assert_eq!(publish(&*relay, message).await, Ok(()));
    assert_eq!(pipeline.seen(), [0]);
}

/// A broker compacts what is not written to any more: a topic as it is made here soon has some.
#[tokio::test]
async fn the_topic_of_progress_is_compacted() {
    const NOTES: usize = 400;
    let _room = room_for_broker().await;
    let settings = vec!["log.cleaner.backoff.ms=100".to_owned()];
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let brokers = server.internal();
    let shared = Shared { url: server.url(), brokers: brokers.clone() };
    let pipeline = Pipeline::at(shared, &[]).await;
    let relay = pipeline.relay().await;
    let message = pipeline.messages(0..1).remove(0);
    publish_at_last(&*relay, message, Unavailable).await;

    let mut config = ClientConfig::new();
    let producer: BaseProducer = config.set("bootstrap.servers", &brokers).create().unwrap();
    let value = vec![0; 16 * 4096];
    for note in 0..NOTES {
        let key = format!("neighbour/{}", note % 2);
        producer.send(BaseRecord::to(&pipeline.progress).key(&key).payload(&value)).unwrap();
    }
    producer.flush(DEADLINE).unwrap();
    let started = Instant::now();
    loop {
        let left = read(&brokers, &pipeline.progress).len();
        if left < NOTES / 2 {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "{left} are left");
        sleep(Duration::from_millis(200)).await;
    }
}
