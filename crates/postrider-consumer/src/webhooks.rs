//! Consumers of webhooks: a route of axum that verifies a request, claims its event and answers
//! after the commit.
//!
//! # Answers
//!
//! The sender is the broker here: it keeps what is not answered with 2xx, sends it again and counts
//! the attempts. So the answer says what it should do, and nothing is tried again on this side.
//!
//! | what happened | answer | what the relay does |
//! |---|---|---|
//! | the effect was committed, now or before; nobody handles such events | 204 | it is delivered |
//! | no later attempt could mend it | 204, after it was kept as a dead letter | it is delivered |
//! | the handler failed | 500, `Retry-After` | counts an attempt, tries again, parks in the end |
//! | the database is away, or there is too much at once | 503, `Retry-After` | waits, counts nothing |
//! | the signature or the time is wrong | 401 | stops with a message |
//! | it is no event | 400 | parks it at once |
//! | the body is too large, or too slow | 413, 408 | parks it, tries again |
//!
//! # What is signed
//!
//! The id, the time and the body are; other headers are not. In the formats that have an event's
//! facts in headers, whoever sees a request could send it again with another type. HTTPS keeps them
//! out; with `cloudevents-structured` everything is in the body.

mod body;
mod headers;
mod refusal;
mod slots;
mod verifier;
mod webhook;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, post};
use postrider::{Claim, Event};
use tokio::sync::Semaphore;

pub use self::refusal::Refusal;
use self::slots::Slots;
pub use self::verifier::{
    BODY_BYTES_MAX, BODY_RATE_MIN, BadSecret, NotGenuine, TOLERANCE, Verifier,
};
pub use self::webhook::Webhook;
use crate::consumer::{Consumer, ConsumerError};
use crate::database::Database;
use crate::processor::{Due, FailureKind, Processor, told};
use crate::runtime::{PRUNE_BATCH, PRUNE_EVERY, prune_once};

/// When the sender should try again, in seconds.
const RETRY_AFTER_SECONDS: u64 = 2;

/// So many bodies that are not small are in memory at most before it is known whether they are
/// genuine.
const READING_MAX: usize = 128;

/// So many of them are from one peer at most.
pub const BODIES_PER_PEER: usize = 32;

/// Deliveries by HTTP, in the place of a subscription. See [`Consumer::into_route`].
#[derive(Clone, Debug)]
pub struct Webhooks {
    verifier: Verifier,
    bodies_per_peer: usize,
    proxies: usize,
}

impl Webhooks {
    /// Takes requests that the verifier finds genuine.
    pub fn new(verifier: Verifier) -> Self {
        Self { verifier, bodies_per_peer: BODIES_PER_PEER, proxies: 0 }
    }

    /// How many bodies of more than 16 KiB are read at a time from one address of IPv4, or one
    /// network of 64 bits of IPv6. Others of it wait, and no other peer does. At least 1, defaults
    /// to 32; all peers together have 128.
    ///
    /// The address is known if the router is served by
    /// [`into_make_service_with_connect_info::<SocketAddr>()`](axum::Router::into_make_service_with_connect_info);
    /// otherwise there is no limit per peer. Behind a proxy all peers have its address: see
    /// [`proxies`](Self::proxies).
    #[must_use]
    pub fn bodies_per_peer(mut self, bodies: usize) -> Self {
        self.bodies_per_peer = bodies.max(1);
        self
    }

    /// How many proxies of your own each request passes: a peer is then whom the first of them was
    /// connected to by, as `x-forwarded-for` says, in which each proxy appends an address. Defaults
    /// to 0: the header is not read, as anybody can write it. With a number that is too large,
    /// strangers can choose their addresses.
    #[must_use]
    pub fn proxies(mut self, proxies: usize) -> Self {
        self.proxies = proxies;
        self
    }
}

