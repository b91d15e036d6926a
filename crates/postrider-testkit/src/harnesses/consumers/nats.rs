//! NATS JetStream, with a stream at the shared server.

use std::time::Duration;

use async_nats::HeaderMap;
use async_trait::async_trait;
use futures_util::future::join_all;
use postrider::Event;
use postrider_consumer::subscriptions::Nats as Subscription;
use postrider_relay::formats::Format;
use postrider_relay::sinks::SinkSpec;

use crate::servers::nats::{Stream, shared};
use crate::suites::Backend;
use crate::suites::consumer::{Capabilities, Consuming, Subject, TestTopic, Work};

const CAPABILITIES: Capabilities = Capabilities {
    has_visibility: true,
    is_relayed: true,
    knows_redelivery: true,
    keeps_order_in_group: false,
    repeats: true,
};
/// So that a case need not wait long for what a consumer that was killed has left.
const ACK_WAIT: Duration = Duration::from_secs(3);

/// NATS.
pub fn backend() -> Backend<Subject, Capabilities> {
    super::backend("nats", CAPABILITIES, || async { Nats(Stream::fresh().await) })
}

struct Nats(Stream);

impl Nats {
    async fn send(&self, messages: Vec<(HeaderMap, Vec<u8>)>) {
        let (context, subject) = (self.0.context(), self.0.subject("paid"));
        let mut acknowledged = Vec::new();
        for (headers, body) in messages {
            let sent = context.publish_with_headers(subject.clone(), headers, body.into()).await;
            acknowledged.push(sent.expect("it can be sent").into_future());
        }
        for acknowledged in join_all(acknowledged).await {
            acknowledged.expect("it is taken");
        }
    }
}

#[async_trait]
impl TestTopic for Nats {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    /// A durable consumer reads from the beginning.
    async fn add_group(&self, _: &str) {}

    async fn publish(&self, events: &[Event]) {
        let message = |event: &Event| {
            let mut headers = HeaderMap::new();
            for (name, value) in super::headers(event) {
                headers.insert(name, value);
            }
            (headers, event.payload().to_vec())
        };
        self.send(events.iter().map(message).collect()).await;
    }

    async fn publish_garbage(&self, body: &[u8]) {
        self.send(vec![(HeaderMap::new(), body.to_vec())]).await;
    }

    async fn relay(&self, event: Event, format: Format) {
        super::relay(SinkSpec::new(shared()), &self.0.subject("paid"), event, format).await;
    }

    fn consume(&self, group: &str, work: Work) -> Consuming {
        let context = self.0.context().clone();
        let subscription = Subscription::subscribe(context, &self.0.name, group);
        Consuming::start(subscription.ack_wait(ACK_WAIT), work)
    }
}
