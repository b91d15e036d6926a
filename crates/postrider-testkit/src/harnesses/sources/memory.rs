//! The outbox in memory. Its clock is tokio's, so its cases take no time.

use std::sync::Arc;

use async_trait::async_trait;
use postrider::Event;
use postrider_relay::admin::Admin;
use postrider_relay::operator::Operator;
use postrider_relay::source::{Source, SourceError};
use postrider_relay::sources::memory::MemoryOutbox;

use crate::suites::numbered::key;
use crate::suites::source::{
    Connection, OutboxCapabilities, Subject, Tampering, TestOutbox, TestTransaction,
};
use crate::suites::{Backend, Clock};

const CAPABILITIES: OutboxCapabilities = OutboxCapabilities {
    concurrent_transactions: true,
    filters: false,
    keeps_delivered: false,
    operated: false,
    shared: false,
    stands_by: false,
    // Rows are typed: what is wrong with one is a text, with or without a key.
    tamperings: &[Tampering::BadHeaders, Tampering::EmptyKey],
};

/// The outbox in memory.
pub fn backend() -> Backend<Subject, OutboxCapabilities> {
    Backend::new("memory", CAPABILITIES, Clock::Virtual, || async {
        Arc::new(Memory::default()) as Subject
    })
}

#[derive(Default)]
struct Memory {
    outbox: MemoryOutbox,
}

/// What is appended when it commits.
struct Transaction {
    outbox: MemoryOutbox,
    events: Vec<Event>,
}

#[async_trait]
impl TestOutbox for Memory {
    fn capabilities(&self) -> OutboxCapabilities {
        CAPABILITIES
    }

    async fn begin(&self) -> Box<dyn TestTransaction> {
        Box::new(Transaction { outbox: self.outbox.clone(), events: Vec::new() })
    }

    async fn tamper(&self, aggregate_id: &str, tampering: Tampering) {
        let key = tampering.keeps_key().then(|| key(aggregate_id));
        self.outbox.append_undecodable(key, format!("{tampering:?}"));
    }

    async fn connect(&self, _: Connection<'_>) -> Result<Box<dyn Source>, SourceError> {
        Ok(Box::new(self.outbox.connect()))
    }

    async fn admin(&self) -> Box<dyn Admin> {
        Box::new(self.outbox.clone())
    }

    async fn operator(&self) -> Option<Box<dyn Operator>> {
        None
    }

    async fn rows(&self) -> usize {
        usize::try_from(self.outbox.unpublished()).unwrap_or(usize::MAX)
    }

    async fn forget(&self, _: &str) {
        panic!("an outbox in memory has no checkpoints");
    }
}

#[async_trait]
impl TestTransaction for Transaction {
    async fn publish(&mut self, event: &Event) {
        self.events.push(event.clone());
    }

    async fn commit(self: Box<Self>) {
        self.outbox.append(self.events);
    }

    async fn rollback(self: Box<Self>) {}
}
