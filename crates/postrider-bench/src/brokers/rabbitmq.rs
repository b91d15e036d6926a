//! RabbitMQ, beside a loop over the same client with confirms.

use std::collections::VecDeque;

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, ExchangeDeleteOptions,
    QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};

use lapin::types::FieldTable;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind,
    PublisherConfirm,
};

use super::{Broker, Rounds, Sizes, from_memory, peer_payload, shape, sink, timed, to_topic, url};
use crate::Outcome;
use crate::report::{Measured, Report, Section};

/// As many as the pipeline has under way.
const IN_FLIGHT: usize = 4096;
/// It takes a tenth of what the others take.
const FEWER: u64 = 5;
const NAME: &str = "bench";

pub(super) async fn run(sizes: Sizes) -> Outcome<(Report, String)> {
    let events = sizes.events / FEWER;
    let url = url(Broker::RabbitMq)?;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut report = Report::new(Section::RabbitMq);
    report.title(&format!("rabbitmq, {}, persistent, a durable queue", shape(events)));
    let mut rounds = Rounds::new(&[
        "a loop over lapin with confirms, no headers",
        "postrider, keys and headers",
    ]);
    for _ in 0..super::ROUNDS {
        make_queue(&channel).await?;
        let plain = plain(&channel, events).await?;
        make_queue(&channel).await?;
        let measured = from_memory(sink(&url, "").await?, to_topic(NAME)?, events).await?;
        rounds.add(vec![plain, measured]);
    }
    remove(&channel).await?;
    rounds.tell(&mut report, &[(1, "postrider, of the loop's rate")]);
    Ok((report, "RabbitMQ on the same machine".to_owned()))
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

async fn plain(channel: &Channel, events: u64) -> Outcome<Measured> {
    let payload = peer_payload();
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let persistent = BasicProperties::default().with_delivery_mode(2);
    timed(events, async {
        let mut confirms: VecDeque<PublisherConfirm> = VecDeque::with_capacity(IN_FLIGHT);
        for _ in 0..events {
            if confirms.len() == IN_FLIGHT {
                for confirm in confirms.drain(..IN_FLIGHT / 4) {
                    is_confirmed(confirm.await?)?;
                }
            }
            let publishing = channel.basic_publish(
                NAME.into(),
                "".into(),
                options,
                &payload,
                persistent.clone(),
            );
            confirms.push_back(publishing.await?);
        }
        for confirm in confirms {
            is_confirmed(confirm.await?)?;
        }
        Ok(())
    })
    .await
}

fn is_confirmed(confirmation: Confirmation) -> Outcome<()> {
    match confirmation {
        Confirmation::Ack(None) => Ok(()),
        other => Err(format!("not confirmed: {other:?}").into()),
    }
}
