//! The spans of a pipeline's calls. One test, because the tracer is global.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::trace::{SpanId, SpanKind, Status, TraceId};
use opentelemetry::{KeyValue, global};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use postrider::Event;
use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::secret::SecretUrl;
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};
use postrider_relay::sinks::MemorySink;
use postrider_relay::sources::memory::MemoryOutbox;
use tokio::sync::Notify;

/// OpenTelemetry's own limit.
const LINKS_MAX: usize = 128;

/// A sink that takes no event of one type, and never answers for another.
struct Picky {
    capabilities: SinkCapabilities,
    begun: Arc<Notify>,
}

#[async_trait]
impl Sink for Picky {
    fn capabilities(&self) -> SinkCapabilities {
        self.capabilities.clone()
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        self.begun.notify_one();
        if messages.iter().any(|message| message.event.event_type() == "Held") {
            pending::<()>().await;
        }
        let refused = |message: &Message| message.event.event_type() == "Refused";
        let rejected = || SinkError::new(FailureKind::Rejected, "canary");
        messages.iter().map(|it| if refused(it) { Err(rejected()) } else { Ok(()) }).collect()
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

fn pipeline(events: Vec<Event>, begun: &Arc<Notify>) -> Pipeline {
    let outbox = MemoryOutbox::new();
    outbox.append(events);
    let options = Options { drain: true, grace: Duration::ZERO, ..Options::default() };
    let capabilities = MemorySink::new().capabilities();
    let sink = Box::new(Picky { capabilities, begun: begun.clone() });
    let pipeline = Pipeline::new("orders", Box::new(outbox.connect()), sink, options);
    pipeline.sending_to(&SecretUrl::new("memory://u:canary@a:1,b:2/canary?canary"))
}

/// The spans of a drain.
async fn spans_of(exporter: &InMemorySpanExporter, events: Vec<Event>) -> Vec<SpanData> {
    exporter.reset();
    let (_stop, until_stopped) = shutdown();
    pipeline(events, &Arc::default()).run(until_stopped).await.unwrap();
    exporter.get_finished_spans().unwrap()
}

fn event(kind: &str, number: usize, event_type: &str) -> Event {
    let id = SpanId::from((number + 1) as u64);
    let trace = TraceId::from((number + 1) as u128);
    let builder = Event::builder(kind, number.to_string(), event_type);
    builder.header("traceparent", format!("00-{trace}-{id}-01")).build().unwrap()
}

#[track_caller]
fn assert_attributes(span: &SpanData, attributes: &[KeyValue]) {
    for attribute in attributes {
        assert!(span.attributes.contains(attribute), "{attribute:?} is not in {span:#?}");
    }
    assert!(!format!("{span:?}").contains("canary"), "{span:?}");
}

#[tokio::test]
async fn calls_are_spans_with_links_to_where_events_were_created() {
    let one_topic: Vec<Event> = (0..300).map(|number| event("Order", number, "Placed")).collect();
    let exporter = InMemorySpanExporter::default();
    assert!(spans_of(&exporter, one_topic.clone()).await.is_empty(), "there is no tracer");

    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider);
    global::set_text_map_propagator(TraceContextPropagator::new());

    let spans = spans_of(&exporter, one_topic.clone()).await;
    let [span] = &spans[..] else { panic!("one call: {spans:#?}") };
    assert_eq!((&*span.name, &span.span_kind), ("send outbox.event.Order", &SpanKind::Client));
    assert_eq!((span.parent_span_id, &span.status), (SpanId::INVALID, &Status::Unset));
    assert_attributes(
        span,
        &[
            KeyValue::new("messaging.system", "memory"),
            KeyValue::new("messaging.operation.name", "send"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", "outbox.event.Order"),
            KeyValue::new("messaging.batch.message_count", 300),
            KeyValue::new("postrider.pipeline", "orders"),
            KeyValue::new("server.address", "a:1,b:2"),
        ],
    );
    assert_eq!(span.links.len(), LINKS_MAX, "there is an end to them");
    for (number, link) in span.links.iter().enumerate() {
        assert_eq!(link.span_context.trace_id(), TraceId::from((number + 1) as u128));
        assert_ne!(link.span_context.trace_id(), span.span_context.trace_id());
        let id = one_topic[number].id().to_string();
        assert_eq!(link.attributes, [KeyValue::new("messaging.message.id", id)]);
    }

    let alone = Event::builder("Order", "1", "Placed").header("traceparent", "nonsense");
    let (alone, other) = (alone.build().unwrap(), event("Invoice", 7, "Refused"));
    let spans = spans_of(&exporter, vec![alone, other]).await;
    let span = &spans[0];
    assert_eq!(span.name, "send outbox.event.{aggregate_type}");
    let template = "outbox.event.{aggregate_type}";
    assert_attributes(
        span,
        &[
            KeyValue::new("messaging.destination.template", template),
            KeyValue::new("messaging.batch.message_count", 2),
            KeyValue::new("error.type", "rejected"),
        ],
    );
    assert_eq!(span.status, Status::error("1 of 2 events were not published"));
    assert_eq!(span.links.len(), 1, "nonsense leads nowhere");

    exporter.reset();
    let begun = Arc::default();
    let (stop, until_stopped) = shutdown();
    let running =
        tokio::spawn(pipeline(vec![event("Order", 1, "Held")], &begun).run(until_stopped));
    begun.notified().await;
    stop.stop();
    running.await.unwrap().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    assert_attributes(&spans[0], &[KeyValue::new("error.type", "given_up")]);
    assert_eq!(spans[0].status, Status::error("given up before the sink answered"));
}
