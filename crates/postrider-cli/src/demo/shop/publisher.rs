//! Publishing without an outbox, with as much care as is usual: a timeout, a few tries, and a
//! short list in memory of what is to be sent later.

use std::collections::VecDeque;
use std::time::Duration;

use postrider::Event;
use reqwest::Client;
use reqwest::header::CONTENT_TYPE;
use tokio::time::sleep;

use crate::demo::DemoError;
use crate::demo::broker::EVENT_ID_HEADER;

const TIMEOUT: Duration = Duration::from_millis(400);
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(25);
/// Most events that are kept for later; beyond it the oldest is given up.
const LATER_MAX: usize = 3;

/// Sends events to the broker.
pub(super) struct Publisher {
    client: Client,
    broker: String,
    later: VecDeque<Event>,
}

impl Publisher {
    pub(super) fn new(broker: &str) -> Result<Self, DemoError> {
        let client = Client::builder().no_proxy().timeout(TIMEOUT).build()?;
        Ok(Self { client, broker: broker.to_owned(), later: VecDeque::new() })
    }

    /// Sends an event, now or later or, after too many failures, never. The caller has an order
    /// to deal with and cannot wait for the broker.
    pub(super) async fn publish(&mut self, event: &Event) {
        for attempt in 0..TRIES {
            if attempt > 0 {
                sleep(PAUSE).await;
            }
            if self.send(event).await.is_ok() {
                return self.catch_up().await;
            }
        }
        self.later.push_back(event.clone());
        if self.later.len() > LATER_MAX {
            self.later.pop_front();
        }
    }

    /// Sends what was left for later, as far as it goes.
    pub(super) async fn catch_up(&mut self) {
        while let Some(event) = self.later.pop_front() {
            if self.send(&event).await.is_err() {
                return self.later.push_front(event);
            }
        }
    }

    async fn send(&self, event: &Event) -> Result<(), reqwest::Error> {
        let request = self
            .client
            .post(&self.broker)
            .header(EVENT_ID_HEADER, event.id().to_string())
            .header(CONTENT_TYPE, event.content_type())
            .body(event.payload().clone());
        request.send().await?.error_for_status()?;
        Ok(())
    }
}
