//! Where an event goes: templates over its fields for topic, key and headers.
//!
//! A template is parsed once, when the configuration is read, and rendered for each event. A
//! field that an event lacks is an error, never an empty text: an event with half a routing key
//! would reach the wrong place, so it is parked instead.

use std::fmt::{self, Write as _};

use postrider::Event;

use crate::suggestion::nearest;

/// The fields that a template can name, as they are written.
const FIELDS: [&str; 7] =
    ["id", "aggregate_type", "aggregate_id", "event_type", "event_version", "topic", "header.NAME"];
const HEADER_PREFIX: &str = "header.";
/// Room for a field whose length is not known before rendering.
const FIELD_BYTES_GUESS: usize = 24;

/// Topic, key and additional headers of what is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The topic of an event that names none. Defaults to `outbox.event.{aggregate_type}`.
    pub topic: Template,
    /// What keeps related messages together. Defaults to `{aggregate_id}`.
    pub key: Template,
    /// Headers to add. One of these replaces the event's own of the same name.
    pub headers: Vec<(String, Template)>,
}

impl Route {
    /// The topic for an event: its own, or what the template makes.
    pub fn topic_of(&self, event: &Event) -> Result<String, MissingField> {
        match event.topic() {
            Some(topic) => Ok(topic.to_owned()),
            None => self.topic.render(event),
        }
    }
}

impl Default for Route {
    fn default() -> Self {
        let text = Part::Text("outbox.event.".to_owned());
        Self {
            topic: Template { parts: vec![text, Part::Field(Field::AggregateType)] },
            key: Template { parts: vec![Part::Field(Field::AggregateId)] },
            headers: Vec::new(),
        }
    }
}

/// A text with fields of the event in braces: `orders.{event_type}`.
///
/// The fields are `id`, `aggregate_type`, `aggregate_id`, `event_type`, `event_version`, `topic`
/// and `header.NAME`. `{{` and `}}` stand for single braces.
///
/// ```
/// use postrider::Event;
/// use postrider_relay::routing::Template;
///
/// let template = Template::parse("shop.{aggregate_type}.{header.tenant}").unwrap();
/// let event = Event::builder("Order", "42", "OrderPaid").header("tenant", "acme").build().unwrap();
/// assert_eq!(template.render(&event).unwrap(), "shop.Order.acme");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Never empty.
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Id,
    AggregateType,
    AggregateId,
    EventType,
    EventVersion,
    Topic,
    Header(String),
}

impl Template {
    /// Reads a template. Fails if it is empty, has unbalanced braces or an unknown field.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut position = 0;
        while let Some(found) = text[position..].find(['{', '}']) {
            let brace = position + found;
            literal.push_str(&text[position..brace]);
            let rest = &text[brace..];
            if rest.starts_with("{{") || rest.starts_with("}}") {
                literal.push_str(&rest[..1]);
                position = brace + 2;
            } else if rest.starts_with('}') {
                return Err(TemplateError::Unopened { position: brace });
            } else {
                let length = rest.find('}').ok_or(TemplateError::Unclosed { position: brace })?;
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(Part::Field(Field::parse(&rest[1..length], brace + 1)?));
                position = brace + length + 1;
            }
        }
        literal.push_str(&text[position..]);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        if parts.is_empty() {
            return Err(TemplateError::Empty);
        }
        Ok(Self { parts })
    }

    /// The text of a template without fields.
    pub fn constant(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Fills in an event's fields. Fails if the event lacks one of them, or has it empty.
    pub fn render(&self, event: &Event) -> Result<String, MissingField> {
        // Most templates are one field: that takes a single allocation of the right size.
        if let [Part::Field(field)] = self.parts.as_slice()
            && let Some(text) = field.text_in(event)?
        {
            return Ok(text.to_owned());
        }
        let mut rendered = String::with_capacity(self.capacity_for(event));
        for part in &self.parts {
            match part {
                Part::Text(text) => rendered.push_str(text),
                Part::Field(field) => field.render_into(event, &mut rendered)?,
            }
        }
        Ok(rendered)
    }

    fn capacity_for(&self, event: &Event) -> usize {
        let bytes = |part: &Part| match part {
            Part::Text(text) => text.len(),
            Part::Field(Field::AggregateType) => event.aggregate_type().len(),
            Part::Field(Field::AggregateId) => event.aggregate_id().len(),
            Part::Field(Field::EventType) => event.event_type().len(),
            Part::Field(_) => FIELD_BYTES_GUESS,
        };
        self.parts.iter().map(bytes).sum()
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}"))?,
                Part::Field(field) => write!(f, "{{{field}}}")?,
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("id"),
            Self::AggregateType => f.write_str("aggregate_type"),
            Self::AggregateId => f.write_str("aggregate_id"),
            Self::EventType => f.write_str("event_type"),
            Self::EventVersion => f.write_str("event_version"),
            Self::Topic => f.write_str("topic"),
            Self::Header(name) => write!(f, "{HEADER_PREFIX}{name}"),
        }
    }
}

impl Field {
    fn parse(name: &str, position: usize) -> Result<Self, TemplateError> {
        Ok(match name {
            "id" => Self::Id,
            "aggregate_type" => Self::AggregateType,
            "aggregate_id" => Self::AggregateId,
            "event_type" => Self::EventType,
            "event_version" => Self::EventVersion,
            "topic" => Self::Topic,
            _ => match name.strip_prefix(HEADER_PREFIX) {
                Some(header) if !header.is_empty() && !header.contains('{') => {
                    Self::Header(header.to_owned())
                }
                _ => {
                    return Err(TemplateError::UnknownField {
                        name: name.to_owned(),
                        position,
                        suggestion: nearest(name, FIELDS),
                    });
                }
            },
        })
    }

