//! Events that a consumer has stored in its own database, to handle them later.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use postrider::{Event, Inbox};
use postrider_consumer::subscriptions::Stored as Subscription;
use postrider_relay::formats::Format;
use sqlx::PgPool;

use crate::suites::consumer::{Capabilities, Consuming, Ledger, Subject, TestTopic, Work};
use crate::suites::{Backend, Clock};

const CAPABILITIES: Capabilities = Capabilities {
    has_visibility: true,
    is_relayed: false,
    knows_redelivery: false,
    keeps_order_in_group: true,
    repeats: false,
};
/// So that a case need not wait long for what a consumer that was killed has left.
const VISIBILITY: Duration = Duration::from_secs(3);

/// The stored form.
pub fn backend() -> Backend<Subject, Capabilities> {
    Backend::new("stored", CAPABILITIES, Clock::Real, || async {
        let ledger = Ledger::fresh().await;
        let topic = Stored { pool: ledger.pool(), groups: Mutex::default() };
        Subject { topic: Box::new(topic), ledger }
    })
}

struct Stored {
    pool: PgPool,
    /// Whose events are stored.
    groups: Mutex<Vec<String>>,
}

#[async_trait]
impl TestTopic for Stored {
    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    async fn add_group(&self, group: &str) {
        self.groups.lock().expect("nobody panics").push(group.to_owned());
    }

    async fn publish(&self, events: &[Event]) {
        let groups = self.groups.lock().expect("nobody panics").clone();
        let mut tx = self.pool.begin().await.expect("a transaction can be begun");
        for group in &groups {
            for event in events {
                let _ = Inbox::new().store(&mut tx, group, event).await.expect("it is stored");
            }
        }
        tx.commit().await.expect("a transaction can be committed");
    }

    async fn publish_garbage(&self, _: &[u8]) {
        unreachable!("only events can be stored")
    }

    async fn relay(&self, _: Event, _: Format) {
        unreachable!("no relay publishes there")
    }

    fn consume(&self, group: &str, work: Work) -> Consuming {
        let subscription = Subscription::subscribe(self.pool.clone(), group);
        Consuming::start(subscription.with_visibility(VISIBILITY), work)
    }
}
