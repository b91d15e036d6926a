//! Topics that are missing, that cannot be, and that are made on the way.

use postrider_relay::sink::FailureKind::{Misconfigured, Rejected, Unavailable};
use postrider_testkit::servers::kafka::{
    Options, Server, admin, make_topic, partitions, read, run_script,
};
use rdkafka::admin::AdminOptions;
use tokio::time::Instant;

use crate::{
    DEADLINE, Shared, assert_refused, command_in, connect, connect_to, message, new_name, publish,
    publish_at_last, room_for_broker,
};

#[tokio::test]
async fn a_missing_topic_is_made_by_the_command_that_the_error_names() {
    let Shared { url, brokers } = Shared::broker();
    let (missing, there) = (new_name(), make_topic(&brokers, 1, &[]).await);
    let sink = connect_to(&url, &missing, "").await;
    let expected = format!("there is no topic {missing}; run kafka-topics.sh");
    assert_refused(sink.check().await, Misconfigured, &expected);
    let messages = [message(&missing, "1", "a"), message(&there, "2", "b")];
    let mut answers = sink.publish(&messages).await.into_iter();
    let told = assert_refused(answers.next().unwrap(), Misconfigured, &expected);
    assert_eq!(answers.next(), Some(Ok(())), "another topic is no worse for it");
    assert_eq!(read(&brokers, &there).len(), 1);
    assert_eq!(partitions(&brokers, &missing), 0, "asking has not made it");

    let command = command_in(&told, &brokers);
    run_script(&command.replace("--replication-factor 3", "--replication-factor 1")).await;
    publish_at_last(&*sink, message(&missing, "1", "a"), Misconfigured).await;
    assert_eq!(sink.check().await, Ok(vec![]));
    assert_eq!(read(&brokers, &missing).len(), 1);
}

#[tokio::test]
async fn topics_are_made_where_that_is_wanted() {
    let Shared { url, brokers } = Shared::broker();
    let topic = new_name();
    let options = "create_missing = true\npartitions = 5\nreplication_factor = 1";
    let sinks = [connect_to(&url, &topic, options).await, connect(&url, options).await];
    assert_eq!(sinks[0].check().await, Ok(vec![]));
    assert_eq!(partitions(&brokers, &topic), 0, "a check makes nothing");
    // The one that is not quicker may have to wait until the topic is known.
    tokio::join!(
        publish_at_last(&*sinks[0], message(&topic, "1", "a"), Unavailable),
        publish_at_last(&*sinks[1], message(&topic, "2", "b"), Unavailable),
    );
    assert_eq!(partitions(&brokers, &topic), 5);
    assert_eq!(read(&brokers, &topic).len(), 2);

    let impossible = "create_missing = true\nreplication_factor = 3";
    let refused = publish(&*connect(&url, impossible).await, message(&new_name(), "1", "a")).await;
    assert_refused(refused, Misconfigured, "replication_factor");
}

#[tokio::test]
async fn a_topic_that_cannot_be_is_rejected_and_stops_no_other() {
    let Shared { url, brokers } = Shared::broker();
    let there = make_topic(&brokers, 1, &[]).await;
    let sink = connect(&url, "create_missing = true").await;
    let messages =
        [message("no such thing", "1", "a"), message(&there, "2", "b"), message("..", "3", "c")];
    let mut answers = sink.publish(&messages).await.into_iter();
    let expected =
        "`no such thing`: the name of a topic has only letters, digits, `.`, `_` and `-`";
    assert_refused(answers.next().unwrap(), Rejected, expected);
    assert_eq!(answers.next(), Some(Ok(())));
    assert_refused(answers.next().unwrap(), Rejected, "no topic of Kafka can be called so");
    assert_eq!(read(&brokers, &there).len(), 1);
    let checked = connect_to(&url, "no such thing", "").await.check().await;
    assert_refused(checked, Misconfigured, "`no such thing`");
}

#[tokio::test]
async fn a_topic_that_wants_more_replicas_than_it_has_is_mended_by_a_command() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 1, &[("min.insync.replicas", "2")]).await;
    let sink = connect_to(&url, &topic, "").await;
    let expected = format!("the topic {topic} takes nothing");
    let told = assert_refused(sink.check().await, Misconfigured, &expected);
    assert_refused(publish(&*sink, message(&topic, "1", "a")).await, Misconfigured, &expected);
    run_script(&command_in(&told, &brokers)).await;
    publish_at_last(&*sink, message(&topic, "1", "a"), Misconfigured).await;
}

#[tokio::test]
async fn a_topic_that_is_deleted_while_the_sink_runs_is_missed() {
    let Shared { url, brokers } = Shared::broker();
    let topic = make_topic(&brokers, 1, &[]).await;
    let sink = connect(&url, "timeout = \"8s\"").await;
    assert_eq!(publish(&*sink, message(&topic, "1", "a")).await, Ok(()));
    let deleted = admin(&brokers).delete_topics(&[&topic], &AdminOptions::new()).await;
    assert!(deleted.unwrap().iter().all(Result::is_ok));
    // Nobody answers for a topic that is being deleted.
    let started = Instant::now();
    let refused = loop {
        match publish(&*sink, message(&topic, "1", "b")).await {
            Err(error) if error.kind == Unavailable => {}
            answer => break answer,
        }
        assert!(started.elapsed() < DEADLINE, "it is not missed");
    };
    assert_refused(refused, Misconfigured, &format!("there is no topic {topic}"));
}

/// Brokers make what a client asks for, if they are allowed to and the client does not object.
#[tokio::test]
async fn asking_makes_no_topic_where_brokers_would() {
    let _room = room_for_broker().await;
    let settings = vec!["auto.create.topics.enable=true".to_owned()];
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let (brokers, topic) = (server.internal(), new_name());
    let sink = connect_to(&server.url(), &topic, "").await;
    let expected = format!("there is no topic {topic}");
    for _ in 0..3 {
        assert_refused(sink.check().await, Misconfigured, &expected);
        let published = publish(&*sink, message(&topic, "1", "a")).await;
        assert_refused(published, Misconfigured, &expected);
    }
    assert_eq!(partitions(&brokers, &topic), 0);
}
