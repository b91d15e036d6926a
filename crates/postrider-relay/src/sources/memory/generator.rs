//! Events made on the fly: each is a function of its number, so none has to be kept.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use postrider::Event;
use uuid::Uuid;

/// The variant bits that every UUID of RFC 9562 carries.
const UUID_VARIANT: u64 = 0b10 << 62;

/// What a generated outbox holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generated {
    /// How many events.
    pub events: u64,
    /// The size of each payload. Defaults to 200 bytes.
    pub payload_bytes: usize,
    /// Over how many keys they are spread, in turn. Defaults to 10 000.
    pub keys: usize,
}

impl Generated {
    /// So many events of the default shape.
    pub fn new(events: u64) -> Self {
        Self { events, payload_bytes: 200, keys: 10_000 }
    }
}

#[derive(Debug)]
pub(super) struct Generator {
    events: u64,
    aggregate_ids: Vec<String>,
    payload: Bytes,
    id_prefix: u64,
    occurred_at: SystemTime,
}

impl Generator {
    pub(super) fn new(generated: Generated) -> Self {
        let bytes_max = postrider::event::PAYLOAD_BYTES_MAX;
        Self {
            events: generated.events,
            aggregate_ids: (0..generated.keys.max(1)).map(|key| key.to_string()).collect(),
            payload: Bytes::from(vec![b'x'; generated.payload_bytes.min(bytes_max)]),
            id_prefix: Uuid::now_v7().as_u64_pair().0,
            occurred_at: SystemTime::now(),
        }
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// The event of this number, from 1.
    pub(super) fn event(&self, seq: u64) -> Option<Arc<Event>> {
        if seq == 0 || seq > self.events {
            return None;
        }
        let key = (seq % self.aggregate_ids.len() as u64) as usize;
        let event = Event::builder("Order", self.aggregate_ids[key].as_str(), "OrderPlaced")
            .id(Uuid::from_u64_pair(self.id_prefix, UUID_VARIANT | seq))
            .payload(self.payload.clone(), "text/plain")
            .occurred_at(self.occurred_at)
            .build()
            .expect("every generated field is within its limit");
        Some(Arc::new(event))
    }
}
