//! Redis, with a stream at the shared server.

use std::time::Duration;

use async_trait::async_trait;
use postrider::Event;
use postrider_consumer::subscriptions::Redis as Subscription;
use postrider_relay::formats::Format;
use postrider_relay::sinks::SinkSpec;
use redis::Client;
use uuid::Uuid;

use crate::servers::redis::{Stream, connect, shared};
use crate::suites::Backend;
use crate::suites::consumer::{Capabilities, Consuming, Subject, TestTopic, Work};

const CAPABILITIES: Capabilities = Capabilities {
    has_visibility: true,
    is_relayed: true,
    knows_redelivery: false,
    keeps_order_in_group: false,
    repeats: true,
};
/// So that a case need not wait long for what a consumer that was killed has left.
const VISIBILITY: Duration = Duration::from_secs(3);

/// Redis.
pub fn backend() -> Backend<Subject, Capabilities> {
    super::backend("redis", CAPABILITIES, || async { Redis(Stream::fresh().await) })
}

struct Redis(Stream);

impl Redis {
    async fn send(&self, entries: Vec<Vec<(String, Vec<u8>)>>) {
        let mut pipe = redis::pipe();
        for entry in entries {
            pipe.cmd("XADD").arg(&self.0.name).arg("*");
            for (name, value) in entry {
                pipe.arg(name).arg(value);
            }
            pipe.ignore();
        }
        let sent: redis::RedisResult<()> = pipe.query_async(&mut connect(&shared()).await).await;
        sent.expect("they are taken");
    }
}

#[async_trait]
impl TestTopic for Redis {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    /// A group reads from the beginning.
    async fn add_group(&self, _: &str) {}

    async fn publish(&self, events: &[Event]) {
        let entry = |event: &Event| {
            let headers = super::headers(event).into_iter();
            let fields = headers.map(|(name, value)| (name, value.into_bytes()));
            fields.chain([("payload".to_owned(), event.payload().to_vec())]).collect()
        };
        self.send(events.iter().map(entry).collect()).await;
    }

    async fn publish_garbage(&self, body: &[u8]) {
        self.send(vec![vec![("payload".to_owned(), body.to_vec())]]).await;
    }

    async fn relay(&self, event: Event, format: Format) {
        let spec = SinkSpec {
            options: "create_missing = true".parse().expect("it is TOML"),
            ..SinkSpec::new(shared())
        };
        super::relay(spec, &self.0.name, event, format).await;
    }

    fn consume(&self, group: &str, work: Work) -> Consuming {
        let client = Client::open(shared()).expect("a URL of Redis");
        let member = Uuid::now_v7().to_string();
        let subscription = Subscription::subscribe(client, group, &member, &[&self.0.name]);
        let subscription = subscription.expect("everything has a name");
        Consuming::start(subscription.with_visibility(VISIBILITY), work)
    }
}
