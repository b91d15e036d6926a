//! Spans by way of the tracer that the process has set.

use std::collections::BTreeMap;

use opentelemetry::global::{self, BoxedSpan, BoxedTracer};
use opentelemetry::propagation::Extractor;
use opentelemetry::trace::{
    FutureExt as _, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _,
    Tracer as _,
};
use opentelemetry::{Context, ContextGuard, KeyValue};
use postrider::Event;

use crate::failure::SinkError;
use crate::routing::Template;
use crate::sink::{Message, SinkCapabilities};

/// Most links of a span, which is what OpenTelemetry's own limit is unless it is set.
const LINKS_MAX: usize = 128;
/// The `error.type` of a call to whose end nobody waited.
const GIVEN_UP: &str = "given_up";

/// Makes the spans of one pipeline.
#[derive(Debug)]
pub(crate) struct Spans {
    tracer: BoxedTracer,
    /// Of topics, as it is written.
    template: String,
    takes_batches: bool,
    /// What holds for every call.
    attributes: Vec<KeyValue>,
}

impl Spans {
    /// For a pipeline that sends to this kind of sink, at a URL that is fit to be seen.
    pub(crate) fn new(
        pipeline: &str,
        sink: &SinkCapabilities,
        topic: &Template,
        shown_url: Option<&str>,
    ) -> Self {
        let mut attributes = vec![
            KeyValue::new("messaging.system", sink.name),
            KeyValue::new("messaging.operation.name", "send"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("postrider.pipeline", pipeline.to_owned()),
        ];
        if let Some((host, port)) = shown_url.and_then(server) {
            attributes.push(KeyValue::new("server.address", host));
            attributes.extend(port.map(|port| KeyValue::new("server.port", port)));
        }
        Self {
            tracer: global::tracer("postrider"),
            template: topic.to_string(),
            takes_batches: sink.batch_events_max > 1,
            attributes,
        }
    }

    /// Begins the span of a call.
    pub(crate) fn send(&self, messages: &[Message]) -> SendSpan {
        let builder = SpanBuilder::from_name("send")
            .with_kind(SpanKind::Client)
            .with_attributes(self.attributes.iter().cloned());
        let mut span = self.tracer.build_with_context(builder, &Context::new());
        if !span.is_recording() {
            return SendSpan::none();
        }
        self.describe(&mut span, messages);
        for message in messages.iter().filter_map(Created::of).take(LINKS_MAX) {
            let id = KeyValue::new("messaging.message.id", message.id);
            span.add_link(message.context, vec![id]);
        }
        SendSpan { context: Some(Context::new().with_span(span)) }
    }

    fn describe(&self, span: &mut BoxedSpan, messages: &[Message]) {
        let Some(first) = messages.first() else { return };
        let destination = if messages.iter().all(|message| message.topic == first.topic) {
            span.set_attribute(KeyValue::new("messaging.destination.name", first.topic.clone()));
            &first.topic
        } else {
            let template = self.template.clone();
            span.set_attribute(KeyValue::new("messaging.destination.template", template));
            &self.template
        };
        span.update_name(format!("send {destination}"));
        span.set_attribute(if self.takes_batches {
            let count = i64::try_from(messages.len()).unwrap_or(i64::MAX);
            KeyValue::new("messaging.batch.message_count", count)
        } else {
            KeyValue::new("messaging.message.id", first.event.id().to_string())
        });
    }
}

/// The span of one call of a sink.
#[derive(Debug)]
pub(crate) struct SendSpan {
    /// As long as there is no answer.
    context: Option<Context>,
}

impl SendSpan {
    /// The span of a call that is not recorded.
    pub(crate) fn none() -> Self {
        Self { context: None }
    }

    /// Makes a call in the span.
    pub(crate) async fn around<T>(&self, call: impl Future<Output = T>) -> T {
        match &self.context {
            Some(context) => call.with_context(context.clone()).await,
            None => call.await,
        }
    }

    /// Ends the span by what the sink answered. What is logged while the answer is held belongs to
    /// it.
    pub(crate) fn answered(&mut self, results: &[Result<(), SinkError>]) -> Option<ContextGuard> {
        let context = self.context.take()?;
        let span = context.span();
        let mut failures = results.iter().filter_map(|result| result.as_ref().err());
        if let Some(first) = failures.next() {
            // Why is for the log.
            let (failed, of) = (1 + failures.count(), results.len());
            span.set_attribute(KeyValue::new("error.type", first.kind.as_str()));
            span.set_status(Status::error(format!("{failed} of {of} events were not published")));
        }
        span.end();
        Some(context.attach())
    }
}

impl Drop for SendSpan {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            let span = context.span();
            span.set_attribute(KeyValue::new("error.type", GIVEN_UP));
            span.set_status(Status::error("given up before the sink answered"));
            span.end();
        }
    }
}

/// In which context an event was created.
struct Created {
    id: String,
    context: SpanContext,
}

impl Created {
    fn of(message: &Message) -> Option<Self> {
        let event: &Event = &message.event;
        let headers = Headers(event.headers());
        let context = global::get_text_map_propagator(|propagator| {
            propagator.extract_with_context(&Context::new(), &headers)
        });
        let context = context.span().span_context().clone();
        context.is_valid().then(|| Self { id: event.id().to_string(), context })
    }
}

/// The headers of an event, for whoever reads a context out of them.
struct Headers<'e>(&'e BTreeMap<String, String>);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// The server in a URL, and its port if it is one server. Nothing if there is none to be seen.
fn server(shown_url: &str) -> Option<(String, Option<i64>)> {
    let (_, rest) = shown_url.split_once("://")?;
    let servers = rest.split(['/', '\\', '?', '#']).next()?;
    let servers = servers.rsplit('@').next()?;
    if servers.is_empty() || servers.contains(['*', '$']) {
        return None;
    }
    if let Some((host, port)) = servers.rsplit_once(':')
        && let Ok(port) = port.parse::<u16>()
        && !servers.contains(',')
    {
        return Some((host.trim_matches(['[', ']']).to_owned(), Some(port.into())));
    }
    Some((servers.to_owned(), None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::SecretUrl;

    #[test]
    fn the_server_is_named_and_nothing_secret() {
        let of = |url: &str| server(&SecretUrl::new(url).to_string());
        for (url, expected) in [
            ("kafka://u:canary@a.example:9092", Some(("a.example", Some(9092)))),
            ("kafka://u:canary@a:1,b:2", Some(("a:1,b:2", None))),
            ("https://host/canary?canary", Some(("host", None))),
            ("redis://u:can/ary@[::1]:6379/0", Some(("::1", Some(6379)))),
            ("postgres://u:canary?x@host/db", None),
            ("file:///var/out.jsonl", None),
            ("stdout:", None),
        ] {
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(of(url), expected, "{url}");
        }
        let hidden = SecretUrl::from_reference("kafka://canary:1", "kafka://${env:BROKER}");
        assert_eq!(server(&hidden.to_string()), None);
    }
}
