//! RabbitMQ, beside a loop over the same client with confirms.

use std::time::UNIX_EPOCH;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
    PublisherConfirm,
};
use postrider_relay::sink::Message;

use super::same::{self, Messages};
use super::{
    Broker, Rounds, Sizes, UnderWay, from_memory, peer_payload, shape, sink, timed, to_topic, url,
};
use crate::Outcome;
use crate::report::{Measured, Report, Section};

/// It takes a tenth of what the others take, and half of that again where the queues of a round
/// have four times as many.
const FEWER: u64 = 20;
const NAME: &str = "bench";
const PERSISTENT: u8 = 2;

pub(super) async fn run(sizes: Sizes) -> Outcome<(Report, String)> {
    let events = sizes.events / FEWER;
    let url = url(Broker::RabbitMq)?;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    check(&channel, &url).await?;
    let mut report = Report::new(Section::RabbitMq);
    report.title(&format!("rabbitmq, {}, persistent, a durable queue", shape(events)));
    let mut rounds = Rounds::new(&[
        "a loop over lapin with confirms, no headers",
        "the same loop, keys, properties and 6 headers",
        "postrider, keys, properties and 6 headers",
    ]);
    for _ in 0..super::ROUNDS {
        let plain = plain(&channel, events).await?;
        let same = dressed(&channel, events).await?;
        make_queue(&channel).await?;
        let measured = from_memory(sink(&url, "").await?, to_topic(NAME)?, events).await?;
        rounds.add(vec![plain, same, measured]);
    }
    remove(&channel).await?;
    rounds.tell(&mut report, &[(2, 0, "postrider, of the loop's rate")]);
    let same = "postrider, of the loop's rate with the same messages";
    rounds.tell_shares(&mut report, &[(2, 1, same)]);
    Ok((report, "RabbitMQ on the same machine".to_owned()))
}

/// A new exchange.
pub(super) async fn fresh_place(url: &str) -> Outcome<String> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    make_queue(&connection.create_channel().await?).await?;
    Ok(NAME.to_owned())
}

/// Makes an exchange and its queue anew.
async fn make_queue(channel: &Channel) -> Outcome<()> {
    remove(channel).await?;
    let exchange = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let none = FieldTable::default;
    channel.exchange_declare(NAME.into(), ExchangeKind::Fanout, exchange, none()).await?;
    let queue = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(NAME.into(), queue, none()).await?;
    let bound = QueueBindOptions::default();
    channel.queue_bind(NAME.into(), NAME.into(), "".into(), bound, none()).await?;
    Ok(())
}

async fn remove(channel: &Channel) -> Outcome<()> {
    channel.queue_delete(NAME.into(), QueueDeleteOptions::default()).await?;
    channel.exchange_delete(NAME.into(), ExchangeDeleteOptions::default()).await?;
    Ok(())
}

/// Bare payloads.
async fn plain(channel: &Channel, events: u64) -> Outcome<Measured> {
    make_queue(channel).await?;
    let payload = peer_payload();
    let persistent = BasicProperties::default().with_delivery_mode(PERSISTENT);
    timed(events, async {
        let mut confirms = UnderWay::new();
        for _ in 0..events {
            let sent = publish(channel, "", &payload, persistent.clone()).await?;
            confirms.add(confirmed(sent)).await?;
        }
        confirms.end().await
    })
    .await
}

/// What Postrider sends.
async fn dressed(channel: &Channel, events: u64) -> Outcome<Measured> {
    make_queue(channel).await?;
    let messages = Messages::start(events, NAME).await?;
    timed(events, async {
        let mut confirms = UnderWay::new();
        loop {
            let batch = messages.next().await?;
            if batch.is_empty() {
                return confirms.end().await;
            }
            for message in &batch {
                let properties = properties(message)?;
                let sent = publish(channel, &message.key, &message.body, properties).await?;
                confirms.add(confirmed(sent)).await?;
            }
        }
    })
    .await
}

async fn publish(
    channel: &Channel,
    key: &str,
    body: &[u8],
    properties: BasicProperties,
) -> Outcome<PublisherConfirm> {
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    Ok(channel.basic_publish(NAME.into(), key.into(), options, body, properties).await?)
}

async fn confirmed(confirm: PublisherConfirm) -> Outcome<()> {
    match confirm.await? {
        Confirmation::Ack(None) => Ok(()),
        other => Err(format!("not confirmed: {other:?}").into()),
    }
}

fn properties(message: &Message) -> Outcome<BasicProperties> {
    let mut headers = FieldTable::default();
    for (name, value) in same::facts(message) {
        let value = LongString::from(value.into_owned().into_bytes());
        headers.insert(name.into(), AMQPValue::LongString(value));
    }
    let event = &message.event;
    Ok(BasicProperties::default()
        .with_content_type(message.content_type.as_str().into())
        .with_delivery_mode(PERSISTENT)
        .with_headers(headers)
        .with_message_id(event.id().to_string().into())
        .with_timestamp(event.occurred_at().duration_since(UNIX_EPOCH)?.as_secs())
        .with_type(event.event_type().into()))
}

/// Fails if these are not Postrider's messages.
async fn check(channel: &Channel, url: &str) -> Outcome<()> {
    let messages = same::one(NAME).await?;
    let Message { key, body, .. } = &messages[0];
    make_queue(channel).await?;
    confirmed(publish(channel, key, body, properties(&messages[0])?).await?).await?;
    let peers = arrived(channel).await?;
    make_queue(channel).await?;
    same::publish(url, "", &messages).await?;
    same::compare(&peers, &arrived(channel).await?)
}

/// The key, the properties and the body of the queue's first message.
async fn arrived(channel: &Channel) -> Outcome<(String, BasicProperties, Vec<u8>)> {
    let message = channel.basic_get(NAME.into(), BasicGetOptions { no_ack: true }).await?;
    let message = message.ok_or("the queue is empty")?.delivery;
    Ok((message.routing_key.to_string(), message.properties, message.data))
}
