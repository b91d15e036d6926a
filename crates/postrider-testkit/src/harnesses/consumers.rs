//! Brokers for the consumer suite.

#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
pub mod stored;

use std::sync::Arc;

use postrider::{Event, timestamp};
use postrider_relay::formats::{Encoding, Format};
use postrider_relay::routing::{Route, Template};
use postrider_relay::sinks::SinkSpec;

use crate::suites::consumer::{Capabilities, Ledger, Subject, TestTopic};
use crate::suites::{Backend, Clock};

/// A broker whose topics `make` makes.
fn backend<T: TestTopic + 'static, F: Future<Output = T> + 'static>(
    name: &'static str,
    capabilities: Capabilities,
    make: fn() -> F,
) -> Backend<Subject, Capabilities> {
    Backend::new(name, capabilities, Clock::Real, move || async move {
        Subject { topic: Box::new(make().await), ledger: Ledger::fresh().await }
    })
}

/// What the format `payload` sends beside the payload.
fn headers(event: &Event) -> Vec<(String, String)> {
    let own = [
        ("postrider-id", event.id().to_string()),
        ("postrider-aggregate-type", event.aggregate_type().to_owned()),
        ("postrider-aggregate-id", event.aggregate_id().to_owned()),
        ("postrider-event-type", event.event_type().to_owned()),
        ("postrider-event-version", event.event_version().to_string()),
        ("postrider-occurred-at", timestamp::to_text(event.occurred_at())),
        ("content-type", event.content_type().to_owned()),
    ];
    let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
    own.chain(event.headers().iter().map(|(name, value)| (name.clone(), value.clone()))).collect()
}

/// Publishes an event by the relay's sink.
async fn relay(spec: SinkSpec, topic: &str, event: Event, format: Format) {
    let template = Template::parse(&topic.replace('{', "{{")).expect("a name is a template");
    let route = Route { topic: template, ..Route::default() };
    let encoding = Encoding { route, format, ..Encoding::default() };
    let message = encoding.encode(Arc::new(event)).expect("it can be encoded");
    let sink = spec.connect().await.expect("the sink can be connected");
    assert_eq!(sink.publish(&[message]).await, [Ok(())]);
}
