//! Subscribes to a stream of NATS JetStream, by a durable pull consumer.
//!
//! The consumer is made if it is missing. Instances of an application share it by its name, and
//! each gets a part of the messages, whatever their keys are: one instance keeps the order of each
//! key, several do not; and after a crash what comes again comes after what is newer. Whoever wants both gives each instance subjects of its own (see
//! [`filter_subjects`](Nats::filter_subjects)), or watches the versions (see
//! [`versions_by`](crate::Consumer::versions_by)).
//!
//! A message is asked for only if there is room for it, so none waits here while its time at the
//! server runs out.

mod durable;
mod incoming;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::Subject;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Batch;
use async_nats::jetstream::{AckKind, Context, Message};
use async_trait::async_trait;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::durable::{Durable, Prepared};
use self::incoming::incoming;
use crate::subscription::{Received, Redelivery, Subscription, SubscriptionError};

/// How long the server may take to be told something.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a request for messages waits at the server.
const EXPIRES: Duration = Duration::from_secs(5);
/// How much later the server's answer may come. The client waits for 5 s.
const LATE: Duration = Duration::from_secs(3);
/// How often it is looked whether the server still has the request.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const ACK_WAIT: Duration = Duration::from_secs(30);

/// A subscription to a stream.
pub struct Nats {
    context: Context,
    durable: Durable,
    /// The consumer's own `ack_wait` in milliseconds, once it is known.
    ack_wait_ms: AtomicU64,
    pulling: Mutex<Pulling>,
}

/// A message that was delivered.
#[derive(Clone, Debug)]
pub struct NatsHandle {
    /// Where acknowledgements go.
    reply: Subject,
}

#[derive(Default)]
struct Pulling {
    consumer: Option<PullConsumer>,
    /// What was asked for last. It is kept until all of it has come: what is under way to somebody
    /// who no longer listens would come again only after `ack_wait`.
    batch: Option<Batch>,
    asked_at: Option<Instant>,
    /// How often the client had connected then.
    connects: u64,
}

impl Pulling {
    /// Whether the server has not even said that there is nothing: it does not know the consumer.
    fn is_unanswered(&self) -> bool {
        self.asked_at.is_some_and(|at| at.elapsed() > EXPIRES + LATE)
    }
}

impl Nats {
    /// Reads a stream from its beginning, by the durable consumer of this name. The connection is
    /// the context's; it connects again by itself.
    pub fn subscribe(context: Context, stream: &str, durable: &str) -> Self {
        Self {
            context,
            durable: Durable {
                stream: stream.to_owned(),
                name: durable.to_owned(),
                filter_subjects: Vec::new(),
                ack_wait: ACK_WAIT,
            },
            ack_wait_ms: AtomicU64::new(0),
            pulling: Mutex::default(),
        }
    }

    /// Only messages of these subjects, which may have wildcards. Defaults to all.
    #[must_use]
    pub fn filter_subjects(mut self, subjects: &[&str]) -> Self {
        let subjects = subjects.iter().map(|subject| (*subject).to_owned());
        self.durable.filter_subjects = subjects.collect();
        self
    }

    /// After which time the server gives a message to another instance, unless it hears that the
    /// message is still worked on. Defaults to 30 s. A consumer that is there already keeps its
    /// own.
    #[must_use]
    pub fn ack_wait(mut self, ack_wait: Duration) -> Self {
        self.durable.ack_wait = ack_wait;
        self
    }

    async fn prepare(&self) -> Result<Prepared, SubscriptionError> {
        let prepared = self.durable.prepare(&self.context).await?;
        self.ack_wait_ms.store(prepared.ack_wait.as_millis() as u64, Ordering::Relaxed);
        Ok(prepared)
    }

    /// Asks for messages.
    async fn pull(&self, pulling: &mut Pulling, max: usize) -> Result<(), SubscriptionError> {
        let consumer = match &pulling.consumer {
            Some(consumer) => consumer,
            None => pulling.consumer.insert(self.prepare().await?.consumer),
        };
        let config = &consumer.cached_info().config;
        let max = match usize::try_from(config.max_batch) {
            Ok(limit @ 1..) => max.min(limit),
            _ => max,
        };
        let expires = Some(config.max_expires).filter(|limit| !limit.is_zero());
        let expires = expires.map_or(EXPIRES, |limit| limit.min(EXPIRES));
        pulling.asked_at = Some(Instant::now());
        pulling.connects = self.connects();
        let asked = consumer.batch().max_messages(max).expires(expires).messages();
        pulling.batch = Some(asked.await.map_err(unanswered)?);
        Ok(())
    }

