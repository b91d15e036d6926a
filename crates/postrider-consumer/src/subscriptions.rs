//! Subscriptions to brokers. A new broker is one line here and one file.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;

#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaHandle};
#[cfg(feature = "nats")]
pub use nats::{Nats, NatsHandle};
