//! The consumer: keeps the books of the shop, in a database of its own, from what the broker has.

use std::path::Path;

use postrider::schema::{self, TableName};
use postrider::{Claim, Inbox};
use rusqlite::{Connection, Transaction, params};

use super::broker::{Arrival, Broker};
use super::schedule::Change;
use super::{DemoError, Way};

/// The name under which events are claimed in the inbox.
const CONSUMER: &str = "books";

const TABLES: &str = "
    CREATE TABLE books (revenue_cents INTEGER NOT NULL);
    INSERT INTO books VALUES (0);
    CREATE TABLE applied (event_id TEXT NOT NULL, order_id INTEGER NOT NULL);
    CREATE INDEX applied_event ON applied (event_id);
";
const NOTE_APPLIED: &str = "INSERT INTO applied (event_id, order_id) VALUES (?1, ?2)";
const ADD_REVENUE: &str = "UPDATE books SET revenue_cents = revenue_cents + ?1";

/// Applies messages in the order in which the broker has them.
pub(crate) struct Consumer {
    database: Connection,
    way: Way,
    /// How much of the broker's log was read.
    position: usize,
}

impl Consumer {
    /// A consumer with empty books.
    pub(crate) fn create(path: &Path, way: Way) -> Result<Self, DemoError> {
        let mut database = Connection::open(path)?;
        database.execute_batch(TABLES)?;
        if way == Way::Postrider {
            schema::sqlite::migrate(&mut database, &TableName::default())?;
        }
        // Only the shop is killed, not the machine: what was written stays.
        database.execute_batch("PRAGMA synchronous = OFF")?;
        Ok(Self { database, way, position: 0 })
    }

    /// Applies what has arrived since the last time.
    pub(crate) fn catch_up(&mut self, broker: &Broker) -> Result<(), DemoError> {
        for arrival in broker.arrivals_from(self.position) {
            let mut tx = self.database.transaction()?;
            let claim = match self.way {
                Way::Naive => Claim::First,
                Way::Postrider => Inbox::new().once(&mut tx, CONSUMER, arrival.event_id)?,
            };
            if claim == Claim::First {
                apply(&tx, &arrival)?;
            }
            tx.commit()?;
            self.position += 1;
        }
        Ok(())
    }
}

fn apply(tx: &Transaction<'_>, arrival: &Arrival) -> rusqlite::Result<()> {
    let payload = &arrival.payload;
    tx.execute(NOTE_APPLIED, params![arrival.event_id.to_string(), payload.order])?;
    if payload.change == Change::Paid {
        tx.execute(ADD_REVENUE, params![payload.cents])?;
    }
    Ok(())
}
