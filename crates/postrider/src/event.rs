//! The event: a fact that the application wants published, immutable once written.
//!
//! An [`Event`] can only be made through its [builder](Event::builder), which checks every
//! field against a named limit, so that whatever holds an `Event` holds one that every
//! database can store and every broker can carry. What an application writes is usually a
//! type of its own that [becomes](ToEvent) an event, by `#[derive(Event)]`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;
use uuid::Uuid;

use crate::timestamp;

/// Longest `aggregate_type`, `event_type`, `topic` and name of a consumer, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Longest `aggregate_id`, in bytes.
pub const AGGREGATE_ID_BYTES_MAX: usize = 1024;
/// Largest payload, in bytes: what brokers take in their default configuration. Larger data
/// belongs in a store of its own, with a reference to it in the event.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;
/// Most headers on one event.
pub const HEADERS_MAX: usize = 64;
/// Largest sum of header names and values, in bytes.
pub const HEADERS_BYTES_MAX: usize = 16 * 1024;

/// The content type of an event whose writer named none.
pub const CONTENT_TYPE_JSON: &str = "application/json";

/// The unit of ordering: all events of one key are delivered in the order they were committed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// What kind of thing the event is about, such as `Order`.
    pub aggregate_type: String,
    /// Which one of them.
    pub aggregate_id: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.aggregate_type, self.aggregate_id)
    }
}

/// A validated event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    id: Uuid,
    key: Key,
    event_type: String,
    event_version: u32,
    payload: Bytes,
    content_type: String,
    headers: BTreeMap<String, String>,
    occurred_at: SystemTime,
    topic: Option<String>,
    deliver_after: Option<SystemTime>,
}

impl Event {
    /// Starts an event about one aggregate. Without further calls it has a new id, version 1,
    /// an empty payload and happened now.
    pub fn builder(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
    ) -> EventBuilder {
        EventBuilder {
            event: Event {
                id: Uuid::nil(),
                key: Key {
                    aggregate_type: aggregate_type.into(),
                    aggregate_id: aggregate_id.into(),
                },
                event_type: event_type.into(),
                event_version: 1,
                payload: Bytes::new(),
                content_type: String::new(),
                headers: BTreeMap::new(),
                occurred_at: SystemTime::UNIX_EPOCH,
                topic: None,
                deliver_after: None,
            },
            id: None,
            occurred_at: None,
            unserializable: None,
        }
    }

    /// The id that stays with the event wherever it goes: consumers recognise duplicates by it.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The aggregate the event is about.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What kind of thing the event is about, such as `Order`.
    pub fn aggregate_type(&self) -> &str {
        &self.key.aggregate_type
    }

    /// Which one of them.
    pub fn aggregate_id(&self) -> &str {
        &self.key.aggregate_id
    }

    /// What happened, such as `OrderPaid`.
    pub fn event_type(&self) -> &str {
        &self.event_type
    }

    /// The version of the payload's shape, from 1.
    pub fn event_version(&self) -> u32 {
        self.event_version
    }

    /// The payload, byte for byte as it was written.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The media type of the payload.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Headers that travel beside the payload; trace context rides here.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    /// When the fact happened.
    pub fn occurred_at(&self) -> SystemTime {
        self.occurred_at
    }

    /// A topic that overrides the one the relay would choose.
    pub fn topic(&self) -> Option<&str> {
        self.topic.as_deref()
    }

    /// The earliest time of delivery. Such an event leaves the order of its key.
    pub fn deliver_after(&self) -> Option<SystemTime> {
        self.deliver_after
    }

    /// About how much memory the event takes: payload, texts and headers.
    pub fn size_bytes(&self) -> usize {
        self.payload.len()
            + self.key.aggregate_type.len()
            + self.key.aggregate_id.len()
            + self.event_type.len()
            + self.content_type.len()
            + self.topic.as_ref().map_or(0, String::len)
            + headers_bytes(&self.headers)
    }