    fn connects(&self) -> u64 {
        self.context.client().statistics().connects.load(Ordering::Relaxed)
    }

    /// Tells the server something about messages, all in one go.
    async fn tell(&self, handles: &[NatsHandle], what: AckKind) -> Result<(), SubscriptionError> {
        let (client, what) = (self.context.client(), bytes::Bytes::from(what));
        let telling = async {
            for handle in handles {
                client.publish(handle.reply.clone(), what.clone()).await.map_err(unanswered)?;
            }
            client.flush().await.map_err(unanswered)
        };
        timeout(TIMEOUT, telling).await.map_err(unanswered)?
    }

    fn take_in(&self, message: Message) -> Option<Received<NatsHandle>> {
        let sequence = message.info().ok()?.stream_sequence;
        let place = format!("{}@{sequence}", self.durable.stream);
        let handle = NatsHandle { reply: message.reply.clone()? };
        Some(Received { handle, incoming: incoming(message.message, place) })
    }
}

#[async_trait]
impl Subscription for Nats {
    type Handle = NatsHandle;

    fn name(&self) -> &'static str {
        "nats"
    }

    fn visibility(&self) -> Option<Duration> {
        match self.ack_wait_ms.load(Ordering::Relaxed) {
            0 => Some(self.durable.ack_wait),
            known => Some(Duration::from_millis(known)),
        }
    }

    /// For how long the stream keeps messages. One that keeps them for ever has no limit.
    async fn redelivery(&self) -> Result<Redelivery, SubscriptionError> {
        let prepared = self.prepare().await?;
        self.pulling.lock().await.consumer = Some(prepared.consumer);
        Ok(prepared.redelivery)
    }

    async fn receive(&self, max: usize) -> Result<Vec<Received<NatsHandle>>, SubscriptionError> {
        let mut pulling = self.pulling.lock().await;
        let mut received = Vec::new();
        while received.is_empty() {
            let Some(batch) = &mut pulling.batch else {
                self.pull(&mut pulling, max).await?;
                continue;
            };
            match timeout(LOOK_EVERY, batch.next()).await {
                Ok(Some(Ok(message))) => received.extend(self.take_in(message)),
                Ok(Some(Err(error))) => {
                    // It may have been removed.
                    *pulling = Pulling::default();
                    let message = "the stream's consumer gives nothing";
                    return Err(SubscriptionError::new(message, error));
                }
                // All of it has come, or nothing within the time.
                Ok(None) => {
                    pulling.batch = None;
                    if pulling.is_unanswered() {
                        pulling.consumer = None;
                    }
                }
                // A server that was connected to since knows nothing of the request.
                Err(_) if pulling.connects != self.connects() => pulling.batch = None,
                Err(_) => {}
            }
        }
        // What is there already comes along.
        while received.len() < max
            && let Some(batch) = &mut pulling.batch
            && let Some(Some(Ok(message))) = batch.next().now_or_never()
        {
            received.extend(self.take_in(message));
        }
        Ok(received)
    }

    async fn acknowledge(&self, handles: Vec<NatsHandle>) -> Result<(), SubscriptionError> {
        self.tell(&handles, AckKind::Ack).await
    }

    async fn release(&self, handles: Vec<NatsHandle>) -> Result<(), SubscriptionError> {
        self.tell(&handles, AckKind::Nak(None)).await
    }

    async fn extend(&self, handles: &[NatsHandle]) -> Result<(), SubscriptionError> {
        self.tell(handles, AckKind::Progress).await
    }

    /// Gives back what has come and was not received.
    async fn close(&self) {
        let Some(mut batch) = self.pulling.lock().await.batch.take() else { return };
        let mut left = Vec::new();
        while let Some(Some(Ok(message))) = batch.next().now_or_never() {
            left.extend(message.reply.clone().map(|reply| NatsHandle { reply }));
        }
        drop(batch);
        // Otherwise it comes again after `ack_wait`.
        let _ = self.tell(&left, AckKind::Nak(None)).await;
    }
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nats").field("durable", &self.durable).finish_non_exhaustive()
    }
}

fn unanswered(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> SubscriptionError {
    SubscriptionError::new("NATS does not answer as it should", error)
}
