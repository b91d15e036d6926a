//! The statements of a transaction. Each looks at its rows first, and writes when all are free.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::State;
use super::tables::{Changes, Consumed, Death, Message, Row};
use crate::error::WriteError;
use crate::event::{Event, Key};
use crate::inbox::{Claim, Sequence};
use crate::schema::TableName;

/// A statement under way: what was committed, and what its own transaction wrote before.
pub(super) struct Statement<'s> {
    pub(super) state: &'s mut State,
    pub(super) own: &'s mut Changes,
    pub(super) transaction: u64,
}

/// Why a statement wrote nothing.
pub(super) enum Refusal {
    /// Another open transaction has written this row.
    Held(Row),
    Failed(WriteError),
}

impl Statement<'_> {
    pub(super) fn insert(&mut self, table: &TableName, events: &[Event]) -> Result<(), Refusal> {
        let own = self.own.events.iter().filter(|(whose, _)| whose == table);
        let mut ids: HashSet<Uuid> = own.map(|(_, event)| event.id()).collect();
        for event in events {
            let id = event.id();
            self.free(&Row::Event { table: table.clone(), id })?;
            if self.state.tables.has_event(table, id) || !ids.insert(id) {
                return Err(Refusal::Failed(WriteError::Duplicate { id }));
            }
        }
        for event in events {
            self.hold(Row::Event { table: table.clone(), id: event.id() });
            self.own.events.push((table.clone(), event.clone()));
        }
        Ok(())
    }

    pub(super) fn claim(&mut self, consumer: &str, event_id: Uuid) -> Result<Claim, Refusal> {
        let claimed = self.claim_all(consumer, &[event_id])?;
        Ok(claimed.first().copied().unwrap_or(Claim::Duplicate))
    }

    pub(super) fn claim_all(
        &mut self,
        consumer: &str,
        event_ids: &[Uuid],
    ) -> Result<Vec<Claim>, Refusal> {
        for &event_id in event_ids {
            self.free(&claim_row(consumer, event_id))?;
        }
        Ok(event_ids.iter().map(|&event_id| self.write_claim(consumer, event_id)).collect())
    }

    pub(super) fn advance(
        &mut self,
        consumer: &str,
        key: &Key,
        version: u64,
    ) -> Result<Sequence, Refusal> {
        let row = Row::Watermark { consumer: consumer.to_owned(), key: key.clone() };
        self.free(&row)?;
        let of_key = (consumer.to_owned(), key.clone());
        let last = self.own.versions.get(&of_key).or(self.state.tables.versions.get(&of_key));
        let sequence = Sequence::of(last.copied(), version);
        if let Sequence::Stale { .. } = sequence {
            return Ok(sequence);
        }
        self.hold(row);
        self.own.versions.insert(of_key, version);
        Ok(sequence)
    }

    pub(super) fn store(&mut self, consumer: &str, event: &Event) -> Result<Claim, Refusal> {
        let consumed = self.free_message(consumer, event.id())?;
        if self.message(&consumed).is_some() || self.is_claimed(&consumed) {
            return Ok(Claim::Duplicate);
        }
        self.write_message(consumed, event, None);
        Ok(Claim::First)
    }

    pub(super) fn bury(
        &mut self,
        consumer: &str,
        event: &Event,
        error: &str,
        attempts: u32,
    ) -> Result<(), Refusal> {
        let consumed = self.free_message(consumer, event.id())?;
        self.write_message(consumed, event, Some(Death { error: error.to_owned(), attempts }));
        let _ = self.write_claim(consumer, event.id());
        Ok(())
    }

    pub(super) fn revive(
        &mut self,
        consumer: &str,
        event_id: Option<Uuid>,
    ) -> Result<u64, Refusal> {
        let kept = self.state.tables.messages.keys().chain(self.own.messages.keys());
        let asked =
            |(whose, id): &&Consumed| whose == consumer && event_id.is_none_or(|e| e == *id);
        let ids: BTreeSet<Uuid> = kept.filter(asked).map(|(_, id)| *id).collect();
        let mut dead = Vec::new();
        for id in ids {
            let consumed = self.free_message(consumer, id)?;
            dead.extend(self.message(&consumed).filter(|kept| kept.death.is_some()).cloned());
        }
        for message in &dead {
            let consumed = (consumer.to_owned(), message.event.id());
            self.hold(claim_row(consumer, message.event.id()));
            self.own.claims.insert(consumed.clone(), None);
            self.write_message(consumed, &message.event, None);
        }
        Ok(dead.len() as u64)
    }

    /// Claims that another transaction is about to change are left alone.
    pub(super) fn prune(&mut self, consumer: &str, older_than: Duration, limit: u32) -> u64 {
        let made_before =
            SystemTime::now().checked_sub(older_than).unwrap_or(SystemTime::UNIX_EPOCH);
        let own = self.own.claims.iter().filter_map(|(consumed, at)| Some((consumed, (*at)?)));
        let committed = self.state.tables.claims.iter().map(|(consumed, at)| (consumed, *at));
        let untouched = committed.filter(|(consumed, _)| !self.own.claims.contains_key(*consumed));
        let mut old: Vec<(SystemTime, Consumed)> = own
            .chain(untouched)
            .filter(|(consumed, at)| {
                consumed.0 == consumer
                    && *at < made_before
                    && self.free(&claim_row(&consumed.0, consumed.1)).is_ok()
            })
            .map(|(consumed, at)| (at, consumed.clone()))
            .collect();
        old.sort();
        old.truncate(limit as usize);
        for (_, consumed) in &old {
            self.hold(claim_row(&consumed.0, consumed.1));
            self.own.claims.insert(consumed.clone(), None);
        }
        old.len() as u64
    }

    fn free(&self, row: &Row) -> Result<(), Refusal> {
        match self.state.held.get(row) {
            Some(holder) if *holder != self.transaction => Err(Refusal::Held(row.clone())),
            _ => Ok(()),
        }
    }

    fn hold(&mut self, row: Row) {
        self.state.held.insert(row, self.transaction);
    }

    /// That neither a message nor its claim is held by another.
    fn free_message(&self, consumer: &str, event_id: Uuid) -> Result<Consumed, Refusal> {
        self.free(&message_row(consumer, event_id))?;
        self.free(&claim_row(consumer, event_id))?;
        Ok((consumer.to_owned(), event_id))
    }

    fn is_claimed(&self, consumed: &Consumed) -> bool {
        match self.own.claims.get(consumed) {
            Some(claimed_at) => claimed_at.is_some(),
            None => self.state.tables.claims.contains_key(consumed),
        }
    }

    fn message(&self, consumed: &Consumed) -> Option<&Message> {
        self.own.messages.get(consumed).or(self.state.tables.messages.get(consumed))
    }

    fn write_claim(&mut self, consumer: &str, event_id: Uuid) -> Claim {
        let consumed = (consumer.to_owned(), event_id);
        if self.is_claimed(&consumed) {
            return Claim::Duplicate;
        }
        self.hold(claim_row(consumer, event_id));
        self.own.claims.insert(consumed, Some(SystemTime::now()));
        Claim::First
    }

    /// Writes a message; one that is kept keeps its place and its event.
    fn write_message(&mut self, consumed: Consumed, event: &Event, death: Option<Death>) {
        let message = match self.message(&consumed).cloned() {
            Some(kept) => Message { death, ..kept },
            None => {
                self.state.tables.position += 1;
                Message { event: event.clone(), position: self.state.tables.position, death }
            }
        };
        self.hold(message_row(&consumed.0, consumed.1));
        self.own.messages.insert(consumed, message);
    }
}

fn claim_row(consumer: &str, event_id: Uuid) -> Row {
    Row::Claim { consumer: consumer.to_owned(), event_id }
}

fn message_row(consumer: &str, event_id: Uuid) -> Row {
    Row::Message { consumer: consumer.to_owned(), event_id }
}
