//! Consumers of Postrider's events: each event has its effect once.
//!
//! A relay and a broker deliver at least once. A [`Consumer`] claims each event in the inbox of its
//! own database, runs its handler in the same transaction, commits, and only then acknowledges the
//! delivery. Whatever crashes in between, the effect happens once. Events of one key are handled in
//! their order, those of different keys side by side.
//!
//! | feature | gives |
//! |---|---|
//! | `axum` | webhooks: [`webhooks`] verifies, claims and answers after the commit |
//! | `kafka`, `nats`, `rabbitmq`, `redis` | [`subscriptions`] to these brokers |
//! | `opentelemetry` | a handler's span is linked to the producer's |
//! | `sqlx-postgres`, `sqlx-sqlite` | databases: pools of sqlx |

pub mod consumer;
pub mod database;
mod databases;
pub mod decoding;
pub mod handlers;
pub mod metrics;
mod preflight;
mod processor;
pub mod retry;
mod runtime;
pub mod subscription;
pub mod subscriptions;
mod tracing_context;
#[cfg(feature = "axum")]
pub mod webhooks;

pub use consumer::{Consumer, ConsumerError};
pub use database::Database;
pub use handlers::{Delivered, HandlerError, Handling, Rejected, Unhandled};
pub use metrics::{Counts, Metrics};
pub use retry::Retry;
pub use subscription::{Incoming, Received, Redelivery, Subscription, SubscriptionError};

/// The guide, so that its code is compiled.
#[cfg(all(doctest, feature = "axum", feature = "sqlx-postgres"))]
#[doc = include_str!("../../../docs/guides/consuming.md")]
pub struct Guide;