impl<D: Database> Consumer<D, Webhooks> {
    /// The route to which webhooks are sent, for a router of axum. It takes POST requests, and
    /// answers as [this table](crate::webhooks#answers) says.
    ///
    /// The order of a key's events and how many come at once is up to the sender. At most
    /// [`concurrency`](Self::concurrency) transactions are open; when [`window`](Self::window)
    /// genuine requests are there, more are answered with 503. Requests that come slowly and are
    /// not known to be genuine do not keep them waiting: see [`Webhooks::bodies_per_peer`] and
    /// [`Verifier::body_rate_min`]. What is about trying again does not apply:
    /// the sender does. Of two deliveries of an event at once one waits for the other. Old claims
    /// are removed in passing. If the sender no longer waits for the answer, a handler that has not
    /// ended is dropped, and its transaction rolled back.
    ///
    /// ```
    /// # #[cfg(feature = "sqlx-postgres")]
    /// # fn example(pool: sqlx::PgPool) -> Result<axum::Router, Box<dyn std::error::Error>> {
    /// use axum::Router;
    /// use postrider_consumer::Consumer;
    /// use postrider_consumer::webhooks::{Verifier, Webhooks};
    /// # #[derive(serde::Deserialize)]
    /// # struct OrderPaid { cents: i64 }
    /// # impl postrider::EventType for OrderPaid {
    /// #     const EVENT_TYPE: &'static str = "OrderPaid";
    /// # }
    ///
    /// let verifier = Verifier::new([std::env::var("WEBHOOK_SECRET")?])?;
    /// let orders = Consumer::new("billing", pool, Webhooks::new(verifier))
    ///     .on::<OrderPaid>(|tx, paid| {
    ///         Box::pin(async move {
    ///             sqlx::query("UPDATE revenue SET cents = cents + $1")
    ///                 .bind(paid.cents)
    ///                 .execute(&mut **tx)
    ///                 .await?;
    ///             Ok(())
    ///         })
    ///     })
    ///     .into_route()?;
    /// let app = Router::new().route("/orders", orders);
    /// # Ok(app)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The consumer has no name or no handlers.
    pub fn into_route<T>(self) -> Result<MethodRouter<T>, ConsumerError>
    where
        T: Clone + Send + Sync + 'static,
    {
        if let Some(problem) = self.problem() {
            return Err(ConsumerError::Misconfigured(problem));
        }
        let (processor, webhooks, options) = self.into_parts();
        let receiver = Arc::new(Receiver {
            processor,
            verifier: webhooks.verifier,
            slots: Slots::new(READING_MAX, webhooks.bodies_per_peer),
            proxies: webhooks.proxies,
            window: options.window,
            in_flight: AtomicUsize::new(0),
            transactions: Semaphore::new(options.concurrency.min(Semaphore::MAX_PERMITS)),
            retention: options.retention,
            prune_at: Mutex::new(Instant::now()),
        });
        Ok(post(move |request: Request| {
            let receiver = Arc::clone(&receiver);
            async move { receiver.receive(request).await }
        }))
    }
}

/// What takes requests.
struct Receiver<D: Database> {
    processor: Processor<D>,
    verifier: Verifier,
    /// For requests whose body is being read.
    slots: Slots,
    proxies: usize,
    window: usize,
    /// Genuine requests that are not answered.
    in_flight: AtomicUsize,
    transactions: Semaphore,
    retention: Duration,
    prune_at: Mutex<Instant>,
}

impl<D: Database> Receiver<D> {
    async fn receive(&self, request: Request) -> Response {
        let slots = Some((&self.slots, self.proxies));
        let webhook = Webhook::read(&self.verifier, slots, request).await;
        let event = match webhook.and_then(|webhook| webhook.event()) {
            Ok(event) => event,
            Err(refusal) => {
                let (consumer, status) = (&self.processor.consumer, refusal.status().as_u16());
                // Anybody can cause it, so it must not fill a log.
                tracing::debug!(%consumer, status, %refusal, "a request was turned away");
                return refusal.into_response();
            }
        };
        // Strangers have no place among those that are genuine.
        let place = Place::take(self);
        if place.count > self.window {
            return again(StatusCode::SERVICE_UNAVAILABLE, "there are too many requests at once");
        }
        self.processor.metrics.received(1);
        let transaction = self.transactions.acquire().await;
        let _transaction = transaction.expect("it is never closed");
        match self.apply(&event).await {
            Ok(()) => {
                self.prune_if_due().await;
                StatusCode::NO_CONTENT.into_response()
            }
            Err(failed) => failed,
        }
    }

