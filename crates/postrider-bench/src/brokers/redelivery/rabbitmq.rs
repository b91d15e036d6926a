//! An exchange with a durable queue.

use async_trait::async_trait;
use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use super::{NAME, Place};
use crate::Outcome;

pub(super) struct Queue {
    /// Dropped, it would end the channel.
    _connection: Connection,
    channel: Channel,
}

impl Queue {
    pub(super) async fn make(url: &str) -> Outcome<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let queue = Self { channel: connection.create_channel().await?, _connection: connection };
        queue.delete().await?;
        let channel = &queue.channel;
        let exchange = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let none = FieldTable::default;
        channel.exchange_declare(NAME.into(), ExchangeKind::Fanout, exchange, none()).await?;
        queue.declare(QueueDeclareOptions { durable: true, ..Default::default() }).await?;
        let bound = QueueBindOptions::default();
        channel.queue_bind(NAME.into(), NAME.into(), "".into(), bound, none()).await?;
        Ok(queue)
    }

    /// Answers how many messages it has.
    async fn declare(&self, options: QueueDeclareOptions) -> Outcome<usize> {
        let declared = self.channel.queue_declare(NAME.into(), options, FieldTable::default());
        Ok(usize::try_from(declared.await?.message_count())?)
    }

    async fn delete(&self) -> Outcome<()> {
        self.channel.queue_delete(NAME.into(), QueueDeleteOptions::default()).await?;
        self.channel.exchange_delete(NAME.into(), ExchangeDeleteOptions::default()).await?;
        Ok(())
    }
}

#[async_trait]
impl Place for Queue {
    fn options(&self) -> String {
        format!("topic = {NAME:?}")
    }

    async fn ids(&self) -> Outcome<Vec<String>> {
        let count =
            self.declare(QueueDeclareOptions { passive: true, ..Default::default() }).await?;
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let none = FieldTable::default();
        let consumer = self.channel.basic_consume(NAME.into(), "".into(), options, none);
        let mut consumer = consumer.await?;
        let mut ids = Vec::with_capacity(count);
        while ids.len() < count {
            let message = consumer.next().await.ok_or("the queue ended")??;
            let id = message.properties.message_id().as_ref();
            ids.push(id.ok_or("a message has no id")?.to_string());
        }
        Ok(ids)
    }

    async fn remove(self: Box<Self>) -> Outcome<()> {
        self.delete().await
    }
}
