//! What an event should be like, and in what it differs.

use std::fmt;

use bytes::Bytes;
use serde_json::Value;

use crate::event::{Event, Key, ToEvent};

/// What an assertion can name an event by: its type, as text, or a value that can be published.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name an event",
    label = "name its type, such as \"OrderPaid\", or give a value of a type with `#[derive(Event)]`"
)]
pub trait Expected {
    /// What an event has to be like.
    #[doc(hidden)]
    fn expectation(&self) -> Expectation;
}

impl Expected for &str {
    fn expectation(&self) -> Expectation {
        Expectation { event_type: (*self).to_owned(), event: None, payload: Payload::Any }
    }
}

impl Expected for String {
    fn expectation(&self) -> Expectation {
        self.as_str().expectation()
    }
}

impl<T: ToEvent> Expected for T {
    #[track_caller]
    fn expectation(&self) -> Expectation {
        let event = match self.to_event() {
            Ok(event) => event,
            Err(invalid) => panic!("the expected event is invalid: {invalid}"),
        };
        let payload = match serde_json::from_slice(event.payload()) {
            Ok(value) => Payload::Whole(value),
            Err(_) => Payload::Bytes(event.payload().clone()),
        };
        Expectation {
            event_type: event.event_type().to_owned(),
            event: Some((event.key().clone(), event.event_version())),
            payload,
        }
    }
}

/// What an event has to be like.
#[derive(Debug)]
pub struct Expectation {
    event_type: String,
    /// The key and version.
    event: Option<(Key, u32)>,
    payload: Payload,
}

#[derive(Debug)]
enum Payload {
    Any,
    /// It has these fields, and may have others.
    Fields(Value),
    Whole(Value),
    Bytes(Bytes),
}

impl Expectation {
    /// What an event has to be like.
    #[track_caller]
    pub fn of(expected: &impl Expected) -> Self {
        expected.expectation()
    }

    /// Only these fields of the payload matter.
    #[must_use]
    pub fn with(self, fields: Value) -> Self {
        Self { payload: Payload::Fields(fields), ..self }
    }

    pub(super) fn is_met_by(&self, event: &Event) -> bool {
        self.differences(event).is_some_and(|differences| differences.is_empty())
    }

    /// In what an event differs; `None` if it is of another type.
    pub(super) fn differences(&self, event: &Event) -> Option<Vec<String>> {
        if event.event_type() != self.event_type {
            return None;
        }
        let mut differences = Vec::new();
        if let Some((key, version)) = &self.event {
            if event.key() != key {
                differences.push(format!("key: expected {key}, found {}", event.key()));
            }
            if event.event_version() != *version {
                let found = event.event_version();
                differences.push(format!("version: expected {version}, found {found}"));
            }
        }
        match &self.payload {
            Payload::Any => {}
            Payload::Fields(fields) => compare_json(fields, event, false, &mut differences),
            Payload::Whole(value) => compare_json(value, event, true, &mut differences),
            Payload::Bytes(bytes) if bytes == event.payload() => {}
            Payload::Bytes(_) => differences.push("payload: other bytes than expected".to_owned()),
        }
        Some(differences)
    }
}

/// As in "no OrderPaid of Order/42 with {…} was published".
impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.event_type)?;
        if let Some((key, _)) = &self.event {
            write!(f, " of {key}")?;
        }
        match &self.payload {
            Payload::Any => Ok(()),
            Payload::Fields(value) | Payload::Whole(value) => write!(f, " with {value}"),
            Payload::Bytes(bytes) => write!(f, " with {} bytes", bytes.len()),
        }
    }
}

fn compare_json(expected: &Value, event: &Event, whole: bool, differences: &mut Vec<String>) {
    match serde_json::from_slice(event.payload()) {
        Ok(found) => compare("", expected, &found, whole, differences),
        Err(_) => {
            differences.push(format!("payload: expected JSON, found {}", event.content_type()))
        }
    }
}

/// Adds where `found` differs, each place with its path. Of an object the expected fields count,
/// or all if it is to be the `whole`.
fn compare(path: &str, expected: &Value, found: &Value, whole: bool, to: &mut Vec<String>) {
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            for (name, expected) in expected {
                let path = join(path, name);
                match found.get(name) {
                    Some(found) => compare(&path, expected, found, whole, to),
                    None => to.push(format!("{path}: expected {expected}, is missing")),
                }
            }
            if whole {
                for (name, value) in found.iter().filter(|(name, _)| !expected.contains_key(*name))
                {
                    let path = join(path, name);
                    to.push(format!("{path}: expected to be missing, found {value}"));
                }
            }
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => {
            for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
                compare(&format!("{path}[{index}]"), expected, found, whole, to);
            }
        }
        _ if is_equal(expected, found) => {}
        _ => {
            let path = if path.is_empty() { "payload" } else { path };
            to.push(format!("{path}: expected {expected}, found {found}"));
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `1` and `1.0` are the same number in JSON.
fn is_equal(expected: &Value, found: &Value) -> bool {
    let is_float = expected.is_f64() || found.is_f64();
    expected == found || (is_float && expected.as_f64() == found.as_f64() && found.is_number())
}
