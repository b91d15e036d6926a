//! What is sent for an event: the body, its media type and the facts beside it.
//!
//! [`encode`] runs once per event, before any sink sees it, so that a retry sends the same
//! bytes. What would cost time and not every sink needs, such as the texts of the attributes, is
//! worked out when a sink asks for it.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use postrider::Event;
use uuid::Uuid;

use crate::routing::{MissingField, Route, Template};
use crate::sink::{Attributes, FailureKind, Message, SinkError};
use crate::suggestion::nearest;

mod cloudevents;
mod debezium;

/// The header of an event that is published again on purpose. It is the relay's own to give: one
/// that an event brings along is not sent.
pub const REPLAY_HEADER: &str = "postrider-replay";
/// A time with all its decimals.
const RFC3339_BYTES: usize = "2026-01-01T00:00:00.123456789Z".len();

/// How an event becomes a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The bare payload, with the event's facts beside it. The default.
    #[default]
    Payload,
    /// The binary mode of CloudEvents 1.0: the bare payload, with CloudEvents attributes.
    CloudEvents,
    /// The structured mode of CloudEvents 1.0: one JSON document with everything.
    CloudEventsStructured,
    /// What Debezium's outbox event router sends: the bare payload, with `id` and `eventType`.
    Debezium,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 4] =
        [Self::Payload, Self::CloudEvents, Self::CloudEventsStructured, Self::Debezium];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::CloudEvents => "cloudevents",
            Self::CloudEventsStructured => "cloudevents-structured",
            Self::Debezium => "debezium",
        }
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let format = Self::ALL.into_iter().find(|format| format.as_str() == name);
        format.ok_or_else(|| UnknownFormat {
            name: name.to_owned(),
            suggestion: nearest(name, Self::ALL.map(Self::as_str)),
        })
    }
}

/// There is no format of that name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown format `{name}`{}; the formats are {}",
    .suggestion.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default(),
    Format::ALL.map(Format::as_str).join(", ")
)]
pub struct UnknownFormat {
    /// What was written.
    pub name: String,
    /// A format of a similar name.
    pub suggestion: Option<&'static str>,
}

/// Everything that decides what is sent for an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Topic, key and additional headers.
    pub route: Route,
    /// How the event becomes a message.
    pub format: Format,
    /// The `source` of CloudEvents.
    pub source: SourceName,
}

impl Encoding {
    /// The message for an event. See [`encode`].
    pub fn encode(&self, event: Arc<Event>) -> Result<Message, SinkError> {
        encode(event, &self.route, self.format, &self.source)
    }
}

/// The `source` of CloudEvents: the context in which events happened. Defaults to
/// `/postrider/{aggregate_type}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceName(pub Template);

impl Default for SourceName {
    fn default() -> Self {
        let template = "/postrider/{aggregate_type}";
        Self(Template::parse(template).expect("the default template is well-formed"))
    }
}

/// Works out what is sent for an event.
///
/// Fails, as [`Rejected`](FailureKind::Rejected), only if a template needs a field that the event
/// lacks: no later attempt could mend that.
pub fn encode(
    event: Arc<Event>,
    route: &Route,
    format: Format,
    source: &SourceName,
) -> Result<Message, SinkError> {
    let topic = route.topic_of(&event).map_err(|missing| rejected("the topic", &missing))?;
    let key = route.key.render(&event).map_err(|missing| rejected("the key", &missing))?;
    let headers = headers(&event, route)?;
    let source = |event: &Event| {
        let rendered = source.0.render(event);
        rendered
            .map(|text| cloudevents::uri_reference(&text))
            .map_err(|missing| rejected("cloudevents_source", &missing))
    };
    let (attributes, content_type, body) = match format {
        Format::Payload => {
            (Attributes::Plain, event.content_type().to_owned(), event.payload().clone())
        }
        Format::CloudEvents => (
            Attributes::CloudEvents { source: source(&event)? },
            event.content_type().to_owned(),
            event.payload().clone(),
        ),
        Format::CloudEventsStructured => {
            let body = cloudevents::structured(&event, &source(&event)?, &key);
            (Attributes::None, cloudevents::CONTENT_TYPE.to_owned(), body)
        }
        Format::Debezium => {
            (Attributes::Debezium, event.content_type().to_owned(), event.payload().clone())
        }
    };
    let deduplication_id = event.id();
    Ok(Message { event, deduplication_id, topic, key, headers, attributes, content_type, body })
}

