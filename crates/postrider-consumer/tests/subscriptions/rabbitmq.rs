//! RabbitMQ.

use lapin::options::{BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use postrider::Event;
use postrider_consumer::Subscription as _;
use postrider_consumer::subscriptions::RabbitMq;
use uuid::Uuid;

use super::{event, exercise, handles, headers, mistake, receive, told};
use crate::proxy::Proxy;

/// A queue of its own, which is removed in the end.
struct Queue {
    _connection: Connection,
    channel: Channel,
    name: String,
}

fn uri() -> String {
    std::env::var("POSTRIDER_TEST_RABBITMQ").unwrap()
}

impl Queue {
    async fn make(kind: &str) -> Self {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&uri(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let name = format!("subscriptions-{}", Uuid::now_v7());
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        channel.queue_declare(name.as_str().into(), options, arguments).await.unwrap();
        Self { _connection: connection, channel, name }
    }

    async fn publish(&self, event: &Event) {
        let mut table = FieldTable::default();
        let texts = headers(event).into_iter().filter(|(name, _)| name != "content-type");
        for (name, value) in texts {
            table.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        let properties = BasicProperties::default()
            .with_content_type(event.content_type().into())
            .with_delivery_mode(2)
            .with_headers(table)
            .with_message_id(event.id().to_string().into());
        let (queue, options) = (self.name.as_str().into(), BasicPublishOptions::default());
        let sent =
            self.channel.basic_publish("".into(), queue, options, event.payload(), properties);
        sent.await.unwrap().await.unwrap();
    }

    async fn remove(self) {
        let name = self.name.as_str().into();
        self.channel.queue_delete(name, QueueDeleteOptions::default()).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_not_acknowledged_comes_again() {
    for kind in ["classic", "quorum"] {
        let queue = Queue::make(kind).await;
        let subscribe = async |tag: &str| {
            RabbitMq::subscribe(&uri(), &queue.name).consumer_tag(tag).prefetch(10)
        };
        exercise(async |event: &Event| queue.publish(event).await, subscribe, None).await;
        queue.remove().await;
    }
}

#[tokio::test]
async fn a_queue_that_is_missing_and_a_stream_are_mistakes() {
    let missing = RabbitMq::subscribe(&uri(), "no-such-queue");
    let message = mistake(&missing).await.message;
    assert!(message.contains("rabbitmqadmin declare queue name=no-such-queue"), "{message}");
    let queue = Queue::make("stream").await;
    let stream = RabbitMq::subscribe(&uri(), &queue.name);
    let (error, ()) = tokio::join!(mistake(&stream), async {
        // It begins with what comes after it.
        for number in 1..100 {
            queue.publish(&event("a", number)).await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    assert!(error.message.contains("is a stream"), "{}", error.message);
    stream.close().await;
    queue.remove().await;
}

#[tokio::test]
async fn a_connection_that_was_cut_is_survived() {
    let queue = Queue::make("quorum").await;
    let uri = uri();
    let (user, server) = uri.rsplit_once('@').unwrap();
    let proxy = Proxy::to(server).await;
    let near = format!("{user}@127.0.0.1:{}", proxy.port);
    let rabbitmq = RabbitMq::subscribe(&near, &queue.name);
    for number in 1..=3 {
        queue.publish(&event("a", number)).await;
    }
    let before = receive(&rabbitmq, 3).await;
    proxy.cut();
    let again = receive(&rabbitmq, 3).await;
    assert_eq!(told(&again), "a1 a2 a3");
    assert!(before.iter().all(|one| rabbitmq.is_lost(&one.handle)));
    assert!(!again.iter().any(|one| rabbitmq.is_lost(&one.handle)));
    // Tags of another channel would end this one.
    rabbitmq.acknowledge(handles::<RabbitMq>(&before)).await.unwrap();
    rabbitmq.acknowledge(handles::<RabbitMq>(&again)).await.unwrap();
    queue.publish(&event("a", 4)).await;
    assert_eq!(told(&receive(&rabbitmq, 1).await), "a4");
    // The server ends the consumer.
    queue.remove().await;
    let ended = loop {
        match rabbitmq.receive(1).await {
            Ok(received) => panic!("received {}", told(&received)),
            Err(error) if error.is_final => break error,
            Err(_) => {}
        }
    };
    assert!(ended.message.contains("there is no queue"), "{}", ended.message);
}
