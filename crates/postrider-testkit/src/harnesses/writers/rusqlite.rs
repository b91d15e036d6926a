//! rusqlite, which blocks.

use async_trait::async_trait;
use postrider::{Claim, Event, Events, Inbox, Outbox, ToEvent, WriteError};
use rusqlite::{Connection, Transaction};
use uuid::Uuid;

use super::inbox::open_inbox;
use super::sqlite::{self, BUSY_TIMEOUT};
use crate::suites::Backend;
use crate::suites::inbox::OpenInbox;
use crate::suites::writer::{BoxError, Capabilities, End, Subject, TestClient};

/// rusqlite.
pub fn backend() -> Backend<Subject, Capabilities> {
    sqlite::backend("rusqlite", |path| {
        let connection = Connection::open(path).expect("the database can be opened");
        connection.busy_timeout(BUSY_TIMEOUT).expect("any time will do");
        Box::pin(async { Box::new(Rusqlite(connection)) as Box<dyn TestClient> })
    })
}

struct Rusqlite(Connection);

impl Rusqlite {
    fn run<T>(&mut self, end: End, work: impl FnOnce(&mut Transaction<'_>) -> T) -> T {
        let mut tx = self.0.transaction().expect("a transaction can be begun");
        let result = work(&mut tx);
        let ended = match end {
            End::Commit => tx.commit(),
            End::Rollback => tx.rollback(),
        };
        ended.expect("a transaction can be ended");
        result
    }
}

#[async_trait(?Send)]
impl TestClient for Rusqlite {
    async fn publish(&mut self, event: &Event, end: End) -> Result<Uuid, WriteError> {
        self.run(end, |tx| Outbox::new().publish(tx, event))
    }

    async fn publish_all(
        &mut self,
        events: &[&dyn ToEvent],
        end: End,
    ) -> Result<Vec<Uuid>, WriteError> {
        self.run(end, |tx| Outbox::new().publish_all(tx, events))
    }

    async fn publish_nested(&mut self, outer: &Event, inner: &Event, end_inner: End) {
        self.run(End::Commit, |tx| {
            Outbox::new().publish(tx, outer).expect("the event is written");
            let mut savepoint = tx.savepoint().expect("a savepoint can be made");
            Outbox::new().publish(&mut savepoint, inner).expect("the event is written");
            if end_inner == End::Commit {
                savepoint.commit().expect("a savepoint can be released");
            }
        });
    }

    async fn begin(&mut self) -> Box<dyn OpenInbox + '_> {
        Box::new(Open(Some(self.0.transaction().expect("a transaction can be begun"))))
    }

    async fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError> {
        Outbox::new().transact(&mut self.0, |tx| {
            tx.execute("INSERT INTO orders DEFAULT VALUES", [])?;
            Ok(((), result?))
        })
    }
}

struct Open<'c>(Option<Transaction<'c>>);

impl<'c> Open<'c> {
    fn tx(&mut self) -> &mut Transaction<'c> {
        self.0.as_mut().expect("it was not lost")
    }

    async fn execute(&mut self, sql: &str) -> rusqlite::Result<()> {
        self.tx().execute(sql, []).map(drop)
    }

    async fn finish(mut self, end: End) -> rusqlite::Result<()> {
        let tx = self.0.take().expect("it was not lost");
        match end {
            End::Commit => tx.commit(),
            End::Rollback => tx.rollback(),
        }
    }

    /// It stays open until the connection is closed with it.
    async fn lose(&mut self) {
        std::mem::forget(self.0.take());
    }
}

open_inbox!(Open<'_>,);
