//! Looks at brokers without the sinks.

use std::time::Duration;

use async_nats::jetstream::{self, Context};
use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::runtime::Runtime;

use crate::variable;

/// A broker.
pub(crate) trait Broker {
    /// Whether it has a topic, stream, queue or exchange of this name, or anything that belongs to
    /// one.
    fn has(&self, name: &str) -> bool;
}

pub(crate) struct Kafka;

impl Broker for Kafka {
    fn has(&self, name: &str) -> bool {
        let servers = variable("POSTRIDER_TEST_KAFKA").replace("kafka://", "");
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", servers).set("group.id", "unused");
        let consumer: BaseConsumer = config.create().unwrap();
        let metadata = consumer.fetch_metadata(None, Duration::from_secs(20)).unwrap();
        metadata.topics().iter().any(|topic| topic.name().starts_with(name))
    }
}

pub(crate) struct Nats;

impl Nats {
    async fn jetstream() -> Context {
        let url = variable("POSTRIDER_TEST_NATS");
        let (user, server) = url.trim_start_matches("nats://").split_once('@').unwrap();
        let (user, password) = user.split_once(':').unwrap();
        let options = async_nats::ConnectOptions::new();
        let options = options.user_and_password(user.to_owned(), password.to_owned());
        jetstream::new(options.connect(server).await.unwrap())
    }

    pub(crate) fn make(name: &str) {
        let (name, subjects) = (name.to_owned(), vec![name.to_owned()]);
        let config = jetstream::stream::Config { name, subjects, ..Default::default() };
        Runtime::new().unwrap().block_on(async {
            Self::jetstream().await.create_stream(config).await.unwrap();
        });
    }

    pub(crate) fn delete(name: &str) {
        Runtime::new().unwrap().block_on(async {
            Self::jetstream().await.delete_stream(name).await.unwrap();
        });
    }
}

impl Broker for Nats {
    fn has(&self, name: &str) -> bool {
        Runtime::new()
            .unwrap()
            .block_on(async { Self::jetstream().await.get_stream(name).await.is_ok() })
    }
}

pub(crate) struct RabbitMq;

impl Broker for RabbitMq {
    fn has(&self, name: &str) -> bool {
        Runtime::new().unwrap().block_on(async {
            let url = variable("POSTRIDER_TEST_RABBITMQ");
            let connection = Connection::connect(&url, ConnectionProperties::default());
            let connection = connection.await.unwrap();
            // A refusal ends its channel.
            let exchange = connection.create_channel().await.unwrap();
            let passive = ExchangeDeclareOptions { passive: true, ..Default::default() };
            let kind = ExchangeKind::Topic;
            let exchange =
                exchange.exchange_declare(name.into(), kind, passive, Default::default()).await;
            let queue = connection.create_channel().await.unwrap();
            let passive = QueueDeclareOptions { passive: true, ..Default::default() };
            let queue = queue.queue_declare(name.into(), passive, Default::default()).await;
            exchange.is_ok() || queue.is_ok()
        })
    }
}

pub(crate) struct Redis;

impl Redis {
    pub(crate) fn run(command: &[&str]) -> redis::Value {
        Runtime::new().unwrap().block_on(async {
            let client = redis::Client::open(variable("POSTRIDER_TEST_REDIS")).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            let mut sent = redis::cmd(command[0]);
            sent.arg(&command[1..]);
            sent.query_async(&mut connection).await.unwrap()
        })
    }
}

impl Broker for Redis {
    fn has(&self, name: &str) -> bool {
        Self::run(&["KEYS", &format!("*{name}*")]) != redis::Value::Array(Vec::new())
    }
}
