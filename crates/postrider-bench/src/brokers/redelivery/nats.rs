//! A stream in files.

use async_nats::jetstream::{self, Context, consumer::pull::OrderedConfig, stream};
use async_trait::async_trait;
use futures_util::StreamExt as _;

use super::{NAME, Place};
use crate::Outcome;
use crate::brokers::nats::connect;

const SUBJECT: &str = "bench-redelivery.events";
const ID: &str = "Nats-Msg-Id";

pub(super) struct Stream {
    context: Context,
}

impl Stream {
    pub(super) async fn make(url: &str) -> Outcome<Self> {
        let context = jetstream::new(connect(url).await?);
        // There may be none.
        let _ = context.delete_stream(NAME).await;
        let config = stream::Config {
            name: NAME.to_owned(),
            subjects: vec![SUBJECT.to_owned()],
            storage: stream::StorageType::File,
            ..stream::Config::default()
        };
        context.create_stream(config).await?;
        Ok(Self { context })
    }
}

#[async_trait]
impl Place for Stream {
    fn options(&self) -> String {
        format!("topic = {SUBJECT:?}")
    }

    async fn ids(&self) -> Outcome<Vec<String>> {
        let stream = self.context.get_stream(NAME).await?;
        let count = stream.cached_info().state.messages;
        let config = OrderedConfig { headers_only: true, ..OrderedConfig::default() };
        let consumer = stream.create_consumer(config).await?;
        let mut messages = consumer.messages().await?;
        let mut ids = Vec::new();
        while (ids.len() as u64) < count {
            let message = messages.next().await.ok_or("the stream ended")??;
            let id = message.headers.as_ref().and_then(|headers| headers.get(ID));
            ids.push(id.ok_or("a message has no id")?.to_string());
        }
        Ok(ids)
    }

    async fn remove(self: Box<Self>) -> Outcome<()> {
        self.context.delete_stream(NAME).await?;
        Ok(())
    }
}
