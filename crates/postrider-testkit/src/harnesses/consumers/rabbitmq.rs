//! RabbitMQ, with an exchange at the shared server and a queue for each group.

use async_trait::async_trait;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection};
use postrider::Event;
use postrider_consumer::subscriptions::RabbitMq as Subscription;
use postrider_relay::formats::Format;
use postrider_relay::sinks::SinkSpec;
use uuid::Uuid;

use crate::servers::rabbitmq::{bind, connect, make_exchange, make_queue, shared, text};
use crate::suites::Backend;
use crate::suites::consumer::{Capabilities, Consuming, Subject, TestTopic, Work};

const CAPABILITIES: Capabilities = Capabilities {
    has_visibility: false,
    is_relayed: true,
    knows_redelivery: false,
    keeps_order_in_group: false,
    repeats: true,
};

/// RabbitMQ, with quorum queues.
pub fn backend() -> Backend<Subject, Capabilities> {
    super::backend("rabbitmq", CAPABILITIES, || async {
        let exchange = format!("test-{}", Uuid::now_v7().simple());
        let connection = connect(&shared()).await;
        let channel = connection.create_channel().await.expect("a channel can be opened");
        make_exchange(&channel, &exchange, &[]).await;
        let confirming = channel.confirm_select(ConfirmSelectOptions::default()).await;
        confirming.expect("a channel can confirm");
        RabbitMq { _connection: connection, channel, exchange }
    })
}

struct RabbitMq {
    /// The channel ends with it.
    _connection: Connection,
    channel: Channel,
    exchange: String,
}

impl RabbitMq {
    fn queue(&self, group: &str) -> String {
        format!("{}-{group}", self.exchange)
    }

    async fn send(&self, messages: Vec<(&str, BasicProperties, &[u8])>) {
        let mut confirmed = Vec::new();
        for (key, properties, body) in messages {
            let options = BasicPublishOptions { mandatory: true, ..Default::default() };
            let (exchange, key) = (self.exchange.as_str().into(), key.into());
            let sent = self.channel.basic_publish(exchange, key, options, body, properties).await;
            confirmed.push(sent.expect("it can be sent"));
        }
        for confirmed in confirmed {
            let confirmed = confirmed.await.expect("it is answered");
            assert!(confirmed.is_ack(), "it is taken");
        }
    }
}

#[async_trait]
impl TestTopic for RabbitMq {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn add_group(&self, group: &str) {
        let queue = self.queue(group);
        make_queue(&self.channel, &queue, &[("x-queue-type", text("quorum"))]).await;
        bind(&self.channel, &queue, &self.exchange, "#").await;
    }

    async fn publish(&self, events: &[Event]) {
        let message = |event| {
            let mut table = FieldTable::default();
            for (name, value) in super::headers(event) {
                table.insert(name.into(), AMQPValue::LongString(value.into()));
            }
            let properties = BasicProperties::default().with_headers(table);
            (Event::aggregate_id(event), properties, &Event::payload(event)[..])
        };
        self.send(events.iter().map(message).collect()).await;
    }

    async fn publish_garbage(&self, body: &[u8]) {
        self.send(vec![("", BasicProperties::default(), body)]).await;
    }

    async fn relay(&self, event: Event, format: Format) {
        super::relay(SinkSpec::new(shared()), &self.exchange, event, format).await;
    }

    fn consume(&self, group: &str, work: Work) -> Consuming {
        Consuming::start(Subscription::subscribe(&shared(), &self.queue(group)), work)
    }
}