/// The event's headers, then the configured ones, which replace those of the same name.
fn headers(event: &Event, route: &Route) -> Result<Vec<(String, String)>, SinkError> {
    let count = event.headers().len() + route.headers.len();
    let mut headers = Vec::with_capacity(count);
    let replaced = |name: &str| route.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    for (name, value) in event.headers() {
        if !replaced(name) && !name.eq_ignore_ascii_case(REPLAY_HEADER) {
            headers.push((name.clone(), value.clone()));
        }
    }
    for (name, template) in &route.headers {
        let value = template
            .render(event)
            .map_err(|missing| rejected(&format!("the header `{name}`"), &missing))?;
        headers.push((name.clone(), value));
    }
    Ok(headers)
}

fn rejected(what: &str, missing: &MissingField) -> SinkError {
    SinkError::new(FailureKind::Rejected, format!("cannot work out {what}: {missing}"))
}

/// The name, without a prefix, and the value of each fact sent beside a message's body.
pub(crate) fn attribute_values(message: &Message) -> Vec<(&'static str, Cow<'_, str>)> {
    let event = &*message.event;
    match &message.attributes {
        Attributes::None => Vec::new(),
        Attributes::Plain => vec![
            ("id", id(event).into()),
            ("aggregate_type", event.aggregate_type().into()),
            ("aggregate_id", event.aggregate_id().into()),
            ("event_type", event.event_type().into()),
            ("event_version", version(event)),
            ("occurred_at", rfc3339(event.occurred_at()).into()),
        ],
        Attributes::CloudEvents { source } => {
            cloudevents::attribute_values(event, source, &message.key)
        }
        Attributes::Debezium => debezium::attribute_values(event),
    }
}

/// An event's id as a text, without the detour of formatting.
fn id(event: &Event) -> String {
    event.id().hyphenated().encode_lower(&mut Uuid::encode_buffer()).to_owned()
}

/// Nearly every event is of the first version.
fn version(event: &Event) -> Cow<'static, str> {
    match event.event_version() {
        1 => "1".into(),
        version => version.to_string().into(),
    }
}

/// Whether a name is that of a fact which is sent without a prefix.
pub(crate) fn is_attribute_without_prefix(attributes: &Attributes, name: &str) -> bool {
    *attributes == Attributes::Debezium && debezium::is_attribute(name)
}

/// A time as RFC 3339 in UTC, with as many decimals as it has. Times outside the years that RFC
/// 3339 can write become the nearest that it can.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let year_zero = Timestamp::constant(-62_167_219_200, 0);
    let timestamp = Timestamp::try_from(time).unwrap_or(if time < SystemTime::UNIX_EPOCH {
        year_zero
    } else {
        Timestamp::MAX
    });
    let mut text = String::with_capacity(RFC3339_BYTES);
    DateTimePrinter::new()
        .print_timestamp(&timestamp.max(year_zero), &mut text)
        .expect("a text takes everything");
    text
}