    /// Adds a header unless the event has one of that name, or no room for it.
    #[cfg(feature = "opentelemetry")]
    pub(crate) fn set_default_header(&mut self, name: &str, value: &str) {
        let bytes = headers_bytes(&self.headers) + name.len() + value.len();
        if self.headers.len() < HEADERS_MAX && bytes <= HEADERS_BYTES_MAX {
            self.headers.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
}

/// Something that can be published: an [`Event`], or a type with `#[derive(Event)]`.
pub trait ToEvent {
    /// The event to write. Fails if a field is over its limit or cannot be serialized.
    fn to_event(&self) -> Result<Event, InvalidEvent>;
}

impl ToEvent for Event {
    fn to_event(&self) -> Result<Event, InvalidEvent> {
        Ok(self.clone())
    }
}

impl<T: ToEvent + ?Sized> ToEvent for &T {
    fn to_event(&self) -> Result<Event, InvalidEvent> {
        (**self).to_event()
    }
}

/// The type and the version of the events that a Rust type is the payload of: how a consumer finds
/// the handler of an event. `#[derive(Event)]` implements it, too.
///
/// ```
/// #[derive(serde::Deserialize)]
/// struct OrderPaid { cents: u64 }
///
/// impl postrider::EventType for OrderPaid {
///     const EVENT_TYPE: &'static str = "OrderPaid";
/// }
/// ```
pub trait EventType {
    /// What happened, such as `OrderPaid`.
    const EVENT_TYPE: &'static str;
    /// The version of the payload's shape.
    const EVENT_VERSION: u32 = 1;
}

/// Collects the parts of an [`Event`]; [`build`](Self::build) checks them.
#[derive(Clone, Debug)]
#[must_use = "an event builder does nothing until it is built"]
pub struct EventBuilder {
    event: Event,
    id: Option<Uuid>,
    occurred_at: Option<SystemTime>,
    unserializable: Option<String>,
}

impl EventBuilder {
    /// Gives the event an id of the caller's. Defaults to a new UUIDv7.
    pub fn id(mut self, id: Uuid) -> Self {
        self.id = Some(id);
        self
    }

    /// The version of the payload's shape. Defaults to 1.
    pub fn version(mut self, event_version: u32) -> Self {
        self.event.event_version = event_version;
        self
    }

    /// Serializes a value as the event's JSON payload.
    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.payload(bytes, CONTENT_TYPE_JSON),
            Err(err) => {
                self.unserializable = Some(err.to_string());
                self
            }
        }
    }

    /// Takes a payload as it is, with its media type.
    pub fn payload(mut self, bytes: impl Into<Bytes>, content_type: impl Into<String>) -> Self {
        self.event.payload = bytes.into();
        self.event.content_type = content_type.into();
        self
    }

    /// Adds a header, or replaces the one of that name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.event.headers.insert(name.into(), value.into());
        self
    }

    /// Adds several headers.
    pub fn headers(mut self, headers: impl IntoIterator<Item = (String, String)>) -> Self {
        self.event.headers.extend(headers);
        self
    }

    /// When the fact happened. Defaults to now.
    pub fn occurred_at(mut self, occurred_at: SystemTime) -> Self {
        self.occurred_at = Some(occurred_at);
        self
    }

    /// Overrides the topic that the relay would choose.
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.event.topic = Some(topic.into());
        self
    }

    /// Holds delivery back until then. The event leaves the order of its key: later events do
    /// not wait for it.
    pub fn deliver_after(mut self, deliver_after: SystemTime) -> Self {
        self.event.deliver_after = Some(deliver_after);
        self
    }

    /// Checks every field and makes the event.
    pub fn build(self) -> Result<Event, InvalidEvent> {
        let mut event = self.event;
        if let Some(reason) = self.unserializable {
            return Err(InvalidEvent::Unserializable { reason });
        }
        if event.content_type.is_empty() {
            CONTENT_TYPE_JSON.clone_into(&mut event.content_type);
        }
        event.id = self.id.unwrap_or_else(Uuid::now_v7);
        event.occurred_at = self.occurred_at.unwrap_or_else(SystemTime::now);
        check(&event)?;
        Ok(event)
    }
}

/// Why an event cannot be written. Nothing was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A field that names something is empty.
    #[error("{field} is empty; give it a value")]
    Empty {
        /// The field's name.
        field: &'static str,
    },
    /// A field is longer than its limit.
    #[error(
        "{field} has {bytes} bytes, the limit is {bytes_max}; shorten it, or keep the data elsewhere and send a reference"
    )]
    TooLong {
        /// The field's name.
        field: &'static str,
        /// Its size.
        bytes: usize,
        /// The largest size allowed.
        bytes_max: usize,
    },
    /// A field holds a control character, which headers and routing keys cannot carry.
    #[error("{field} contains the control character U+{code:04X}; remove it")]
    ControlCharacter {
        /// The field's name.
        field: &'static str,
        /// The character's code point.
        code: u32,
    },
    /// There are more headers than allowed.
    #[error(
        "the event has {count} headers, the limit is {HEADERS_MAX}; put the data into the payload"
    )]
    TooManyHeaders {
        /// How many there are.
        count: usize,
    },
    /// A time is outside of what databases can keep.
    #[error("{field} is outside of the years 0 to 9999; correct it")]
    TimeOutOfRange {
        /// The field's name.
        field: &'static str,
    },
    /// Versions count from 1.
    #[error("event_version is 0; versions start at 1")]
    VersionZero,
    /// A version is higher than databases can keep.
    #[error("the version {version} is over 9223372036854775807; number events from 1")]
    VersionTooHigh {
        /// The version.
        version: u64,
    },
    /// The payload could not be written as JSON.
    #[error("the payload cannot be serialized as JSON: {reason}")]
    Unserializable {
        /// What the serializer said.
        reason: String,
    },
}

