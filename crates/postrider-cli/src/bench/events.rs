//! The events that are written.

use postrider::Event;
use postrider::event::CONTENT_TYPE_JSON;

use super::plan::Plan;

const PAYLOAD_START: &str = "{\"note\":\"";
const PAYLOAD_END: &str = "\"}";
/// The smallest payload there can be.
pub(crate) const PAYLOAD_BYTES_MIN: usize = PAYLOAD_START.len() + PAYLOAD_END.len();

/// Makes events of one shape, each for the next key.
#[derive(Clone, Debug)]
pub(crate) struct EventMaker {
    payload: String,
    keys: u32,
}

impl EventMaker {
    pub(crate) fn new(plan: &Plan) -> Self {
        let note = "x".repeat(plan.payload_bytes.saturating_sub(PAYLOAD_BYTES_MIN));
        Self { payload: format!("{PAYLOAD_START}{note}{PAYLOAD_END}"), keys: plan.keys }
    }

    /// The account, and with it the key, of what has this number.
    pub(crate) fn account(&self, number: u64) -> u32 {
        (number % u64::from(self.keys)) as u32
    }

    /// The event of this number.
    pub(crate) fn event(&self, number: u64) -> Event {
        Event::builder("Account", self.account(number).to_string(), "AccountCharged")
            .payload(self.payload.clone(), CONTENT_TYPE_JSON)
            .build()
            .expect("the payload is within the limit that the arguments were checked against")
    }

    pub(crate) fn events(&self, numbers: std::ops::Range<u64>) -> Vec<Event> {
        numbers.map(|number| self.event(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_event_has_its_size_and_its_key() {
        for payload_bytes in [PAYLOAD_BYTES_MIN, 200] {
            let time = Duration::from_secs(1);
            let maker = EventMaker::new(&Plan { rows: 1, payload_bytes, keys: 7, time });
            let event = maker.event(8);
            assert_eq!(event.payload().len(), payload_bytes);
            assert_eq!(event.aggregate_id(), "1");
            serde_json::from_slice::<serde_json::Value>(event.payload()).unwrap();
        }
    }
}
