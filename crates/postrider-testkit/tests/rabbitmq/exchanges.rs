//! Exchanges that are missing, and queues that are not bound or take nothing.

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::AMQPValue;
use postrider_relay::sink::FailureKind::{Failed, Misconfigured, Throttled};
use postrider_testkit::servers::rabbitmq::{
    self, Exchange, bind, make_exchange, make_queue, shared, table, text,
};

use crate::{assert_error, connect, connect_for, message, new_name, publish};

async fn channel() -> (lapin::Connection, lapin::Channel) {
    let connection = rabbitmq::connect(&shared()).await;
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// Whether there is an exchange of just this kind.
async fn is_there(name: &str, kind: &str) -> bool {
    let (_connection, channel) = channel().await;
    let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
    let kind = ExchangeKind::Custom(kind.to_owned());
    let found = channel.exchange_declare(name.into(), kind.clone(), passive, table(&[])).await;
    if found.is_err() {
        return false;
    }
    let durable = ExchangeDeclareOptions { durable: true, ..Default::default() };
    channel.exchange_declare(name.into(), kind, durable, table(&[])).await.is_ok()
}

async fn delete(name: &str) {
    let (_connection, channel) = channel().await;
    channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await.unwrap();
}

/// An operator must act, and events of other exchanges do not suffer.
#[tokio::test]
async fn a_missing_exchange_is_named_with_the_command_that_makes_it() {
    let (exchange, missing) = (Exchange::fresh().await, new_name());
    let sink = connect_for(&shared(), "", Some(&missing)).await.unwrap();
    let command = format!(
        "run rabbitmqadmin declare exchange name={missing} type=topic durable=true, or set \
         create_missing = true"
    );
    assert_error(sink.check().await, Misconfigured, &[&command]);
    let messages = [
        message(&exchange.name, "a", 1),
        message(&missing, "b", 2),
        message(&exchange.name, "c", 3),
        message(&missing, "d", 4),
    ];
    for _ in 0..2 {
        let answers = sink.publish(&messages).await;
        assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
        assert_error(answers[1].clone(), Misconfigured, &[&command]);
        assert_error(answers[3].clone(), Misconfigured, &[&command]);
    }
    assert_eq!(exchange.read().await.len(), 4);
    assert!(!is_there(&missing, "topic").await);
}

/// What the sink knows of an exchange is not for ever.
#[tokio::test]
async fn an_exchange_that_goes_is_missed() {
    let (_connection, channel) = channel().await;
    let (stays, goes) = (Exchange::fresh().await, new_name());
    make_exchange(&channel, &goes, &[]).await;
    let queue = new_name();
    make_queue(&channel, &queue, &[]).await;
    bind(&channel, &queue, &goes, "#").await;
    let sink = connect(&shared(), "").await;
    assert_eq!(publish(&*sink, message(&goes, "a", 1)).await, Ok(()));
    delete(&goes).await;
    let name = format!("name={goes} type=topic");
    assert_error(publish(&*sink, message(&goes, "a", 2)).await, Misconfigured, &[&name]);
    let answers = sink.publish(&[message(&goes, "a", 2), message(&stays.name, "b", 3)]).await;
    assert_error(answers[0].clone(), Misconfigured, &[&name]);
    assert_eq!(answers[1], Ok(()));
}

#[tokio::test]
async fn a_missing_exchange_is_made_on_request() {
    for (options, kind) in [("", "topic"), ("exchange_type = \"fanout\"", "fanout")] {
        let name = new_name();
        let options = format!("create_missing = true\n{options}");
        let sink = connect_for(&shared(), &options, Some(&name)).await.unwrap();
        let cautions = sink.check().await.unwrap();
        assert!(cautions[0].contains("bind a queue to it"), "{cautions:?}");
        assert!(!is_there(&name, kind).await, "a check changes nothing");
        let answers = sink.publish(&[message(&name, "a", 1), message(&name, "b", 2)]).await;
        for answer in answers {
            let command = format!("declare binding source={name} destination=QUEUE routing_key=");
            assert_error(answer, Failed, &[&command]);
        }
        assert!(is_there(&name, kind).await);
        assert_eq!(sink.check().await, Ok(Vec::new()));
        delete(&name).await;
    }
}

/// One of another type will do.
#[tokio::test]
async fn an_exchange_that_is_there_is_left_alone() {
    let exchange = Exchange::fresh().await;
    let sink = connect(&shared(), "create_missing = true\nexchange_type = \"fanout\"").await;
    assert_eq!(publish(&*sink, message(&exchange.name, "a", 1)).await, Ok(()));
}

/// G-01: of a thousand messages just those have failed that no queue has. The client hands a
/// returned message to whichever confirmation comes next.
#[tokio::test]
async fn each_message_that_comes_back_is_the_right_one() {
    let (_connection, channel) = channel().await;
    let exchange = Exchange::fresh().await;
    let partly = new_name();
    make_exchange(&channel, &partly, &[]).await;
    // A message goes on from there only by these keys.
    for key in ["taken.*", "also.taken"] {
        bind(&channel, &exchange.name, &partly, key).await;
    }
    let sink = connect(&shared(), "").await;
    for round in 0..5 {
        let messages: Vec<_> = (0..1000)
            .map(|number| {
                let key = match (number + round) % 7 {
                    0 => "lost".to_owned(),
                    1 => format!("lost.{number}"),
                    2 => "also.taken".to_owned(),
                    _ => format!("taken.{number}"),
                };
                message(&partly, &key, round * 1000 + number)
            })
            .collect();
        let before = exchange.read().await.len();
        let answers = sink.publish(&messages).await;
        let read = exchange.read().await;
        let id = |message: &crate::Message| message.event.id().to_string();
        let arrived: std::collections::HashSet<_> =
            read[before..].iter().map(|read| read.headers["postrider-id"].clone()).collect();
        assert_eq!(arrived.len(), messages.iter().filter(|one| !one.key.contains("lost")).count());
        for (message, answer) in messages.iter().zip(answers) {
            assert_eq!(answer.is_ok(), arrived.contains(&id(message)), "{}", message.key);
            if answer.is_err() {
                let key = format!("no queue takes the routing key {} from", message.key);
                assert_error(answer, Failed, &[&key, &partly]);
            }
        }
    }
}

#[tokio::test]
async fn a_missing_queue_is_named_with_the_command_that_makes_it() {
    let (exchange, missing) = (Exchange::fresh().await, new_name());
    let sink = connect_for(&shared(), "", Some("amq.default")).await.unwrap();
    let messages = [message("amq.default", &missing, 1), message("amq.default", &exchange.name, 2)];
    let answers = sink.publish(&messages).await;
    let command = format!("rabbitmqadmin declare queue name={missing} durable=true");
    assert_error(answers[0].clone(), Failed, &[&command]);
    assert_eq!(answers[1], Ok(()));
}

/// Nothing is wrong with the event: it waits, and no attempt is counted.
#[tokio::test]
async fn a_full_queue_throttles_its_own_events_only() {
    let (_connection, channel) = channel().await;
    let (exchange, full) = (Exchange::fresh().await, new_name());
    let arguments =
        [("x-max-length", AMQPValue::LongInt(2)), ("x-overflow", text("reject-publish"))];
    make_queue(&channel, &full, &arguments).await;
    let sink = connect_for(&shared(), "", Some("amq.default")).await.unwrap();
    for number in 1..=2 {
        assert_eq!(publish(&*sink, message("amq.default", &full, number)).await, Ok(()));
    }
    let messages = [message("amq.default", &full, 3), message(&exchange.name, "a", 4)];
    let answers = sink.publish(&messages).await;
    assert_error(answers[0].clone(), Throttled, &["it is full (its overflow is reject-publish)"]);
    assert_eq!(answers[1], Ok(()));
    channel.queue_purge(full.as_str().into(), Default::default()).await.unwrap();
    assert_eq!(publish(&*sink, message("amq.default", &full, 3)).await, Ok(()));
}