fn check(event: &Event) -> Result<(), InvalidEvent> {
    check_key(&event.key)?;
    check_name("event_type", &event.event_type)?;
    check_name("content_type", &event.content_type)?;
    if let Some(topic) = &event.topic {
        check_name("topic", topic)?;
    }
    if event.event_version == 0 {
        return Err(InvalidEvent::VersionZero);
    }
    check_time("occurred_at", Some(event.occurred_at))?;
    check_time("deliver_after", event.deliver_after)?;
    check_length("payload", event.payload.len(), PAYLOAD_BYTES_MAX)?;
    if event.headers.len() > HEADERS_MAX {
        return Err(InvalidEvent::TooManyHeaders { count: event.headers.len() });
    }
    check_length("headers", headers_bytes(&event.headers), HEADERS_BYTES_MAX)?;
    for (name, value) in &event.headers {
        check_name("a header name", name)?;
        check_characters("a header value", value)?;
    }
    Ok(())
}

pub(crate) fn check_key(key: &Key) -> Result<(), InvalidEvent> {
    check_name("aggregate_type", &key.aggregate_type)?;
    check_text("aggregate_id", &key.aggregate_id, AGGREGATE_ID_BYTES_MAX)
}

pub(crate) fn check_name(field: &'static str, name: &str) -> Result<(), InvalidEvent> {
    check_text(field, name, NAME_BYTES_MAX)
}

fn check_text(field: &'static str, text: &str, bytes_max: usize) -> Result<(), InvalidEvent> {
    if text.is_empty() {
        return Err(InvalidEvent::Empty { field });
    }
    check_length(field, text.len(), bytes_max)?;
    check_characters(field, text)
}

fn check_length(field: &'static str, bytes: usize, bytes_max: usize) -> Result<(), InvalidEvent> {
    if bytes > bytes_max {
        return Err(InvalidEvent::TooLong { field, bytes, bytes_max });
    }
    Ok(())
}

fn check_characters(field: &'static str, text: &str) -> Result<(), InvalidEvent> {
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(InvalidEvent::ControlCharacter { field, code: c.into() }),
        None => Ok(()),
    }
}

fn check_time(field: &'static str, time: Option<SystemTime>) -> Result<(), InvalidEvent> {
    match time {
        Some(time) if !timestamp::representable(time) => {
            Err(InvalidEvent::TimeOutOfRange { field })
        }
        _ => Ok(()),
    }
}

fn headers_bytes(headers: &BTreeMap<String, String>) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> EventBuilder {
        Event::builder("Order", "42", "OrderPaid")
    }

    #[test]
    fn an_event_has_defaults() {
        let event = order().json(&serde_json::json!({"amount": 5})).build().unwrap();
        assert_eq!(event.id().get_version_num(), 7);
        assert_eq!(event.event_version(), 1);
        assert_eq!(event.content_type(), CONTENT_TYPE_JSON);
        assert_eq!(&event.payload()[..], br#"{"amount":5}"#);
        assert_eq!(event.key().to_string(), "Order/42");
    }

    #[test]
    fn every_limit_is_checked_and_named() {
        let long = "x".repeat(AGGREGATE_ID_BYTES_MAX + 1);
        let far = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 40);
        let cases = [
            (Event::builder("", "42", "T"), "aggregate_type is empty"),
            (Event::builder("Order", long, "T"), "aggregate_id has 1025 bytes, the limit is 1024"),
            (Event::builder("Order", "4\u{0}2", "T"), "control character U+0000"),
            (Event::builder("Order", "42", "T\n"), "control character U+000A"),
            (order().topic(""), "topic is empty"),
            (order().version(0), "event_version is 0"),
            (order().occurred_at(far), "occurred_at is outside of the years"),
            (order().deliver_after(far), "deliver_after is outside of the years"),
            (order().header("a", "b\r\nc"), "a header value contains the control character U+000D"),
            (order().header("", "b"), "a header name is empty"),
            (order().header("a", "b".repeat(HEADERS_BYTES_MAX)), "headers has 16385 bytes"),
            (
                order().headers((0..=HEADERS_MAX).map(|n| (n.to_string(), String::new()))),
                "65 headers",
            ),
            (order().payload(vec![0; PAYLOAD_BYTES_MAX + 1], "a/b"), "payload has 1048577 bytes"),
            (order().json(&std::collections::HashMap::from([((1, 2), 3)])), "serialized as JSON"),
        ];
        for (builder, expected) in cases {
            let message = builder.build().unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} should contain {expected:?}");
        }
    }

    #[test]
    fn an_empty_payload_is_an_event_too() {
        assert!(order().payload(Bytes::new(), "text/plain").build().is_ok());
    }
}
