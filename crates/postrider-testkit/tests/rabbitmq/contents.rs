//! What arrives, as a plain client reads it, from every kind of queue.

use std::time::{Duration, UNIX_EPOCH};

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeleteOptions};
use postrider::Event;
use postrider_testkit::servers::rabbitmq::{
    self, Exchange, bind, make_exchange, make_queue, shared, table, text,
};

use crate::{connect, connect_for, message, message_of, new_name, publish};

#[tokio::test]
async fn a_message_has_its_properties_headers_and_bytes() {
    let exchange = Exchange::fresh().await;
    let sink = connect(&shared(), "").await;
    let event = Event::builder("Order", "42", "OrderPaid")
        .occurred_at(UNIX_EPOCH + Duration::from_millis(1_700_000_000_900))
        .payload(&b"\x00\xff payload"[..], "application/octet-stream")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .build()
        .unwrap();
    let id = event.id().to_string();
    assert_eq!(publish(&*sink, message_of(event, &exchange.name)).await, Ok(()));
    let read = exchange.read().await;
    let [read] = &read[..] else { panic!("{read:?}") };
    assert_eq!((read.exchange.as_str(), read.routing_key.as_str()), (&*exchange.name, "42"));
    assert_eq!(read.body, b"\x00\xff payload");
    let properties = &read.properties;
    let word = |value: &Option<lapin::types::ShortString>| value.clone().unwrap().to_string();
    assert_eq!(word(properties.message_id()), id);
    assert_eq!(word(properties.kind()), "OrderPaid");
    assert_eq!(word(properties.content_type()), "application/octet-stream");
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    let header = |name: &str| read.headers.get(name).unwrap().as_str();
    assert_eq!(header("postrider-id"), id);
    assert_eq!(header("postrider-event-version"), "1");
    assert_eq!(header("postrider-aggregate-type"), "Order");
    assert!(header("traceparent").starts_with("00-0af7"));
}

/// All of them confirm, and keep what they have confirmed in order.
#[tokio::test]
async fn quorum_queues_and_streams_take_events() {
    let name = new_name();
    let connection = rabbitmq::connect(&shared()).await;
    let channel = connection.create_channel().await.unwrap();
    make_exchange(&channel, &name, &[]).await;
    let queues: Vec<_> = ["quorum", "stream"].map(|kind| (kind, format!("{name}-{kind}"))).into();
    for (kind, queue) in &queues {
        make_queue(&channel, queue, &[("x-queue-type", text(kind))]).await;
        bind(&channel, queue, &name, "#").await;
    }
    let sink = connect(&shared(), "").await;
    let messages: Vec<_> =
        (1..=500).map(|number| message(&name, &format!("k{number}"), number)).collect();
    let answers = sink.publish(&messages).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    for (kind, queue) in &queues {
        let arguments = match *kind {
            "stream" => table(&[("x-stream-offset", text("first"))]),
            _ => table(&[]),
        };
        let reader = connection.create_channel().await.unwrap();
        // A stream wants to know how many messages may be under way.
        reader.basic_qos(600, BasicQosOptions::default()).await.unwrap();
        let options = BasicConsumeOptions::default();
        let consumer =
            reader.basic_consume(queue.as_str().into(), "".into(), options, arguments).await;
        let read: Vec<_> = consumer.unwrap().take(500).collect().await;
        let keys: Vec<_> =
            read.iter().map(|read| read.as_ref().unwrap().routing_key.to_string()).collect();
        let sent: Vec<_> = messages.iter().map(|message| message.key.clone()).collect();
        assert_eq!(keys, sent, "{kind}");
        reader.close(200, "OK".into()).await.unwrap();
        channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    }
}

/// The routing key is then the name of the queue.
#[tokio::test]
async fn the_default_exchange_goes_by_the_name_amq_default() {
    let exchange = Exchange::fresh().await;
    let sink = connect_for(&shared(), "", Some("amq.default")).await.unwrap();
    assert_eq!(publish(&*sink, message("amq.default", &exchange.name, 1)).await, Ok(()));
    let read = exchange.read().await;
    assert_eq!((read.len(), read[0].exchange.as_str()), (1, ""));
}

#[tokio::test]
async fn the_first_server_that_answers_is_used() {
    let exchange = Exchange::fresh().await;
    let url = shared().replace('@', "@127.0.0.1:1,127.0.0.1:2,");
    let sink = connect(&url, "").await;
    assert_eq!(publish(&*sink, message(&exchange.name, "a", 1)).await, Ok(()));
    assert_eq!(exchange.read().await.len(), 1);
}
