//! Subscribes to a queue of RabbitMQ, a quorum queue or a classic one.
//!
//! A queue with one consumer keeps the order of each key; with several, each gets a part of the
//! messages, whatever their keys are. Declare the queue with `x-single-active-consumer` to have
//! instances that only stand by, or bind a queue for each of them (a consistent hash exchange does
//! it by key).
//!
//! - A message that is under way for longer than the server's `consumer_timeout` (30 min) comes
//!   again, as all others of the connection do.
//! - A quorum queue counts how often a message comes back, and drops it, or dead-letters it, beyond
//!   its `delivery-limit` (20 since RabbitMQ 4.0). Crashes and stops count: give the queue a
//!   dead-letter exchange, or a limit of -1 by a policy.
//! - A stream (`x-queue-type: stream`) cannot be read: it keeps no account of what is done with.

mod failure;
mod incoming;

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::timeout;

use self::failure::{failed, unanswered};
use self::incoming::{incoming, is_of_a_stream};
use crate::subscription::{Received, Subscription, SubscriptionError};

/// How long the server may take to be connected to, or to be told something.
const TIMEOUT: Duration = Duration::from_secs(10);
const PREFETCH: u16 = 1024;
const CONSUMER_TAG: &str = "postrider";

type Connecting = Pin<Box<dyn Future<Output = lapin::Result<Connection>> + Send>>;

/// A subscription to a queue.
pub struct RabbitMq {
    connect: Box<dyn Fn() -> Connecting + Send + Sync>,
    queue: String,
    consumer_tag: String,
    prefetch: u16,
    reading: tokio::sync::Mutex<Option<Reading>>,
    /// Where deliveries are acknowledged.
    current: Mutex<Current>,
}

/// A message that was delivered.
#[derive(Clone, Copy, Debug)]
pub struct RabbitMqHandle {
    /// Tags count from one on in each channel.
    delivery_tag: u64,
    /// Which of the channels it is.
    generation: u64,
}

/// What deliveries come by.
struct Reading {
    /// Closed if it is dropped.
    connection: Connection,
    channel: Channel,
    /// None before something is received.
    consumer: Option<lapin::Consumer>,
    generation: u64,
}

#[derive(Default)]
struct Current {
    channel: Option<Channel>,
    generation: u64,
}

impl RabbitMq {
    /// Reads a queue, which must be there.
    pub fn subscribe(uri: &str, queue: &str) -> Self {
        let (uri, name) = (uri.to_owned(), format!("postrider consumer of {queue}"));
        let connect = move || {
            let (uri, name) = (uri.clone(), name.clone());
            let properties = ConnectionProperties::default().with_connection_name(name.into());
            async move { Connection::connect(&uri, properties).await }
        };
        Self::with_connection(connect, queue)
    }

    /// The same with connections of the application's own making, for instance with certificates.
    /// `connect` is called again whenever a connection is lost; do not let lapin recover them.
    pub fn with_connection<F>(connect: impl Fn() -> F + Send + Sync + 'static, queue: &str) -> Self
    where
        F: Future<Output = lapin::Result<Connection>> + Send + 'static,
    {
        Self {
            connect: Box::new(move || Box::pin(connect())),
            queue: queue.to_owned(),
            consumer_tag: CONSUMER_TAG.to_owned(),
            prefetch: PREFETCH,
            reading: tokio::sync::Mutex::default(),
            current: Mutex::default(),
        }
    }

    /// What the server shows the consumer as. Defaults to `postrider`.
    #[must_use]
    pub fn consumer_tag(mut self, tag: &str) -> Self {
        tag.clone_into(&mut self.consumer_tag);
        self
    }

    /// How many messages the server sends ahead. Defaults to 1024, as many as a consumer's
    /// [window](crate::Consumer::window) has.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        // Zero would mean all of them.
        self.prefetch = messages.max(1);
        self
    }

    async fn open(&self) -> Result<Reading, SubscriptionError> {
        let opening = async {
            let failed = |error| failed(error, &self.queue);
            let connection = (self.connect)().await.map_err(failed)?;
            let channel = connection.create_channel().await.map_err(failed)?;
            let qos = channel.basic_qos(self.prefetch, BasicQosOptions::default());
            qos.await.map_err(failed)?;
            Ok((connection, channel))
        };
        let (connection, channel) = timeout(TIMEOUT, opening).await.map_err(unanswered)??;
        let mut current = self.current();
        current.generation += 1;
        current.channel = Some(channel.clone());
        let generation = current.generation;
        Ok(Reading { connection, channel, consumer: None, generation })
    }

