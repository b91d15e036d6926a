//! Scratch exchanges, each with a queue that takes whatever comes.
//!
//! By AMQP nobody can ask what queues there are. So they go by themselves: the queue when it was
//! not used for a while, and the exchange with its last queue.

use async_trait::async_trait;
use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};
use tokio::time::timeout;

use super::connecting::Connector;
use super::failure;
use super::lane::Lane;
use super::options::Options;
use crate::scratch::{ScratchName, ScratchSink, USED_MAX};
use crate::sink::{FailureKind, Sink, SinkError};
use crate::sinks::problem;

/// Scratch exchanges of one virtual host.
pub(in crate::sinks) struct RabbitMqScratch {
    options: Options,
}

impl Options {
    /// Scratch exchanges of the same virtual host.
    pub(in crate::sinks) fn scratch(&self) -> RabbitMqScratch {
        RabbitMqScratch { options: self.clone() }
    }
}

impl RabbitMqScratch {
    /// Does something on a connection of its own.
    async fn with_lane(
        &self,
        name: &ScratchName,
        work: impl AsyncFnOnce(Channel) -> Result<(), lapin::Error>,
    ) -> Result<(), SinkError> {
        let connector = Connector::new(&self.options.check().map_err(problem::misconfigured)?)?;
        let lane = Lane::open(&connector).await?;
        let longest = connector.answer_timeout();
        let done = match timeout(longest, work(lane.channel.clone())).await {
            Ok(done) => {
                done.map_err(|error| failure::declaring(&error, &name.topic(), connector.place()))
            }
            Err(_) => {
                let message = format!("RabbitMQ gave no answer within {longest:?}");
                Err(SinkError::new(FailureKind::Unavailable, message))
            }
        };
        lane.close().await;
        done
    }
}

#[async_trait]
impl ScratchSink for RabbitMqScratch {
    fn place(&self, name: &ScratchName) -> String {
        format!("the exchange and the queue {}", name.topic())
    }

    async fn list(&self) -> Result<Vec<ScratchName>, SinkError> {
        Ok(Vec::new())
    }

    async fn make(&self, name: &ScratchName) -> Result<(), SinkError> {
        let topic = name.topic();
        let make = async |channel: Channel| {
            let exchange =
                ExchangeDeclareOptions { auto_delete: true, durable: true, ..Default::default() };
            let kind = ExchangeKind::Topic;
            let none = FieldTable::default;
            channel.exchange_declare(topic.as_str().into(), kind, exchange, none()).await?;
            let queue = QueueDeclareOptions { durable: true, ..Default::default() };
            let mut arguments = none();
            let expires = i32::try_from(USED_MAX.as_millis()).unwrap_or(i32::MAX);
            arguments.insert("x-expires".into(), AMQPValue::LongInt(expires));
            channel.queue_declare(topic.as_str().into(), queue, arguments).await?;
            let bind = QueueBindOptions::default();
            let (queue, exchange) = (topic.as_str().into(), topic.as_str().into());
            channel.queue_bind(queue, exchange, "#".into(), bind, none()).await
        };
        self.with_lane(name, make).await
    }

    async fn connect(&self, name: &ScratchName) -> Result<Box<dyn Sink>, SinkError> {
        let mut options = self.options.clone();
        options.pipeline.topic = Some(name.topic());
        Ok(Box::new(options.connect().await?))
    }

    async fn remove(&self, name: &ScratchName) -> Result<(), SinkError> {
        let topic = name.topic();
        let remove = async |channel: Channel| {
            let (queue, exchange) =
                (QueueDeleteOptions::default(), ExchangeDeleteOptions::default());
            channel.queue_delete(topic.as_str().into(), queue).await?;
            channel.exchange_delete(topic.as_str().into(), exchange).await
        };
        self.with_lane(name, remove).await
    }
}
