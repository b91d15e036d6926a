//! The trace of an event's producer goes on in the handler. One test, because the tracer is
//! global.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

use opentelemetry::trace::{SpanId, SpanKind, TraceContextExt as _, TraceId, Tracer as _};
use opentelemetry::{Context, KeyValue, global};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use postrider::schema::{self, TableName};
use postrider::{Claim, Event, EventType, Inbox};
use postrider_consumer::Consumer;
use postrider_consumer::subscriptions::Stored;
use serde::Deserialize;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Executor as _, SqlitePool};
use tokio::sync::mpsc;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

#[derive(Deserialize)]
struct Paid;

impl EventType for Paid {
    const EVENT_TYPE: &'static str = "Paid";
}

#[tokio::test]
async fn a_handler_works_in_a_span_of_the_producers_trace_that_is_linked_to_it() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider);
    global::set_text_map_propagator(TraceContextPropagator::new());

    let folder = tempfile::TempDir::new().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("db"));
    let pool = SqlitePool::connect_with(options.create_if_missing(true)).await.unwrap();
    let tables = schema::sqlite::sql(&TableName::default());
    pool.execute(sqlx::raw_sql(AssertSqlSafe(tables))).await.unwrap();
    let event = |name: &str| Event::builder("Order", name, "Paid").json(&());
    let traced = event("traced").header("traceparent", format!("00-{TRACE}-{SPAN}-01"));
    let (traced, alone) = (traced.build().unwrap(), event("alone").build().unwrap());
    for event in [&traced, &alone] {
        let mut tx = pool.begin().await.unwrap();
        let stored = Inbox::new().store(&mut tx, "billing", event).await.unwrap();
        assert_eq!(stored, Claim::First);
        tx.commit().await.unwrap();
    }

    let (handled, mut has_handled) = mpsc::channel(2);
    let stored = Stored::subscribe(pool.clone(), "billing");
    let consumer = Consumer::new("billing", pool, stored).on::<Paid>(move |_, _| {
        let handled = handled.clone();
        Box::pin(async move {
            // What the handler does stands below its span.
            global::tracer("shop").start("charge");
            handled.send(Context::current().span().span_context().span_id()).await?;
            Ok(())
        })
    });
    let both = async {
        has_handled.recv().await.unwrap();
        has_handled.recv().await.unwrap();
    };
    consumer.run(both).await.unwrap();

    let spans = exporter.get_finished_spans().unwrap();
    let of = |event: &Event| span_of(&spans, event);
    let (with, without) = (of(&traced), of(&alone));
    let (trace, producer) = (TraceId::from_hex(TRACE).unwrap(), SpanId::from_hex(SPAN).unwrap());
    assert_eq!(with.span_context.trace_id(), trace);
    assert_eq!(with.parent_span_id, producer);
    let linked: Vec<_> = with.links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(linked, [producer]);
    assert_eq!(without.parent_span_id, SpanId::INVALID);
    assert!(without.links.is_empty(), "{without:?}");
    for span in [with, without] {
        assert_eq!((&*span.name, &span.span_kind), ("process Paid", &SpanKind::Consumer));
        let group = KeyValue::new("messaging.consumer.group.name", "billing");
        assert!(span.attributes.contains(&group), "{span:?}");
        let inner = |other: &&SpanData| other.parent_span_id == span.span_context.span_id();
        assert_eq!(spans.iter().filter(inner).count(), 1, "the handler's own span: {spans:?}");
    }
}

fn span_of<'s>(spans: &'s [SpanData], event: &Event) -> &'s SpanData {
    let id = KeyValue::new("messaging.message.id", event.id().to_string());
    let mut of_event = spans.iter().filter(|span| span.attributes.contains(&id));
    let span = of_event.next().unwrap_or_else(|| panic!("no span of the event: {spans:?}"));
    assert!(of_event.next().is_none(), "one span for each handling");
    span
}
