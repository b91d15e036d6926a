//! The trace context that rides in an event's headers, as W3C Trace Context has it, so that
//! the trace of the writer goes on in the consumer.

use opentelemetry::Context;
use opentelemetry::trace::TraceContextExt;

use crate::event::Event;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// The events with the current span in their headers. An event whose writer gave it a
/// `traceparent` keeps that one, and its state.
pub(crate) fn captured(mut events: Vec<Event>) -> Vec<Event> {
    let context = Context::current();
    let span = context.span();
    let span = span.span_context();
    if !span.is_valid() {
        return events;
    }
    let traceparent =
        format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    let tracestate = span.trace_state().header();
    for event in &mut events {
        if event.headers().contains_key(TRACEPARENT) {
            continue;
        }
        event.set_default_header(TRACEPARENT, &traceparent);
        if !tracestate.is_empty() {
            event.set_default_header(TRACESTATE, &tracestate);
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

    use super::*;
    use crate::event::{EventBuilder, HEADERS_MAX};

    const SPAN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn captured_in_span(builder: EventBuilder) -> Event {
        let span = SpanContext::new(
            TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap(),
            SpanId::from_hex("b7ad6b7169203331").unwrap(),
            TraceFlags::SAMPLED,
            true,
            TraceState::from_key_value([("vendor", "x")]).unwrap(),
        );
        let _attached = Context::new().with_remote_span_context(span).attach();
        captured(vec![builder.build().unwrap()]).remove(0)
    }

    fn order() -> EventBuilder {
        Event::builder("Order", "42", "OrderPaid")
    }

    #[test]
    fn the_current_span_is_captured() {
        let event = captured_in_span(order());
        assert_eq!(event.headers()[TRACEPARENT], SPAN);
        assert_eq!(event.headers()[TRACESTATE], "vendor=x");
    }

    #[test]
    fn the_writers_own_context_stays() {
        let event = captured_in_span(order().header(TRACEPARENT, "mine"));
        assert_eq!(event.headers().len(), 1);
        assert_eq!(event.headers()[TRACEPARENT], "mine");
    }

    #[test]
    fn without_a_span_nothing_is_added() {
        let event = captured(vec![order().build().unwrap()]).remove(0);
        assert!(event.headers().is_empty());
    }

    #[test]
    fn an_event_without_room_for_it_stays_valid() {
        let full = (0..HEADERS_MAX).map(|n| (n.to_string(), String::new()));
        let event = captured_in_span(order().headers(full));
        assert_eq!(event.headers().len(), HEADERS_MAX);
    }
}
