//! The sink in memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::event::PAYLOAD_BYTES_MAX;
use postrider_relay::sink::{Sink, SinkError};
use postrider_relay::sinks::MemorySink;

use crate::suites::sink::{Arrival, Behaviour, Subject, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

const CAPABILITIES: TargetCapabilities = TargetCapabilities {
    ordered_by_key: true,
    away: None,
    misbehaviours: &[],
    refuses: false,
    exactly_once: false,
    any_topic: true,
    lacks_topics: false,
    reserved_headers: &[],
    reserves_topics: false,
    hangs_up: false,
    body_bytes_max: PAYLOAD_BYTES_MAX,
    too_large: None,
    call_max: Duration::from_millis(150),
};

/// The sink in memory.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("memory", CAPABILITIES, Clock::Virtual, || async {
        Arc::new(Memory(MemorySink::new())) as Subject
    })
}

struct Memory(MemorySink);

#[async_trait]
impl TestTarget for Memory {
    fn capabilities(&self) -> TargetCapabilities {
        CAPABILITIES
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(self.0.clone()))
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        let messages = self.0.messages().into_iter();
        let arrival = |message: postrider_relay::sink::Message| Arrival {
            id: message.event.id(),
            event_type: message.event.event_type().to_owned(),
            topic: message.topic,
            key: message.key,
            headers: message.headers.into_iter().collect(),
            body: message.body.to_vec(),
        };
        messages.map(arrival).collect()
    }

    async fn behave(&self, behaviour: Behaviour) {
        assert_eq!(behaviour, Behaviour::Well, "nothing else is declared");
    }
}
