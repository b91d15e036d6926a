//! rusqlite as a client under test.

use std::path::Path;

use postrider::{Claim, Event, Events, Inbox, Outbox, ToEvent, WriteError};
use rusqlite::{Connection, Transaction};
use uuid::Uuid;

use crate::{BoxError, Client, End};

pub(crate) struct Rusqlite(Connection);

impl Rusqlite {
    fn run<T>(&mut self, end: End, work: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
        let mut tx = self.0.transaction().unwrap();
        let result = work(&mut tx);
        match end {
            End::Commit => tx.commit().unwrap(),
            End::Rollback => tx.rollback().unwrap(),
        }
        result
    }
}

impl Client for Rusqlite {
    fn open(path: &Path) -> Self {
        Self(Connection::open(path).unwrap())
    }

    fn publish(&mut self, event: &Event, end: End) -> Result<Uuid, WriteError> {
        self.run(end, |tx| Outbox::new().publish(tx, event))
    }

    fn publish_all<E: ToEvent>(&mut self, events: &[E], end: End) -> Result<Vec<Uuid>, WriteError> {
        self.run(end, |tx| Outbox::new().publish_all(tx, events))
    }

    fn publish_nested(&mut self, outer: &Event, inner: &Event, end_inner: End) {
        self.run(End::Commit, |tx| {
            Outbox::new().publish(tx, outer).unwrap();
            let mut savepoint = tx.savepoint().unwrap();
            Outbox::new().publish(&mut savepoint, inner).unwrap();
            if end_inner == End::Commit {
                savepoint.commit().unwrap();
            }
        });
    }

    fn once(&mut self, consumer: &str, event_id: Uuid, end: End) -> Result<Claim, WriteError> {
        self.run(end, |tx| Inbox::new().once(tx, consumer, event_id))
    }

    fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError> {
        Outbox::new().transact(&mut self.0, |tx| {
            tx.execute("INSERT INTO orders DEFAULT VALUES", [])?;
            Ok(((), result?))
        })
    }
}
