//! What was committed, and what a transaction is about to add to it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::time::SystemTime;

use uuid::Uuid;

use crate::event::{Event, Key};
use crate::schema::TableName;

/// A consumer and an event.
pub(super) type Consumed = (String, Uuid);

/// What was committed.
#[derive(Default)]
pub(super) struct Tables {
    outboxes: HashMap<TableName, OutboxTable>,
    /// When an event was claimed.
    pub(super) claims: BTreeMap<Consumed, SystemTime>,
    /// The watermark of each key.
    pub(super) versions: BTreeMap<(String, Key), u64>,
    pub(super) messages: BTreeMap<Consumed, Message>,
    /// The place of the last message.
    pub(super) position: u64,
}

#[derive(Default)]
struct OutboxTable {
    events: Vec<Event>,
    ids: HashSet<Uuid>,
    delivered: HashSet<Uuid>,
}

/// An event that a consumer keeps.
#[derive(Clone)]
pub(super) struct Message {
    pub(super) event: Event,
    pub(super) position: u64,
    pub(super) death: Option<Death>,
}

/// Why a message is dead.
#[derive(Clone)]
pub(super) struct Death {
    pub(super) error: String,
    pub(super) attempts: u32,
}

/// An event that a consumer has given up: its handler failed too often.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadMessage {
    /// The event.
    pub event: Event,
    /// The last error.
    pub error: String,
    /// How often it was tried.
    pub attempts: u32,
}

/// What a transaction has written.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) events: Vec<(TableName, Event)>,
    /// `None`: the claim is removed.
    pub(super) claims: BTreeMap<Consumed, Option<SystemTime>>,
    pub(super) versions: BTreeMap<(String, Key), u64>,
    pub(super) messages: BTreeMap<Consumed, Message>,
}

/// What one transaction at a time can write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Row {
    Claim { consumer: String, event_id: Uuid },
    Event { table: TableName, id: Uuid },
    Message { consumer: String, event_id: Uuid },
    Watermark { consumer: String, key: Key },
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim { consumer, event_id } => {
                write!(f, "the claim of {consumer} on {event_id}")
            }
            Self::Event { table, id } => write!(f, "event {id} of {table}"),
            Self::Message { consumer, event_id } => {
                write!(f, "event {event_id}, as {consumer} keeps it,")
            }
            Self::Watermark { consumer, key } => write!(f, "the watermark of {consumer} for {key}"),
        }
    }
}

impl Tables {
    pub(super) fn apply(&mut self, changes: Changes) {
        for (table, event) in changes.events {
            let outbox = self.outboxes.entry(table).or_default();
            outbox.ids.insert(event.id());
            outbox.events.push(event);
        }
        for (consumed, claimed_at) in changes.claims {
            match claimed_at {
                Some(claimed_at) => self.claims.insert(consumed, claimed_at),
                None => self.claims.remove(&consumed),
            };
        }
        self.versions.extend(changes.versions);
        self.messages.extend(changes.messages);
    }

    pub(super) fn has_event(&self, table: &TableName, id: Uuid) -> bool {
        self.outboxes.get(table).is_some_and(|outbox| outbox.ids.contains(&id))
    }

    pub(super) fn events(&self, table: &TableName) -> Vec<Event> {
        self.outboxes.get(table).map(|outbox| outbox.events.clone()).unwrap_or_default()
    }

    pub(super) fn pending(&self, table: &TableName) -> Vec<Event> {
        let Some(outbox) = self.outboxes.get(table) else { return Vec::new() };
        let is_pending = |event: &&Event| !outbox.delivered.contains(&event.id());
        outbox.events.iter().filter(is_pending).cloned().collect()
    }

    pub(super) fn settle(&mut self, table: &TableName, id: Uuid) {
        if let Some(outbox) = self.outboxes.get_mut(table) {
            outbox.delivered.insert(id);
        }
    }

    pub(super) fn stored(&self, consumer: &str) -> Vec<Event> {
        let stored = self.messages_of(consumer).into_iter().filter(|kept| kept.death.is_none());
        stored.map(|message| message.event.clone()).collect()
    }

    pub(super) fn dead(&self, consumer: &str) -> Vec<DeadMessage> {
        let dead = |message: &Message| {
            let Death { error, attempts } = message.death.clone()?;
            Some(DeadMessage { event: message.event.clone(), error, attempts })
        };
        self.messages_of(consumer).into_iter().filter_map(dead).collect()
    }

    fn messages_of(&self, consumer: &str) -> Vec<&Message> {
        let of_consumer = self.messages.iter().filter(|((whose, _), _)| whose == consumer);
        let mut messages: Vec<&Message> = of_consumer.map(|(_, message)| message).collect();
        messages.sort_by_key(|message| message.position);
        messages
    }
}