    async fn consume(&self, channel: &Channel) -> Result<lapin::Consumer, SubscriptionError> {
        let (queue, tag) = (self.queue.as_str().into(), self.consumer_tag.as_str().into());
        let options = BasicConsumeOptions::default();
        let consuming = channel.basic_consume(queue, tag, options, FieldTable::default());
        let consuming = timeout(TIMEOUT, consuming).await.map_err(unanswered)?;
        consuming.map_err(|error| failed(error, &self.queue))
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel, and the tags of the deliveries that came by it. Others come again.
    fn tags_of(&self, handles: &[RabbitMqHandle]) -> Option<(Channel, Vec<u64>)> {
        let current = self.current();
        let own = handles.iter().filter(|handle| handle.generation == current.generation);
        let tags = own.map(|handle| handle.delivery_tag).collect();
        Some((current.channel.clone()?, tags))
    }

    fn take_in(
        &self,
        delivery: Delivery,
        generation: u64,
    ) -> Result<Received<RabbitMqHandle>, SubscriptionError> {
        if is_of_a_stream(&delivery) {
            return Err(SubscriptionError::mistake(format!(
                "{} is a stream, which keeps no account of what is done with; bind a quorum queue \
                 to the exchange and read that",
                self.queue
            )));
        }
        let handle = RabbitMqHandle { delivery_tag: delivery.delivery_tag, generation };
        Ok(Received { handle, incoming: incoming(delivery, &self.queue) })
    }

    /// Receives by what is open.
    async fn read(
        &self,
        reading: &mut Reading,
        max: usize,
    ) -> Result<Vec<Received<RabbitMqHandle>>, SubscriptionError> {
        let generation = reading.generation;
        let consumer = match &mut reading.consumer {
            Some(consumer) => consumer,
            consumer => consumer.insert(self.consume(&reading.channel).await?),
        };
        let Some(first) = consumer.next().await else {
            return Err(SubscriptionError {
                message: format!("the server has ended the consumer of {}", self.queue),
                source: None,
                is_final: false,
            });
        };
        let first = first.map_err(|error| failed(error, &self.queue))?;
        let mut received = vec![self.take_in(first, generation)?];
        // What is there already comes along.
        while received.len() < max
            && let Some(Some(Ok(delivery))) = consumer.next().now_or_never()
        {
            received.push(self.take_in(delivery, generation)?);
        }
        Ok(received)
    }
}

#[async_trait]
impl Subscription for RabbitMq {
    type Handle = RabbitMqHandle;

    fn name(&self) -> &'static str {
        "rabbitmq"
    }

    async fn receive(
        &self,
        max: usize,
    ) -> Result<Vec<Received<RabbitMqHandle>>, SubscriptionError> {
        let mut place = self.reading.lock().await;
        let reading = match &mut *place {
            Some(reading) => reading,
            empty => empty.insert(self.open().await?),
        };
        let received = self.read(reading, max).await;
        if received.is_err() {
            // What came by it comes again.
            *place = None;
            self.current().channel = None;
        }
        received
    }

    async fn acknowledge(&self, handles: Vec<RabbitMqHandle>) -> Result<(), SubscriptionError> {
        let Some((channel, tags)) = self.tags_of(&handles) else { return Ok(()) };
        let options = BasicAckOptions::default();
        let telling = try_join_all(tags.into_iter().map(|tag| channel.basic_ack(tag, options)));
        timeout(TIMEOUT, telling).await.map_err(unanswered)?.map_err(unanswered)?;
        Ok(())
    }

    /// Ends the consumer, too: it would be the first to get them again.
    async fn release(&self, handles: Vec<RabbitMqHandle>) -> Result<(), SubscriptionError> {
        let Some((channel, mut tags)) = self.tags_of(&handles) else { return Ok(()) };
        // Not if somebody receives.
        if let Ok(mut place) = self.reading.try_lock()
            && let Some(mut consumer) = place.as_mut().and_then(|reading| reading.consumer.take())
        {
            let ending = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
            timeout(TIMEOUT, ending).await.map_err(unanswered)?.map_err(unanswered)?;
            while let Some(Some(Ok(delivery))) = consumer.next().now_or_never() {
                tags.push(delivery.delivery_tag);
            }
        }
        let options = BasicNackOptions { multiple: false, requeue: true };
        let telling = try_join_all(tags.into_iter().map(|tag| channel.basic_nack(tag, options)));
        timeout(TIMEOUT, telling).await.map_err(unanswered)?.map_err(unanswered)?;
        Ok(())
    }

    /// What came by a connection that was lost comes again.
    fn is_lost(&self, handle: &RabbitMqHandle) -> bool {
        let current = self.current();
        current.channel.is_none() || current.generation != handle.generation
    }

    async fn close(&self) {
        self.current().channel = None;
        if let Some(reading) = self.reading.lock().await.take() {
            let _ = reading.connection.close(200, "the consumer stops".into()).await;
        }
    }
}

impl std::fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMq").field("queue", &self.queue).finish_non_exhaustive()
    }
}
