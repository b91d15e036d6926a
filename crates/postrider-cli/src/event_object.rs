//! A single event as commands print it.

use std::borrow::Cow;

use postrider_relay::events::{EventRow, SetAside};
use postrider_relay::secret::MASK;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::commands::dlq::show::Contents;
use crate::output::plain;
use crate::time::rfc3339;

/// Headers whose values are shown whatever was asked for: they lead to the trace.
const TRACE_CONTEXT: [&str; 2] = ["traceparent", "tracestate"];

/// An event as JSON.
#[derive(Serialize)]
pub(crate) struct EventObject<'e> {
    position: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    transaction: Option<&'e str>,
    event_id: &'e str,
    aggregate_type: &'e str,
    aggregate_id: &'e str,
    event_type: &'e str,
    event_version: Option<i64>,
    topic: Option<&'e str>,
    occurred_at: Option<String>,
    created_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver_after: Option<String>,
    content_type: &'e str,
    headers: Value,
    payload_bytes: u64,
    /// `json`, `text` or `base64`: how `payload` is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_encoding: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Contents<'e>>,
}

impl<'e> EventObject<'e> {
    pub(crate) fn new(event: &'e EventRow) -> Self {
        let payload = event.payload.as_deref().map(Contents::new);
        Self {
            position: event.position,
            transaction: event.transaction.as_deref(),
            event_id: &event.event_id,
            aggregate_type: &event.aggregate_type,
            aggregate_id: &event.aggregate_id,
            event_type: &event.event_type,
            event_version: event.event_version,
            topic: event.topic.as_deref(),
            occurred_at: event.occurred_at.map(rfc3339),
            created_at: event.created_at.map(rfc3339),
            deliver_after: event.deliver_after.map(rfc3339),
            content_type: &event.content_type,
            headers: to_value(&headers(event)),
            payload_bytes: event.payload_bytes,
            payload_encoding: payload.as_ref().map(Contents::encoding),
            payload,
        }
    }
}

/// The headers of an event, as JSON: their values only if its contents were asked for.
pub(crate) fn headers(event: &EventRow) -> Cow<'_, str> {
    if event.payload.is_some() {
        return event.headers.as_str().into();
    }
    let Ok(mut headers) = serde_json::from_str::<Map<String, Value>>(&event.headers) else {
        return MASK.into();
    };
    for (name, value) in &mut headers {
        if !TRACE_CONTEXT.contains(&name.as_str()) {
            *value = MASK.into();
        }
    }
    Value::Object(headers).to_string().into()
}

/// JSON as it is, and anything else as a text.
fn to_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// An event's key as text.
pub(crate) fn key_text(event: &EventRow) -> String {
    format!("{}/{}", plain(&event.aggregate_type), plain(&event.aggregate_id))
}

/// Why an event is set aside, as JSON.
#[derive(Serialize)]
pub(crate) struct SetAsideObject<'s> {
    state: &'s str,
    since: String,
    due_at: Option<String>,
    attempts: u32,
    kind: Option<&'s str>,
    error: Option<&'s str>,
}

impl<'s> SetAsideObject<'s> {
    pub(crate) fn new(set_aside: &'s SetAside) -> Self {
        Self {
            state: &set_aside.state,
            since: rfc3339(set_aside.since),
            due_at: set_aside.due_at.map(rfc3339),
            attempts: set_aside.attempts,
            kind: set_aside.kind.as_deref(),
            error: set_aside.error.as_deref(),
        }
    }
}

/// Why an event is set aside, in words.
pub(crate) fn set_aside_text(set_aside: &SetAside) -> String {
    if set_aside.is_discarded() {
        let since = rfc3339(set_aside.since);
        return format!("discarded at {since} by an operator: never published");
    }
    let mut text = format!("{} since {}", set_aside.state, rfc3339(set_aside.since));
    if let Some(due_at) = set_aside.due_at {
        text.push_str(&format!(", tried again at {}", rfc3339(due_at)));
    }
    if set_aside.attempts > 0 {
        text.push_str(&format!(", attempts {}", set_aside.attempts));
    }
    if let Some(error) = &set_aside.error {
        let kind = set_aside.kind.as_deref().unwrap_or("error");
        text.push_str(&format!(", {}: {}", plain(kind), plain(error)));
    }
    text
}
