//! The trace in which an event was written goes on in its handler.

use postrider::Event;

use crate::handlers::Handling;

/// Runs a handler in a span that is linked to the producer's.
#[cfg(feature = "opentelemetry")]
pub(crate) fn linked<'t>(event: &Event, consumer: &str, handling: Handling<'t>) -> Handling<'t> {
    use std::collections::HashMap;

    use opentelemetry::trace::{
        FutureExt as _, Link, SpanKind, Status, TraceContextExt as _, Tracer as _,
    };
    use opentelemetry::{Context, KeyValue, global};

    let headers: HashMap<String, String> = event
        .headers()
        .iter()
        .filter(|(name, _)| ["traceparent", "tracestate"].contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let producer = global::get_text_map_propagator(|propagator| {
        propagator.extract_with_context(&Context::new(), &headers)
    });
    let producer = producer.span().span_context().clone();
    let tracer = global::tracer("postrider");
    let mut span = tracer
        .span_builder(format!("process {}", event.event_type()))
        .with_kind(SpanKind::Consumer)
        .with_attributes([
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.consumer.group.name", consumer.to_owned()),
            KeyValue::new("messaging.message.id", event.id().to_string()),
        ]);
    let mut parent = Context::new();
    if producer.is_valid() {
        span = span.with_links(vec![Link::with_context(producer.clone())]);
        // The producer's trace goes on, so that one trace shows the whole way.
        parent = parent.with_remote_span_context(producer);
    }
    let context = Context::new().with_span(tracer.build_with_context(span, &parent));
    let handling = async {
        let handled = handling.await;
        if handled.is_err() {
            // Why is for the log: it may quote what nobody should see.
            Context::current().span().set_status(Status::error("the handler failed"));
        }
        handled
    };
    Box::pin(handling.with_context(context))
}

/// Runs a handler.
#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn linked<'t>(_: &Event, _: &str, handling: Handling<'t>) -> Handling<'t> {
    handling
}
