//! Makes an event of what a broker delivered, in whichever of the relay's formats it was sent.
//!
//! | format | the event's id and type are in |
//! |---|---|
//! | `payload` | the headers `postrider-id`, `postrider-event-type` … |
//! | `cloudevents` | the headers `ce_id`, `ce-id` or `cloudEvents:id`, by the broker's protocol |
//! | `cloudevents-structured` | the document that is the body |
//! | `debezium` | the headers `id` and `eventType` |
//!
//! Whatever else is a message needs an id: without one nobody could tell a second delivery from
//! the first. It is taken from the broker's own property (`message-id`), if there is one.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use jiff::Timestamp;
use postrider::event::{HEADERS_MAX, PAYLOAD_BYTES_MAX};
use postrider::{Event, InvalidEvent};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::subscription::Incoming;

const STRUCTURED: &str = "application/cloudevents+json";
const CLOUDEVENTS_PREFIXES: [&str; 4] = ["ce_", "ce-", "cloudEvents:", "cloudEvents_"];
const OWN_PREFIX: &str = "postrider-";
/// What Debezium's router puts before the aggregate type in a topic.
const TOPIC_PREFIX: &str = "outbox.event.";
/// The type of what is not understood.
pub(crate) const UNKNOWN: &str = "unknown";
/// As long as a name or an id of an event may be.
const NAME_BYTES: usize = postrider::event::NAME_BYTES_MAX;

/// Why a message is no event.
#[derive(Debug, thiserror::Error)]
pub enum Undecodable {
    /// It names no id.
    #[error(
        "the message names no event id: none of the headers postrider-id, ce_id, ce-id, \
         cloudEvents:id, id and message-id is there"
    )]
    NoId,
    /// Its id is no UUID.
    #[error("the event id {id:?} is no UUID")]
    BadId {
        /// What it is.
        id: String,
    },
    /// It names no type.
    #[error(
        "the message names no event type: none of the headers postrider-event-type, ce_type, \
         ce-type, cloudEvents:type, eventType and type is there"
    )]
    NoType,
    /// A number or a time is not one.
    #[error("the message's {name} is {value:?}")]
    BadValue {
        /// The attribute.
        name: &'static str,
        /// What it is.
        value: String,
    },
    /// The structured mode's document is broken.
    #[error("the body is no CloudEvent in JSON")]
    BadDocument(#[source] serde_json::Error),
    /// A field is beyond the limits of events.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
}

/// The event that a message carries.
pub fn decode(incoming: &Incoming) -> Result<Event, Undecodable> {
    if is_structured(incoming) {
        return Document::read(incoming)?.into_event(incoming);
    }
    let facts = Facts { headers: &incoming.headers };
    let text = |own: &str, cloudevents: &str, other: &[&str]| facts.text(own, cloudevents, other);
    let id = text("id", "id", &["id", "message-id"]).ok_or(Undecodable::NoId)?;
    let event_type = text("event-type", "type", &["eventType", "type"]);
    let parts = Parts {
        id,
        event_type: event_type.ok_or(Undecodable::NoType)?,
        aggregate_type: text("aggregate-type", "aggregatetype", &[]),
        aggregate_id: text("aggregate-id", "subject", &[]),
        version: text("event-version", "eventversion", &[]),
        occurred_at: text("occurred-at", "time", &[]),
        content_type: facts.header("content-type"),
        payload: incoming.body.clone(),
        headers: facts.others(),
    };
    parts.into_event(incoming)
}

/// What is kept of a message that is no event, so that it can be kept as dead: its id is made of
/// its place, so it is the same with each delivery. Of what is too large the beginning is kept.
pub(crate) fn unknown(incoming: &Incoming) -> Event {
    let name = |text: &str| match printable(cut(text, NAME_BYTES)) {
        name if name.is_empty() => UNKNOWN.to_owned(),
        name => cut(&name, NAME_BYTES).to_owned(),
    };
    let body = incoming.body.slice(..incoming.body.len().min(PAYLOAD_BYTES_MAX));
    let bare = || {
        Event::builder(name(&incoming.topic), name(&incoming.place), UNKNOWN)
            .id(Uuid::new_v5(&Uuid::NAMESPACE_URL, incoming.place.as_bytes()))
            .payload(body.clone(), "application/octet-stream")
    };
    let mut whole = bare();
    for (name, value) in incoming.headers.iter().take(HEADERS_MAX) {
        whole = whole.header(name, printable(value));
    }
    whole.build().or_else(|_| bare().build()).expect("what is left of it keeps to all limits")
}

/// A text with a sign in the place of what an event may not have.
fn printable(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

fn is_structured(incoming: &Incoming) -> bool {
    let content_type = Facts { headers: &incoming.headers }.header("content-type");
    content_type.is_some_and(|text| text.trim().starts_with(STRUCTURED))
}

/// What a message says beside its body.
struct Facts<'i> {
    headers: &'i [(String, String)],
}

