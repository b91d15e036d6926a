//! A consumer: its name, its handlers and how it works.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use postrider::{Event, EventType, WriteError};
use serde::de::DeserializeOwned;

use crate::database::Database;
use crate::handlers::{Delivered, Handlers, Handling, Unhandled};
use crate::metrics::Metrics;
use crate::preflight;
use crate::processor::{GivenUp, Processor};
use crate::retry::Retry;
use crate::runtime;
use crate::subscription::{Subscription, SubscriptionError};

/// How a consumer works.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) concurrency: usize,
    pub(crate) batch: usize,
    pub(crate) window: usize,
    pub(crate) retry: Retry,
    pub(crate) retention: Duration,
    pub(crate) grace: Duration,
}

/// Handles events of a broker, each once.
///
/// ```no_run
/// # #[cfg(all(feature = "kafka", feature = "sqlx-postgres"))]
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use postrider_consumer::{Consumer, subscriptions::Kafka};
///
/// #[derive(serde::Deserialize)]
/// struct OrderPaid { order_id: i64, cents: i64 }
///
/// impl postrider::EventType for OrderPaid {
///     const EVENT_TYPE: &'static str = "OrderPaid";
/// }
///
/// let orders = Kafka::subscribe("localhost:9092", "billing", &["outbox.event.Order"])?;
/// Consumer::new("billing", pool, orders)
///     .on::<OrderPaid>(|tx, paid| {
///         Box::pin(async move {
///             sqlx::query("UPDATE revenue SET cents = cents + $1")
///                 .bind(paid.cents)
///                 .execute(&mut **tx)
///                 .await?;
///             Ok(())
///         })
///     })
///     .run(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a consumer does nothing until it is run"]
pub struct Consumer<D: Database, S> {
    processor: Processor<D>,
    subscription: S,
    options: Options,
}

impl<D: Database, S> Consumer<D, S> {
    /// A consumer of this name, such as `billing`. The name is part of each claim: another one
    /// applies every event again.
    pub fn new(name: impl Into<String>, database: D, subscription: S) -> Self {
        let processor = Processor {
            consumer: name.into(),
            database,
            handlers: Handlers::new(),
            version_of: None,
            gap_patience: None,
            given_up: GivenUp::default(),
            metrics: Arc::default(),
        };
        let options = Options {
            concurrency: 8,
            batch: 32,
            window: 1024,
            retry: Retry::default(),
            retention: Duration::from_secs(30 * 24 * 60 * 60),
            grace: Duration::from_secs(10),
        };
        Self { processor, subscription, options }
    }

    /// Handles the events that `E` is the payload of, by their type and version; fields that `E`
    /// does not have are passed over.
    ///
    /// The handler works in the transaction that it is given, which also has the claim: what it
    /// writes there, and what it [publishes](postrider::Outbox::publish) there, is committed with
    /// the claim or not at all. It may run again after it has failed, and after another event of
    /// the same transaction has.
    pub fn on<E: EventType + DeserializeOwned + Send + 'static>(
        mut self,
        handler: impl for<'t> Fn(&'t mut D::Tx, Delivered<E>) -> Handling<'t> + Send + Sync + 'static,
    ) -> Self {
        self.processor.handlers.add(handler);
        self
    }

    /// What becomes of events of a type that has no handler. Defaults to
    /// [`Skip`](Unhandled::Skip): a topic carries events for others, too.
    pub fn on_unknown_type(mut self, unhandled: Unhandled) -> Self {
        self.processor.handlers.unknown_type = unhandled;
        self
    }

    /// What becomes of events of a version that has no handler, although another one of their type
    /// has. Defaults to [`Bury`](Unhandled::Bury): somebody has to see to it.
    pub fn on_unknown_version(mut self, unhandled: Unhandled) -> Self {
        self.processor.handlers.unknown_version = unhandled;
        self
    }

    /// Keeps the last version of each key, and passes over an event that comes after a later one.
    /// `version_of` finds it in an event, for instance in a header; events of one key count it
    /// without gaps. A handler sees by [`Delivered::sequence`] whether some are missing.
    pub fn versions_by(
        mut self,
        version_of: impl Fn(&Event) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        self.processor.version_of = Some(Box::new(version_of));
        self
    }

    /// An event before which others are missing waits for them, so long, and then becomes a dead
    /// letter, as do those after it until the missing ones have come. Otherwise it is handled.
    ///
    /// The time should be some times as long as the broker takes to deliver again what a consumer
    /// that crashed had. A consumer that begins where the first events of a key are gone refuses
    /// that key.
    pub fn refuse_gaps(mut self, patience: Duration) -> Self {
        self.processor.gap_patience = Some(patience);
        self
    }

    /// How many transactions are open at once. Defaults to 8.
    pub fn concurrency(mut self, transactions: usize) -> Self {
        self.options.concurrency = transactions.max(1);
        self
    }

    /// How many events share a transaction at most. Defaults to 32. With 1 each has its own.
    pub fn batch(mut self, events: usize) -> Self {
        self.options.batch = events.max(1);
        self
    }

    /// How many deliveries are in memory at most. Defaults to 1024.
    pub fn window(mut self, deliveries: usize) -> Self {
        self.options.window = deliveries.max(1);
        self
    }

    /// When a handler that failed is tried again.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.options.retry = retry;
        self
    }

    /// For how long claims are kept. Defaults to 30 days. It must be longer than the broker may
    /// take to deliver an event again; with [`Duration::MAX`] they are kept for ever.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.options.retention = retention;
        self
    }

    /// How long a stop waits for handlers. Defaults to 10 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// What it does, in numbers.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.processor.metrics)
    }

    pub(crate) fn into_parts(self) -> (Processor<D>, S, Options) {
        (self.processor, self.subscription, self.options)
    }

    pub(crate) fn problem(&self) -> Option<String> {
        if self.processor.consumer.is_empty() {
            Some("the consumer has no name; give it one that never changes".to_owned())
        } else if self.processor.handlers.is_empty() {
            Some("the consumer has no handlers; add one with `on`".to_owned())
        } else {
            self.processor.handlers.twice().map(|(event_type, version)| {
                format!("two handlers are for {event_type} of version {version}; remove one")
            })
        }
    }
}

impl<D: Database, S: Subscription> Consumer<D, S> {
    /// Consumes until `shutdown` is over, then lets handlers end and gives the rest back.
    ///
    /// # Errors
    ///
    /// A mistake that only somebody can mend. A broker or a database that is away is waited for.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ConsumerError> {
        if let Some(problem) = self.problem() {
            return Err(ConsumerError::Misconfigured(problem));
        }
        let (processor, subscription, options) = self.into_parts();
        let mut shutdown = pin!(shutdown);
        tokio::select! {
            biased;
            () = &mut shutdown => return Ok(()),
            ready = preflight::ready(&processor, &subscription, options.retention) => ready?,
        }
        runtime::run(Arc::new(processor), Arc::new(subscription), options, shutdown).await
    }
}

/// Why a consumer cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// It is set up in a way that cannot work.
    #[error("{0}")]
    Misconfigured(String),
    /// The database has no inbox, or lets nobody use it.
    #[error("the inbox cannot be used")]
    Inbox(#[source] WriteError),
    /// The broker refuses, and goes on doing so.
    #[error("the subscription cannot go on")]
    Subscription(#[source] SubscriptionError),
    /// A worker was ended from outside.
    #[error("a worker has ended before its work")]
    Worker(#[source] tokio::task::JoinError),
}
