//! RabbitMQ: an exchange and a queue in the shared server, or a whole server for a test that
//! breaks it.

mod server;

use std::collections::BTreeMap;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use tokio::sync::Mutex;
use uuid::Uuid;

pub use self::server::{Options, Server, Tls};

/// How long a queue stays that nobody uses.
const LEFT_AFTER_MS: i32 = 600_000;
/// The type of the message that ends what is read.
const MARK: &str = "mark";

/// The URL of the shared server.
///
/// # Panics
///
/// If it does not run.
pub fn shared() -> String {
    super::shared("POSTRIDER_TEST_RABBITMQ")
}

/// Connects a plain client, without TLS.
pub async fn connect(url: &str) -> Connection {
    let connected = Connection::connect(url, ConnectionProperties::default()).await;
    connected.expect("the server can be reached")
}

/// An exchange with one queue that takes everything. The server removes both when nobody has used
/// them for a while.
pub struct Exchange {
    /// Its name, and that of its queue.
    pub name: String,
    url: String,
    reader: Mutex<Reader>,
}

/// What was read of a queue, and how to read on.
#[derive(Default)]
struct Reader {
    connected: Option<Connected>,
    read: Vec<Read>,
}

struct Connected {
    connection: Connection,
    channel: Channel,
    consumer: Consumer,
}

/// A message as a plain client reads it.
#[derive(Clone, Debug)]
pub struct Read {
    /// The exchange that it came by.
    pub exchange: String,
    /// Its routing key.
    pub routing_key: String,
    /// Its properties.
    pub properties: BasicProperties,
    /// Its headers, which are texts.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Exchange {
    /// Makes one in the shared server, with a durable classic queue.
    pub async fn fresh() -> Self {
        Self::fresh_at(&shared(), &[]).await
    }

    /// Makes one in any server. The arguments are those of the queue.
    pub async fn fresh_at(url: &str, arguments: &[(&str, AMQPValue)]) -> Self {
        let name = format!("test-{}", Uuid::now_v7().simple());
        let connection = connect(url).await;
        let channel = connection.create_channel().await.expect("a channel can be opened");
        make_exchange(&channel, &name, &[]).await;
        make_queue(&channel, &name, arguments).await;
        bind(&channel, &name, &name, "#").await;
        Self { name, url: url.to_owned(), reader: Mutex::default() }
    }

    /// Makes it refuse messages of one routing key: they go to a queue that is always full, and
    /// all others, by way of another exchange, to where they went before.
    pub async fn refuse(&self, routing_key: &str) {
        let connection = connect(&self.url).await;
        let channel = connection.create_channel().await.expect("a channel can be opened");
        let deleted = channel.exchange_delete(self.name.as_str().into(), Default::default()).await;
        deleted.expect("an exchange can be deleted");
        let (others, full) = (format!("{}-others", self.name), format!("{}-full", self.name));
        make_exchange(&channel, &others, &[]).await;
        bind(&channel, &self.name, &others, "#").await;
        make_exchange(&channel, &self.name, &[("alternate-exchange", text(&others))]).await;
        let arguments =
            [("x-max-length", AMQPValue::LongInt(0)), ("x-overflow", text("reject-publish"))];
        make_queue(&channel, &full, &arguments).await;
        bind(&channel, &full, &self.name, routing_key).await;
    }

    /// Everything that has come to the queue so far, in its order.
    pub async fn read(&self) -> Vec<Read> {
        let mut reader = self.reader.lock().await;
        let is_connected = |one: &Connected| one.connection.status().connected();
        if !reader.connected.as_ref().is_some_and(is_connected) {
            reader.connected = Some(Connected::to(&self.url, &self.name).await);
        }
        let Reader { connected: Some(connected), read } = &mut *reader else {
            unreachable!("it was just connected")
        };
        connected.read_on(&self.name, read).await;
        read.clone()
    }
}

impl Connected {
    async fn to(url: &str, queue: &str) -> Self {
        let connection = connect(url).await;
        let channel = connection.create_channel().await.expect("a channel can be opened");
        let options = BasicConsumeOptions::default();
        let consumer = channel.basic_consume(queue.into(), "".into(), options, table(&[])).await;
        Self { connection, channel, consumer: consumer.expect("a queue can be read") }
    }

    /// Reads up to a message of its own that it puts at the end.
    async fn read_on(&mut self, queue: &str, read: &mut Vec<Read>) {
        let mark = Uuid::now_v7().to_string();
        let properties =
            BasicProperties::default().with_message_id(mark.as_str().into()).with_type(MARK.into());
        let options = BasicPublishOptions::default();
        let sent = self.channel.basic_publish("".into(), queue.into(), options, &[], properties);
        sent.await.expect("a message can be sent");
        let mut found = Vec::new();
        loop {
            let next = self.consumer.next().await.expect("the consumer stays");
            let delivery = next.expect("the connection stays");
            let id = delivery.properties.message_id().as_ref();
            if id.is_some_and(|id| id.as_str() == mark) {
                let all = BasicAckOptions { multiple: true };
                delivery.ack(all).await.expect("what was read can be removed");
                break;
            }
            let kind = delivery.properties.kind().as_ref();
            // One of a reader that was cut off is none of what is looked for.
            if kind.is_none_or(|kind| kind.as_str() != MARK) {
                found.push(Read::of(delivery));
            }
        }
        read.extend(found);
    }
}

impl Read {
    fn of(delivery: lapin::message::Delivery) -> Self {
        let table = delivery.properties.headers().clone().unwrap_or_default();
        let header = |(name, value): (&lapin::types::ShortString, &AMQPValue)| match value {
            AMQPValue::LongString(text) => (name.to_string(), text.to_string()),
            other => panic!("the header {name} is no text: {other:?}"),
        };
        Self {
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            headers: table.inner().iter().map(header).collect(),
            properties: delivery.properties,
            body: delivery.data,
        }
    }
}

/// Makes a durable exchange of the type `topic`. It goes when nothing is bound to it any more.
pub async fn make_exchange(channel: &Channel, name: &str, arguments: &[(&str, AMQPValue)]) {
    let options = ExchangeDeclareOptions { durable: true, auto_delete: true, ..Default::default() };
    let declared =
        channel.exchange_declare(name.into(), ExchangeKind::Topic, options, table(arguments)).await;
    declared.expect("an exchange can be made");
}

/// Makes a durable queue. Unless it is a stream, the server removes it when nobody uses it.
pub async fn make_queue(channel: &Channel, name: &str, arguments: &[(&str, AMQPValue)]) {
    let mut arguments = arguments.to_vec();
    if !arguments.contains(&("x-queue-type", text("stream"))) {
        arguments.push(("x-expires", AMQPValue::LongInt(LEFT_AFTER_MS)));
    }
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let declared = channel.queue_declare(name.into(), options, table(&arguments)).await;
    declared.expect("a queue can be made");
}

/// Lets a queue take what an exchange has for a routing key.
pub async fn bind(channel: &Channel, queue: &str, exchange: &str, routing_key: &str) {
    let options = QueueBindOptions::default();
    let (queue, exchange, key) = (queue.into(), exchange.into(), routing_key.into());
    let bound = channel.queue_bind(queue, exchange, key, options, table(&[])).await;
    bound.expect("a queue can be bound");
}

/// A text in arguments.
pub fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// Arguments.
pub fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert((*name).into(), value.clone());
    }
    table
}