impl<'i> Facts<'i> {
    fn header(&self, name: &str) -> Option<&'i str> {
        let found = self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// A fact by its name in the format `payload`, in CloudEvents, or by another.
    fn text(&self, own: &str, cloudevents: &str, other: &[&str]) -> Option<&'i str> {
        let by_prefix = |prefix: &str, name: &str| {
            let is_it = |header: &&(String, String)| {
                after(&header.0, prefix).is_some_and(|rest| rest.eq_ignore_ascii_case(name))
            };
            self.headers.iter().find(is_it).map(|(_, value)| value.as_str())
        };
        by_prefix(OWN_PREFIX, own)
            .or_else(|| CLOUDEVENTS_PREFIXES.iter().find_map(|p| by_prefix(p, cloudevents)))
            .or_else(|| other.iter().find_map(|name| self.header(name)))
    }

    /// The headers that are the event's own.
    fn others(&self) -> BTreeMap<String, String> {
        let is_own = |name: &str| {
            let prefixes = CLOUDEVENTS_PREFIXES.iter().chain([&OWN_PREFIX, &"nats-", &"webhook-"]);
            let names = ["content-type", "id", "eventType", "message-id", "type"];
            !prefixes.into_iter().any(|prefix| after(name, prefix).is_some())
                && !names.iter().any(|known| name.eq_ignore_ascii_case(known))
        };
        self.headers.iter().filter(|(name, _)| is_own(name)).cloned().collect()
    }
}

/// What an event is made of.
struct Parts<'i> {
    id: &'i str,
    event_type: &'i str,
    aggregate_type: Option<&'i str>,
    aggregate_id: Option<&'i str>,
    version: Option<&'i str>,
    occurred_at: Option<&'i str>,
    content_type: Option<&'i str>,
    payload: Bytes,
    headers: BTreeMap<String, String>,
}

impl Parts<'_> {
    fn into_event(self, incoming: &Incoming) -> Result<Event, Undecodable> {
        let bad = |name, value: &str| Undecodable::BadValue { name, value: value.to_owned() };
        let id: Uuid =
            self.id.parse().map_err(|_| Undecodable::BadId { id: self.id.to_owned() })?;
        let of_topic = || {
            let topic = &incoming.topic;
            topic.strip_prefix(TOPIC_PREFIX).unwrap_or(topic)
        };
        let aggregate_type = self.aggregate_type.unwrap_or_else(of_topic);
        let aggregate_type = if aggregate_type.is_empty() { UNKNOWN } else { aggregate_type };
        let key = self.aggregate_id.or(incoming.key.as_deref()).filter(|key| !key.is_empty());
        // Without a key it stands in no order.
        let mut event =
            Event::builder(aggregate_type, key.unwrap_or(self.id), self.event_type).id(id).payload(
                self.payload,
                self.content_type.unwrap_or(postrider::event::CONTENT_TYPE_JSON),
            );
        if let Some(version) = self.version {
            event = event.version(version.parse().map_err(|_| bad("version", version))?);
        }
        if let Some(time) = self.occurred_at {
            let parsed: Timestamp = time.parse().map_err(|_| bad("time", time))?;
            event = event.occurred_at(SystemTime::from(parsed));
        }
        let is_topic = |topic: &str| !topic.is_empty() && !topic.contains(char::is_control);
        if is_topic(&incoming.topic) && incoming.topic.len() <= NAME_BYTES {
            event = event.topic(&incoming.topic);
        }
        for (name, value) in self.headers {
            event = event.header(name, value);
        }
        Ok(event.build()?)
    }
}

/// The JSON document of CloudEvents' structured mode.
#[derive(Deserialize)]
struct Document<'i> {
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    subject: Option<String>,
    time: Option<String>,
    datacontenttype: Option<String>,
    aggregatetype: Option<String>,
    eventversion: Option<Version>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    #[serde(borrow)]
    data: Option<&'i RawValue>,
    data_base64: Option<String>,
}

/// An extension that other producers may write as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Version {
    Number(u32),
    Text(String),
}

impl<'i> Document<'i> {
    fn read(incoming: &'i Incoming) -> Result<Self, Undecodable> {
        serde_json::from_slice(&incoming.body).map_err(Undecodable::BadDocument)
    }

    fn into_event(self, incoming: &Incoming) -> Result<Event, Undecodable> {
        let payload = self.payload()?;
        let version = self.eventversion.map(|version| match version {
            Version::Number(number) => number.to_string(),
            Version::Text(text) => text,
        });
        let mut headers = Facts { headers: &incoming.headers }.others();
        headers.extend(self.traceparent.map(|value| ("traceparent".to_owned(), value)));
        headers.extend(self.tracestate.map(|value| ("tracestate".to_owned(), value)));
        let parts = Parts {
            id: &self.id,
            event_type: &self.event_type,
            aggregate_type: self.aggregatetype.as_deref(),
            aggregate_id: self.subject.as_deref(),
            version: version.as_deref(),
            occurred_at: self.time.as_deref(),
            content_type: self.datacontenttype.as_deref(),
            payload,
            headers,
        };
        parts.into_event(incoming)
    }

    fn payload(&self) -> Result<Bytes, Undecodable> {
        use base64::Engine as _;
        if let Some(text) = &self.data_base64 {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            let bad =
                |_| Undecodable::BadValue { name: "data_base64", value: cut(text, 80).into() };
            return decoded.map(Bytes::from).map_err(bad);
        }
        let Some(data) = self.data else { return Ok(Bytes::new()) };
        let is_json = self.datacontenttype.as_deref().is_none_or(|text| text.contains("json"));
        // A text of another media type is a string of JSON here.
        match serde_json::from_str::<String>(data.get()) {
            Ok(text) if !is_json => Ok(Bytes::from(text)),
            _ => Ok(Bytes::copy_from_slice(data.get().as_bytes())),
        }
    }
}

/// What follows a prefix, whatever its case.
fn after<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    let head = name.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then(|| &name[prefix.len()..])
}

/// The beginning of a text, of at most so many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}
