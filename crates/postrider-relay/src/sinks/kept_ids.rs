//! Where a broker's message has the id of its event, for whoever reads it back.

use serde::Deserialize;
use uuid::Uuid;

use crate::formats::Format;

/// The name of the header, without a prefix, that holds the id in a format; `None` if the body
/// does.
pub(super) fn id_header(format: Format, cloudevents_prefix: &str) -> Option<String> {
    match format {
        Format::Payload => Some("postrider-id".to_owned()),
        Format::CloudEvents => Some(format!("{cloudevents_prefix}id")),
        Format::CloudEventsStructured => None,
        Format::Debezium => Some("id".to_owned()),
    }
}

/// The id in a body of structured CloudEvents.
pub(super) fn id_in_body(body: &[u8]) -> Option<Uuid> {
    #[derive(Deserialize)]
    struct Envelope<'b> {
        id: &'b str,
    }
    let envelope: Envelope<'_> = serde_json::from_slice(body).ok()?;
    Uuid::parse_str(envelope.id).ok()
}
