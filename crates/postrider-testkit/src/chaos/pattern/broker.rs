//! The broker between the services: a server of its own, which is killed, too.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use async_nats::jetstream;
use uuid::Uuid;

use super::orders::{INVOICES_STREAM, INVOICES_TOPIC, InvoiceClosed, ORDERS_STREAM, ORDERS_TOPIC};
use crate::servers::{kafka, nats};

/// So many partitions have the orders.
const PARTITIONS: i32 = 3;
/// A member of a group that was killed is given up soon.
const KAFKA_SETTING: &str = "group.min.session.timeout.ms=1000";

/// Which broker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// A broker of Kafka, alone.
    Kafka,
    /// A server of NATS with JetStream, alone.
    Nats,
}

impl Broker {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Kafka, Self::Nats];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kafka => "kafka",
            Self::Nats => "nats",
        }
    }
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Broker {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|broker| broker.as_str() == name);
        found.ok_or_else(|| format!("there is no broker {name}, only kafka and nats"))
    }
}

/// A server that runs.
pub(super) enum Running {
    Kafka(kafka::Server),
    Nats(nats::Server),
}

/// The invoices that were published, by event.
pub(super) type Invoices = BTreeMap<Uuid, InvoiceClosed>;

impl Running {
    /// Starts one, with the topics of both services.
    pub(super) async fn start(broker: Broker) -> Self {
        match broker {
            Broker::Kafka => {
                let settings = vec![KAFKA_SETTING.to_owned()];
                let options = kafka::Options { settings, ..kafka::Options::default() };
                let server = kafka::Server::start(options).await;
                let brokers = server.internal();
                kafka::make_topic_as(&brokers, ORDERS_TOPIC, PARTITIONS, 1, &[]).await;
                kafka::make_topic_as(&brokers, INVOICES_TOPIC, 1, 1, &[]).await;
                Self::Kafka(server)
            }
            Broker::Nats => {
                let server = nats::Server::start(nats::Options::default()).await;
                let context = jetstream::new(nats::connect(&server.url()).await);
                let streams = [(ORDERS_STREAM, ORDERS_TOPIC), (INVOICES_STREAM, INVOICES_TOPIC)];
                for (name, subject) in streams {
                    let config = jetstream::stream::Config {
                        name: name.to_owned(),
                        subjects: vec![subject.to_owned()],
                        ..jetstream::stream::Config::default()
                    };
                    context.create_stream(config).await.expect("a stream can be made");
                }
                Self::Nats(server)
            }
        }
    }

    /// Where clients come.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Kafka(server) => server.url(),
            Self::Nats(server) => server.url(),
        }
    }

    pub(super) async fn kill9(&mut self) {
        match self {
            Self::Kafka(server) => server.kill9().await,
            Self::Nats(server) => server.kill9().await,
        }
    }

    pub(super) async fn start_again(&mut self) {
        match self {
            Self::Kafka(server) => server.start_again().await,
            Self::Nats(server) => server.start_again().await,
        }
    }

    /// What billing has published.
    pub(super) async fn invoices(&self) -> Invoices {
        let invoice = |id: &str, payload: &[u8]| {
            let id = id.parse().expect("an event has an id");
            (id, serde_json::from_slice(payload).expect("it is an invoice"))
        };
        match self {
            Self::Kafka(server) => {
                let records = kafka::read(&server.internal(), INVOICES_TOPIC).into_iter();
                let read = records.map(|record| {
                    let id = record.header("postrider-id").expect("an event has an id");
                    invoice(id, &record.value.clone().unwrap_or_default())
                });
                read.collect()
            }
            Self::Nats(server) => {
                let context = jetstream::new(nats::connect(&server.url()).await);
                let messages = nats::read(&context, INVOICES_STREAM).await.into_iter();
                let read = messages
                    .map(|message| invoice(&message.headers["postrider-id"], &message.payload));
                read.collect()
            }
        }
    }
}
