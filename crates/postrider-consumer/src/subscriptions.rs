//! Subscriptions to brokers. A new broker is one line here and one file.

#[cfg(feature = "kafka")]
mod kafka;

#[cfg(feature = "kafka")]
pub use kafka::{Kafka, KafkaHandle};
