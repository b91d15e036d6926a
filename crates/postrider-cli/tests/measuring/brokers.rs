//! Looks at brokers without the sinks.

use std::time::Duration;

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

impl Broker for Nats {
    fn has(&self, name: &str) -> bool {
        Runtime::new().unwrap().block_on(async {
            let url = variable("POSTRIDER_TEST_NATS");
            let (user, server) = url.trim_start_matches("nats://").split_once('@').unwrap();
            let (user, password) = user.split_once(':').unwrap();
            let options = async_nats::ConnectOptions::new();
            let options = options.user_and_password(user.to_owned(), password.to_owned());
            let client = options.connect(server).await.unwrap();
            async_nats::jetstream::new(client).get_stream(name).await.is_ok()
        })
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

impl Broker for Redis {
    fn has(&self, name: &str) -> bool {
        Runtime::new().unwrap().block_on(async {
            let client = redis::Client::open(variable("POSTRIDER_TEST_REDIS")).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            let pattern = format!("*{name}*");
            let keys: Vec<String> =
                redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await.unwrap();
            !keys.is_empty()
        })
    }
}
