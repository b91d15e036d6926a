//! Events as messages of failed tests show them.

use std::str;

use crate::event::Event;

/// Longest payload that is shown, in characters.
const PAYLOAD_CHARS_MAX: usize = 300;

/// What and of which key: `OrderPaid of Order/42`.
pub(super) fn named(event: &Event) -> String {
    format!("{} of {}", event.event_type(), event.key())
}

/// The same with its payload.
pub(super) fn described(event: &Event) -> String {
    let version = match event.event_version() {
        1 => String::new(),
        version => format!(" v{version}"),
    };
    format!("{} of {}{version}: {}", event.event_type(), event.key(), payload(event))
}

fn payload(event: &Event) -> String {
    let bytes = event.payload();
    if bytes.is_empty() {
        return "no payload".to_owned();
    }
    let Ok(text) = str::from_utf8(bytes) else {
        return format!("{} bytes of {}", bytes.len(), event.content_type());
    };
    match text.char_indices().nth(PAYLOAD_CHARS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], bytes.len()),
        None => text.to_owned(),
    }
}
