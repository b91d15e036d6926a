//! The relay of Postrider as a library: it reads outboxes and publishes their events, in order
//! per key, at least once.
//!
//! A [`Pipeline`](pipeline::Pipeline) joins one [`Source`](source::Source) to one
//! [`Sink`](sink::Sink). The binary `postrider` runs pipelines from a configuration file; an
//! application can run the same pipelines inside its own process. With the feature
//! `opentelemetry` each call of a sink is a span of the tracer that the process has set.

pub mod admin;
pub mod amounts;
pub mod audit;
pub mod config;
#[cfg(test)]
mod damaged;
pub mod diagnosis;
pub mod events;
pub mod failure;
pub mod formats;
pub mod health;
pub mod hint;
pub mod keys;
pub mod operator;
pub mod pauses;
pub mod pipeline;
pub mod private_files;
pub mod prune;
pub mod readback;
pub mod reconcile;
pub mod relay;
pub mod replay;
pub mod routing;
pub mod scratch;
pub mod secret;
mod shell;
pub mod shutdown;
pub mod sink;
pub mod sinks;
pub mod slots;
pub mod source;
pub mod sources;
mod suggestion;
pub mod telemetry;
#[cfg(any(
    feature = "https",
    feature = "nats",
    feature = "postgres",
    feature = "rabbitmq",
    feature = "redis"
))]
mod tls;
pub mod verification;
