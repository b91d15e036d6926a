//! Transactions: who may go on, what is seen of them, and what is read when a relay takes over.

use postrider_relay::sink::FailureKind::{Misconfigured, Unavailable};
use postrider_relay::sink::{Message, Sink};
use postrider_relay::sinks::{PipelineFacts, SinkSpec};
use postrider_testkit::servers::kafka::{make_topic, read};

use crate::{Shared, assert_refused, command_in, message, publish, spec};

const WINDOW: usize = 8;

/// The relays of one pipeline, which has a topic and a topic for its progress.
struct Pipeline {
    shared: Shared,
    topic: String,
    progress: String,
}

impl Pipeline {
    async fn new() -> Self {
        let shared = Shared::broker();
        let topic = make_topic(&shared.brokers, 3, &[]).await;
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
        let spec = self.spec("create_missing = true\nreplication_factor = 1");
        spec.connect().await.expect("the sink can be connected")
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

/// G-04: published and not settled, it comes back to the relay that takes over.
#[tokio::test]
async fn what_comes_back_is_answered_and_not_sent_again() {
    let pipeline = Pipeline::new().await;
    let first = pipeline.messages(0..20);
    let relay = pipeline.relay().await;
    for call in first.chunks(7) {
        assert!(relay.publish(call).await.iter().all(Result::is_ok));
    }
    drop(relay);
    // It died before the last events were settled: they come back, with new ones behind them.
    let relay = pipeline.relay().await;
    let again = [&first[12..], &pipeline.messages(20..25)].concat();
    assert!(relay.publish(&again).await.iter().all(Result::is_ok));
    assert_eq!(pipeline.seen(), (0..25).collect::<Vec<_>>());
    // Whoever publishes it once more on purpose is not kept from it.
    assert!(relay.publish(&first[12..13]).await.iter().all(Result::is_ok));
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
        assert!(relay.publish(call).await.iter().all(Result::is_ok));
        start = end;
    }
    assert_eq!(pipeline.seen(), (0..start as u32).collect::<Vec<_>>());
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
    assert!(command.ends_with("--config cleanup.policy=compact"), "{command}");
    let command = command.replace("--replication-factor 3", "--replication-factor 1");
    postrider_testkit::servers::kafka::run_script(&command).await;
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
    assert!(relays[0].publish(&messages).await.iter().all(Result::is_ok));
    // The very same events, by another pipeline to another topic, are not taken for known.
    let elsewhere: Vec<_> = messages
        .iter()
        .map(|message| Message { topic: other.topic.clone(), ..message.clone() })
        .collect();
    assert!(relays[1].publish(&elsewhere).await.iter().all(Result::is_ok));
    assert_eq!((one.seen().len(), other.seen().len()), (4, 4));
}