    /// The field as it stands in the event, for those that stand there as text.
    fn text_in<'a>(&self, event: &'a Event) -> Result<Option<&'a str>, MissingField> {
        let missing = |field: &str| MissingField { field: field.to_owned() };
        Ok(Some(match self {
            Self::AggregateId => event.aggregate_id(),
            Self::AggregateType => event.aggregate_type(),
            Self::EventType => event.event_type(),
            Self::Topic => event.topic().ok_or_else(|| missing("topic"))?,
            Self::Header(name) => match event.headers().get(name) {
                Some(value) if !value.is_empty() => value,
                _ => return Err(missing(&format!("header.{name}"))),
            },
            Self::Id | Self::EventVersion => return Ok(None),
        }))
    }

    fn render_into(&self, event: &Event, rendered: &mut String) -> Result<(), MissingField> {
        if let Some(text) = self.text_in(event)? {
            rendered.push_str(text);
        } else {
            let written = match self {
                Self::Id => write!(rendered, "{}", event.id()),
                _ => write!(rendered, "{}", event.event_version()),
            };
            written.expect("writing to a String cannot fail");
        }
        Ok(())
    }
}

/// Why a template cannot be read. Positions are in bytes, from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is empty.
    #[error("the template is empty; write a text, a field such as {{aggregate_id}}, or both")]
    Empty,
    /// A field's name is not one of the known ones.
    #[error(
        "unknown field `{name}` at byte {position}{}; the fields are {}",
        .suggestion.map(|field| format!(", did you mean `{field}`?")).unwrap_or_default(),
        FIELDS.join(", ")
    )]
    UnknownField {
        /// What stands between the braces.
        name: String,
        /// Where it starts.
        position: usize,
        /// A known field like it.
        suggestion: Option<&'static str>,
    },
    /// A `{` has no `}`.
    #[error("the `{{` at byte {position} is never closed; write `{{{{` for a brace in the text")]
    Unclosed {
        /// Where the brace stands.
        position: usize,
    },
    /// A `}` has no `{`.
    #[error("the `}}` at byte {position} closes nothing; write `}}}}` for a brace in the text")]
    Unopened {
        /// Where the brace stands.
        position: usize,
    },
}

/// An event lacks a field that a template needs, or has it empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event has no {field}, which the template needs")]
pub struct MissingField {
    /// The field as the template names it: `topic` or `header.NAME`.
    pub field: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::builder("Order", "42", "OrderPaid")
            .version(3)
            .header("tenant", "acme")
            .header("empty", "")
            .build()
            .unwrap()
    }

    #[test]
    fn a_template_is_shown_as_it_is_written() {
        let all = "a{{b}}{id}{aggregate_type}.{aggregate_id}{event_type}{event_version}{topic}";
        for text in [all, "orders", "{header.tenant-id}"] {
            assert_eq!(Template::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn every_field_is_rendered() {
        let event = event();
        let id = event.id().to_string();
        let cases = [
            ("{id}", id.as_str()),
            ("{aggregate_type}", "Order"),
            ("{aggregate_id}", "42"),
            ("{event_type}", "OrderPaid"),
            ("{event_version}", "3"),
            ("{header.tenant}", "acme"),
            ("plain", "plain"),
            ("a.{aggregate_type}-{aggregate_id}.{event_version}.z", "a.Order-42.3.z"),
            ("{{{aggregate_id}}}", "{42}"),
            ("ü{{}}{event_type}", "ü{}OrderPaid"),
        ];
        for (text, expected) in cases {
            assert_eq!(Template::parse(text).unwrap().render(&event).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_missing_field_is_named_and_never_rendered_empty() {
        for field in ["header.region", "header.empty", "topic"] {
            for text in [format!("{{{field}}}"), format!("x.{{{field}}}")] {
                let error = Template::parse(&text).unwrap().render(&event()).unwrap_err();
                assert_eq!(error.field, field);
            }
        }
    }

    #[test]
    fn mistakes_say_where_and_what_is_known() {
        let cases = [
            ("", "the template is empty"),
            (
                "a{agregate_id}",
                "unknown field `agregate_id` at byte 2, did you mean `aggregate_id`?",
            ),
            ("{zzz}", "unknown field `zzz` at byte 1; the fields are id, aggregate_type"),
            ("{}", "unknown field `` at byte 1"),
            ("{header.}", "header.NAME"),
            ("a{id", "the `{` at byte 1 is never closed; write `{{`"),
            ("a}b", "the `}` at byte 1 closes nothing; write `}}`"),
        ];
        for (text, expected) in cases {
            let message = Template::parse(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message:?} should contain {expected:?}");
        }
    }

    #[test]
    fn an_events_own_topic_comes_first() {
        let route = Route::default();
        assert_eq!(route.topic_of(&event()).unwrap(), "outbox.event.Order");
        assert_eq!(route.topic, "outbox.event.{aggregate_type}".parse().unwrap());
        assert_eq!(route.key, "{aggregate_id}".parse().unwrap());
        let own = Event::builder("Order", "42", "OrderPaid").topic("vip").build().unwrap();
        assert_eq!(route.topic_of(&own).unwrap(), "vip");
    }
}
