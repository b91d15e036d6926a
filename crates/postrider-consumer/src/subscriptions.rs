//! Subscriptions to brokers, and to what was stored. A new broker is one line here and one file.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
mod stored;

#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaHandle};
#[cfg(feature = "nats")]
pub use nats::{Nats, NatsHandle};
#[cfg(feature = "rabbitmq")]
pub use rabbitmq::{RabbitMq, RabbitMqHandle};
#[cfg(feature = "redis")]
pub use redis::{Redis, RedisHandle};
#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
pub use stored::{Stored, StoredHandle};