/// Whether a media type says that the data is JSON: `application/json`, `text/json` or any with
/// the suffix `+json`.
pub(crate) fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let subtype = essence.split_once('/').map_or("", |(_, subtype)| subtype);
    subtype.eq_ignore_ascii_case("json")
        || subtype
            .len()
            .checked_sub("+json".len())
            .and_then(|start| subtype.get(start..))
            .is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn event() -> Event {
        Event::builder("Order", "42", "OrderPaid")
            .json(&serde_json::json!({"amount": 5}))
            .header("tenant", "acme")
            .header("region", "eu")
            .occurred_at(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500))
            .build()
            .unwrap()
    }

    #[test]
    fn the_payload_format_sends_the_payload_and_facts_beside_it() {
        let event = Arc::new(event());
        let message = Encoding::default().encode(event.clone()).unwrap();
        assert_eq!(message.topic, "outbox.event.Order");
        assert_eq!(message.key, "42");
        assert_eq!(message.body, event.payload());
        assert_eq!(message.content_type, "application/json");
        let id = event.id().to_string();
        let expected = [
            ("id", id.as_str()),
            ("aggregate_type", "Order"),
            ("aggregate_id", "42"),
            ("event_type", "OrderPaid"),
            ("event_version", "1"),
            ("occurred_at", "1970-01-01T00:00:01.5Z"),
        ];
        let values = message.attribute_values();
        let values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_ref())).collect();
        assert_eq!(values, expected);
    }

    #[test]
    fn configured_headers_replace_the_events_own() {
        let mut encoding = Encoding::default();
        encoding.route.headers = vec![("Region".to_owned(), "{aggregate_id}-us".parse().unwrap())];
        let message = encoding.encode(Arc::new(event())).unwrap();
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(message.headers, [text("tenant", "acme"), text("Region", "42-us")]);
    }

    #[test]
    fn a_field_that_the_event_lacks_is_rejected_by_name() {
        let template = || Template::parse("{header.gone}").unwrap();
        let mut topic = Encoding::default();
        topic.route.topic = template();
        let mut key = Encoding::default();
        key.route.key = template();
        let mut header = Encoding::default();
        header.route.headers = vec![("x".to_owned(), template())];
        let source = Encoding {
            format: Format::CloudEvents,
            source: SourceName(template()),
            ..Encoding::default()
        };
        for (encoding, what) in [
            (topic, "the topic"),
            (key, "the key"),
            (header, "the header `x`"),
            (source, "cloudevents_source"),
        ] {
            let error = encoding.encode(Arc::new(event())).unwrap_err();
            assert_eq!(error.kind, FailureKind::Rejected);
            let expected = format!("cannot work out {what}: the event has no header.gone");
            assert!(error.message.starts_with(&expected), "{}", error.message);
        }
    }

    #[test]
    fn formats_have_names() {
        for format in Format::ALL {
            assert_eq!(format.as_str().parse(), Ok(format));
        }
        let message = |name: &str| name.parse::<Format>().unwrap_err().to_string();
        assert!(message("debesium").contains("did you mean `debezium`?"));
        assert!(message("cloudevent").contains("did you mean `cloudevents`?"));
        assert!(message("x").contains("the formats are payload, cloudevents"));
    }

    #[test]
    fn json_is_recognised_by_its_media_type() {
        for yes in ["application/json", "Application/JSON; charset=utf-8", "a/b+json", "text/json"]
        {
            assert!(is_json(yes), "{yes}");
        }
        for no in ["text/plain", "json", "application/jsonl", "application/x-ü", "", "a/"] {
            assert!(!is_json(no), "{no}");
        }
    }

    #[test]
    fn times_that_cannot_be_written_become_the_nearest_that_can() {
        let year = Duration::from_secs(366 * 24 * 3600);
        let early = SystemTime::UNIX_EPOCH - year * 3000;
        assert_eq!(rfc3339(early), "0000-01-01T00:00:00Z");
        let late = SystemTime::UNIX_EPOCH + year * 9000;
        assert!(rfc3339(late).starts_with("9999-12-30T"), "{}", rfc3339(late));
    }

    /// `cargo test --release -- --ignored --nocapture encoding_speed`
    #[test]
    #[ignore = "a measurement, for release builds"]
    fn encoding_speed() {
        let (event, encoding) = (Arc::new(event()), Encoding::default());
        let started = std::time::Instant::now();
        for _ in 0..2_000_000 {
            std::hint::black_box(encoding.encode(event.clone()).unwrap());
        }
        println!("{:.0} messages/s", 2e6 / started.elapsed().as_secs_f64());
    }
}