    /// Has the effect of an event, unless it was had before.
    async fn apply(&self, event: &Event) -> Result<(), Response> {
        let due = Due { event, is_revived: false };
        let Err(failure) = self.processor.process(&[due]).await else { return Ok(()) };
        let (consumer, id, error) = (&self.processor.consumer, event.id(), told(&*failure.error));
        match failure.kind {
            FailureKind::Database => {
                tracing::warn!(%consumer, %id, %error, "the database is away; the sender tries again");
                Err(again(StatusCode::SERVICE_UNAVAILABLE, "the database is away"))
            }
            FailureKind::Handler | FailureKind::Gap { .. } => {
                self.processor.metrics.retries(1);
                tracing::warn!(%consumer, %id, %error, "the handler failed; the sender tries again");
                Err(again(StatusCode::INTERNAL_SERVER_ERROR, "the handler failed"))
            }
            FailureKind::Rejected => self.bury(event, &error).await,
        }
    }

    async fn bury(&self, event: &Event, error: &str) -> Result<(), Response> {
        let (consumer, id) = (&self.processor.consumer, event.id());
        match self.processor.bury(event, error, 1).await {
            Ok(Claim::Duplicate) => Ok(()),
            Ok(Claim::First) => {
                tracing::error!(%consumer, %id, %error, "the event became a dead letter");
                Ok(())
            }
            Err(error) => {
                let error = told(&error);
                tracing::warn!(%consumer, %id, %error, "the dead letter could not be kept; the sender tries again");
                Err(again(StatusCode::SERVICE_UNAVAILABLE, "the database is away"))
            }
        }
    }

    /// Removes claims that are older than the retention: a batch from time to time, or with each
    /// delivery as long as there are more.
    async fn prune_if_due(&self) {
        let now = Instant::now();
        {
            let mut at = self.prune_at.lock().unwrap_or_else(PoisonError::into_inner);
            if now < *at {
                return;
            }
            *at = now + PRUNE_EVERY;
        }
        match prune_once(&self.processor, self.retention).await {
            Ok(removed) if removed >= u64::from(PRUNE_BATCH) => {
                *self.prune_at.lock().unwrap_or_else(PoisonError::into_inner) = now;
            }
            Ok(_) => {}
            Err(error) => {
                let consumer = &self.processor.consumer;
                tracing::warn!(%consumer, %error, "old claims were not removed; trying again later");
            }
        }
    }
}

/// A request's place among those that are here, until it is dropped.
struct Place<'r, D: Database> {
    receiver: &'r Receiver<D>,
    /// How many there are, with this one.
    count: usize,
}

impl<'r, D: Database> Place<'r, D> {
    fn take(receiver: &'r Receiver<D>) -> Self {
        let count = receiver.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        receiver.processor.metrics.set_in_flight(count);
        Self { receiver, count }
    }
}

impl<D: Database> Drop for Place<'_, D> {
    fn drop(&mut self) {
        let count = self.receiver.in_flight.fetch_sub(1, Ordering::Relaxed) - 1;
        self.receiver.processor.metrics.set_in_flight(count);
    }
}

/// Asks the sender to try again. What went wrong in detail is for the log.
fn again(status: StatusCode, why: &str) -> Response {
    let retry_after = [(header::RETRY_AFTER, RETRY_AFTER_SECONDS.to_string())];
    (status, retry_after, format!("{why}; try again\n")).into_response()
}
