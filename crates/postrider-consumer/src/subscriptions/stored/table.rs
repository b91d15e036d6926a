//! The table `inbox_messages`, as the subscription needs it.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use postrider::schema::INBOX_MESSAGES_TABLE;
use serde_json::Value;
use uuid::Uuid;

use crate::subscription::{Incoming, SubscriptionError};

/// The aggregate type and the aggregate id.
pub(super) type Key = (String, String);

/// Before all keys: neither part of one is empty.
pub(super) fn first_key() -> Key {
    Key::default()
}

/// A database that has the table. A client joins by one file beside this.
#[async_trait]
pub trait Table: Send + Sync + 'static {
    /// The first message of each key, in the order of the keys.
    async fn look(&self, consumer: &str, look: Look<'_>) -> Result<Vec<Head>, SubscriptionError>;

    /// Leases the first messages of keys, at most `of_key` of each, up to one that is not due.
    /// Those of one key come in their order.
    async fn lease(
        &self,
        consumer: &str,
        keys: &[Key],
        of_key: usize,
        visibility: Duration,
    ) -> Result<Vec<Message>, SubscriptionError>;

    /// Removes messages that are done with. One that has become dead stays, also if it was revived
    /// in the meantime: then it is neither leased nor claimed.
    async fn remove(&self, consumer: &str, event_ids: &[Uuid]) -> Result<(), SubscriptionError>;

    /// Makes messages due after a time.
    async fn set_due(
        &self,
        consumer: &str,
        event_ids: &[Uuid],
        after: Duration,
    ) -> Result<(), SubscriptionError>;
}

/// Which keys are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Look<'k> {
    /// Those after this one,
    pub after: &'k Key,
    /// so many at most,
    pub keys_max: usize,
    /// until so many are due.
    pub due_max: usize,
}

/// A key, and whether its first message is due.
#[derive(Debug)]
pub struct Head {
    /// The key.
    pub key: Key,
    /// Whether its first message is due.
    pub is_due: bool,
}

/// A row of the table.
#[derive(Debug)]
pub struct Message {
    pub(super) position: i64,
    pub(super) event_id: Uuid,
    pub(super) aggregate_type: String,
    pub(super) aggregate_id: String,
    pub(super) event_type: String,
    pub(super) event_version: i64,
    pub(super) payload: Vec<u8>,
    pub(super) content_type: String,
    /// In JSON.
    pub(super) headers: String,
    pub(super) topic: Option<String>,
    /// In RFC 3339.
    pub(super) occurred_at: String,
    /// It was dead.
    pub(super) is_revived: bool,
}

impl Message {
    /// The message, as the decoder takes it: in the relay's format `payload`.
    pub(super) fn into_incoming(self, consumer: &str) -> Incoming {
        let own = [
            ("postrider-id", self.event_id.to_string()),
            ("postrider-aggregate-type", self.aggregate_type),
            ("postrider-aggregate-id", self.aggregate_id),
            ("postrider-event-type", self.event_type),
            ("postrider-event-version", self.event_version.to_string()),
            ("postrider-occurred-at", self.occurred_at),
            ("content-type", self.content_type),
        ];
        let headers: BTreeMap<String, Value> =
            serde_json::from_str(&self.headers).unwrap_or_default();
        let text = |value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let headers = headers.into_iter().map(|(name, value)| (name, text(value)));
        Incoming {
            topic: self.topic.unwrap_or_default(),
            key: None,
            headers: own
                .map(|(name, value)| (name.to_owned(), value))
                .into_iter()
                .chain(headers)
                .collect(),
            body: Bytes::from(self.payload),
            place: format!("{INBOX_MESSAGES_TABLE}/{consumer}@{}", self.position),
            is_revived: self.is_revived,
        }
    }
}

/// What an error of the database means.
pub(super) fn failed(error: sqlx::Error) -> SubscriptionError {
    let said = error.as_database_error();
    let is_missing = said.is_some_and(|said| {
        // PostgreSQL has a code for it, SQLite only words.
        said.code().is_some_and(|code| code == "42P01") || said.message().contains("no such table")
    });
    if is_missing {
        return SubscriptionError {
            message: format!("there is no table {INBOX_MESSAGES_TABLE}; run `postrider migrate`"),
            source: Some(error.into()),
            is_final: true,
        };
    }
    SubscriptionError::new("the stored messages cannot be read or changed", error)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use postrider::Event;

    use super::*;
    use crate::decoding::decode;

    #[test]
    fn what_is_stored_decodes_to_the_same_event() {
        let builder = || {
            Event::builder("Order", "42/ü", "OrderPaid")
                .version(3)
                .payload(vec![0, 159], "application/octet-stream")
                .header("tenant", "acme")
                .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
                .occurred_at(SystemTime::UNIX_EPOCH + Duration::from_micros(1_000_000_000_000_001))
        };
        for event in [builder().build().unwrap(), builder().topic("orders").build().unwrap()] {
            let message = Message {
                position: 7,
                event_id: event.id(),
                aggregate_type: event.aggregate_type().to_owned(),
                aggregate_id: event.aggregate_id().to_owned(),
                event_type: event.event_type().to_owned(),
                event_version: event.event_version().into(),
                payload: event.payload().to_vec(),
                content_type: event.content_type().to_owned(),
                headers: serde_json::to_string(event.headers()).unwrap(),
                topic: event.topic().map(str::to_owned),
                occurred_at: postrider::timestamp::to_text(event.occurred_at()),
                is_revived: false,
            };
            let incoming = message.into_incoming("billing");
            assert_eq!(decode(&incoming).unwrap(), event);
            assert_eq!(incoming.place, "inbox_messages/billing@7");
        }
    }
}
