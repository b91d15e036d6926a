//! The inbox's side of both transactions.

use std::time::Duration;

use uuid::Uuid;

use super::{AsyncMemoryTransaction, MemoryTransaction};
use crate::error::WriteError;
use crate::event::{Event, Key};
use crate::inbox::{Claim, InboxTransaction, Sequence};
use crate::outbox::Answer;

impl InboxTransaction for MemoryTransaction {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Result<Claim, WriteError> {
        self.0.run(|statement| statement.claim(consumer, event_id))
    }

    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Result<Vec<Claim>, WriteError> {
        self.0.run(|statement| statement.claim_all(consumer, event_ids))
    }

    fn advance<'t>(
        &'t mut self,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Result<Sequence, WriteError> {
        self.0.run(|statement| statement.advance(consumer, key, version))
    }

    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Result<Claim, WriteError> {
        self.0.run(|statement| statement.store(consumer, event))
    }

    fn bury<'t>(
        &'t mut self,
        consumer: &'t str,
        event: &'t Event,
        error: &'t str,
        attempts: u32,
    ) -> Result<(), WriteError> {
        self.0.run(|statement| statement.bury(consumer, event, error, attempts))
    }

    fn revive<'t>(
        &'t mut self,
        consumer: &'t str,
        event_id: Option<Uuid>,
    ) -> Result<u64, WriteError> {
        self.0.run(|statement| statement.revive(consumer, event_id))
    }

    fn prune(
        &mut self,
        consumer: &str,
        older_than: Duration,
        limit: u32,
    ) -> Result<u64, WriteError> {
        self.0.run(|statement| Ok(statement.prune(consumer, older_than, limit)))
    }
}

impl InboxTransaction for AsyncMemoryTransaction {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Answer<'t, Claim> {
        self.0.awaited(move |statement| statement.claim(consumer, event_id))
    }

    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Answer<'t, Vec<Claim>> {
        self.0.awaited(move |statement| statement.claim_all(consumer, event_ids))
    }

    fn advance<'t>(
        &'t mut self,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Answer<'t, Sequence> {
        self.0.awaited(move |statement| statement.advance(consumer, key, version))
    }

    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Answer<'t, Claim> {
        self.0.awaited(move |statement| statement.store(consumer, event))
    }

    fn bury<'t>(
        &'t mut self,
        consumer: &'t str,
        event: &'t Event,
        error: &'t str,
        attempts: u32,
    ) -> Answer<'t, ()> {
        self.0.awaited(move |statement| statement.bury(consumer, event, error, attempts))
    }

    fn revive<'t>(&'t mut self, consumer: &'t str, event_id: Option<Uuid>) -> Answer<'t, u64> {
        self.0.awaited(move |statement| statement.revive(consumer, event_id))
    }

    fn prune<'t>(
        &'t mut self,
        consumer: &'t str,
        older_than: Duration,
        limit: u32,
    ) -> Answer<'t, u64> {
        self.0.awaited(move |statement| Ok(statement.prune(consumer, older_than, limit)))
    }
}
