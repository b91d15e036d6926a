//! A topic, read by a consumer of committed records.

use std::time::Duration;

use async_trait::async_trait;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{NAME, Place};
use crate::Outcome;

const PARTITIONS: i32 = 12;
const ID: &str = "postrider-id";
/// No answer takes so long.
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Topic {
    servers: String,
    admin: AdminClient<DefaultClientContext>,
    name: String,
}

impl Topic {
    pub(super) async fn make(url: &str) -> Outcome<Self> {
        let servers = url.trim_start_matches("kafka://").to_owned();
        let admin: AdminClient<_> =
            ClientConfig::new().set("bootstrap.servers", &servers).create()?;
        // A topic that was deleted is gone only after a while.
        let name = format!("{NAME}-{:x}", std::time::UNIX_EPOCH.elapsed()?.as_nanos());
        let topic = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(1));
        let made = admin.create_topics(&[topic], &AdminOptions::new()).await?;
        made.into_iter().try_for_each(|made| made.map(drop)).map_err(|(_, code)| code)?;
        Ok(Self { servers, admin, name })
    }
}

#[async_trait]
impl Place for Topic {
    fn options(&self) -> String {
        format!("topic = {:?}", self.name)
    }

    async fn ids(&self) -> Outcome<Vec<String>> {
        let (servers, name) = (self.servers.clone(), self.name.clone());
        tokio::task::spawn_blocking(move || read(&servers, &name)).await?
    }

    async fn remove(self: Box<Self>) -> Outcome<()> {
        self.admin.delete_topics(&[&self.name], &AdminOptions::new()).await?;
        Ok(())
    }
}

fn read(servers: &str, topic: &str) -> Outcome<Vec<String>> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("group.id", NAME)
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .create()?;
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(topic, partition, Offset::Beginning)?;
    }
    consumer.assign(&all)?;
    let mut ids = Vec::new();
    let mut ended = 0;
    while ended < PARTITIONS {
        match consumer.poll(TIMEOUT).ok_or("the broker does not answer")? {
            Ok(record) => {
                let mut headers = record.headers().into_iter().flat_map(|headers| headers.iter());
                let id = headers.find(|header| header.key == ID).and_then(|header| header.value);
                ids.push(String::from_utf8(id.ok_or("a record has no id")?.to_vec())?);
            }
            Err(KafkaError::PartitionEOF(_)) => ended += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ids)
}
