//! Where a broker keeps one event.

use std::time::Duration;

use super::VerificationError;
use crate::config::PipelineConfig;
use crate::events::{EventRow, Events, Stored};
use crate::readback::{Kept, Scope};

/// How much earlier than the database's the broker's clock may say that an event was sent.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(5 * 60);
/// Most messages that are looked at.
pub const LOOKED_AT_MAX: u64 = 1_000_000;

/// Where an event was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Each time that the broker keeps it, in its order.
    pub kept: Vec<Kept>,
    /// Messages of its topic that were looked at.
    pub looked_at: u64,
    /// Whether these are all since it was written; otherwise [`LOOKED_AT_MAX`] were enough.
    pub is_all: bool,
}

/// Looks for an event in the topic to which a pipeline publishes it, from the time on at which it
/// was written. `tell` hears how many messages were looked at.
///
/// # Errors
///
/// The outbox or the broker cannot be read, or the sink is none that can be read back.
pub async fn places(
    pipeline: &PipelineConfig,
    events: &dyn Events,
    row: &EventRow,
    mut tell: impl FnMut(u64),
) -> Result<Places, VerificationError> {
    let EventRow { position, event_id, payload_bytes, created_at, .. } = row.clone();
    let stored = Stored { position, event_id, payload_bytes, created_at };
    let read = events.read(&[stored]).await?;
    let mut places = Places { is_all: true, ..Places::default() };
    // What is no event was published by nobody, nor was what has no topic.
    let Some(event) = read.into_iter().find_map(|it| it.event.ok()) else { return Ok(places) };
    let encoding = &pipeline.options.encoding;
    let Ok(topic) = encoding.route.topic_of(&event) else { return Ok(places) };
    let since = created_at.and_then(|written_at| written_at.checked_sub(CLOCKS_DIFFER_MAX));
    let scope = Scope { topics: vec![topic], since, format: encoding.format };
    let mut readback = pipeline.sink.read_back(&scope).await?;
    loop {
        let messages = readback.next().await?;
        if messages.is_empty() {
            return Ok(places);
        }
        places.looked_at += messages.len() as u64;
        tell(places.looked_at);
        places.kept.extend(messages.into_iter().filter(|it| it.id == Some(event.id())));
        if places.looked_at >= LOOKED_AT_MAX {
            places.is_all = false;
            return Ok(places);
        }
    }
}
