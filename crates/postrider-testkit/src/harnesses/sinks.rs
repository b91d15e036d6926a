//! Targets for the sink suite.

pub mod file;
#[cfg(feature = "http")]
pub mod http;
mod json_lines;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod memory;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
pub mod stdout;
