//! The shop: answers requests, each by one transaction in its SQLite database and one event.
//!
//! It is a process of its own, so that it can be killed. Requests come in on stdin, one JSON
//! object per line, and each is answered by a word on stdout; at the end of stdin it finishes.
//! Where the schedule wants it killed it says so, and waits for it.

mod publisher;

use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use postrider::schema::{self, TableName};
use postrider::{Event, InvalidEvent, Outbox};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};
use serde::{Deserialize, Serialize};

use self::publisher::Publisher;
use super::schedule::{Change, Fault, Request};
use super::{DemoError, Way};

/// The database, in the directory of the round.
pub(crate) const DATABASE: &str = "shop.db";
/// How long to wait while the relay writes.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

// A voucher is looked up no sooner than at the commit: so late can a transaction still fail.
const TABLES: &str = "
    CREATE TABLE vouchers (code TEXT PRIMARY KEY);
    CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL, cents INTEGER NOT NULL);
    CREATE TABLE changes (
        seq      INTEGER PRIMARY KEY AUTOINCREMENT,
        event_id TEXT NOT NULL UNIQUE,
        order_id INTEGER NOT NULL REFERENCES orders (id),
        change   TEXT NOT NULL,
        cents    INTEGER NOT NULL,
        voucher  TEXT REFERENCES vouchers (code) DEFERRABLE INITIALLY DEFERRED
    );
";
const SET_STATE: &str = "INSERT INTO orders (id, state, cents) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state";
const ADD_CHANGE: &str = "INSERT INTO changes (event_id, order_id, change, cents, voucher)
    VALUES (?1, ?2, ?3, ?4, ?5)";

/// Tells a process of this binary that it is the shop, and how it publishes.
pub(crate) const WAY_VARIABLE: &str = "POSTRIDER_DEMO_SHOP";
/// Tells the shop where the broker is.
pub(crate) const BROKER_VARIABLE: &str = "POSTRIDER_DEMO_BROKER";

/// What the process of the shop is told.
#[derive(Debug)]
pub(crate) struct Settings {
    way: Way,
    broker: String,
}

impl Settings {
    /// The settings of this process, if it is the shop.
    pub(crate) fn of_process() -> Option<Self> {
        let way = std::env::var(WAY_VARIABLE).ok()?;
        Some(Self {
            way: Way::ALL.into_iter().find(|known| known.as_str() == way)?,
            broker: std::env::var(BROKER_VARIABLE).ok()?,
        })
    }
}

/// What an event says.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Payload {
    pub(crate) order: u32,
    /// The number of the request that the event came of.
    pub(crate) request: u32,
    pub(crate) change: Change,
    pub(crate) cents: i64,
}

/// The shop's answer to a request.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Reply {
    Committed,
    RolledBack,
    /// It stands where it is to be killed.
    Paused,
}

/// Makes an empty database.
pub(crate) fn create_database(path: &Path, way: Way) -> Result<(), DemoError> {
    let mut database = Connection::open(path)?;
    database.execute_batch("PRAGMA journal_mode = WAL")?;
    database.execute_batch(TABLES)?;
    if way == Way::Postrider {
        schema::sqlite::migrate(&mut database, &TableName::default())?;
    }
    Ok(())
}

/// Answers requests until there are no more.
pub(crate) async fn work(settings: &Settings) -> Result<(), DemoError> {
    let mut shop = Shop::open(settings)?;
    let mut line = String::new();
    while io::stdin().read_line(&mut line)? > 0 {
        let request: Request = serde_json::from_str(&line)?;
        let reply = shop.serve(&request).await?;
        say(reply)?;
        line.clear();
    }
    if let Publishing::Beside(publisher) = &mut shop.publishing {
        publisher.catch_up().await;
    }
    Ok(())
}

struct Shop {
    database: Connection,
    publishing: Publishing,
}

enum Publishing {
    /// Beside the transaction.
    Beside(Publisher),
    /// In the transaction.
    Within(Outbox),
}

impl Shop {
    fn open(settings: &Settings) -> Result<Self, DemoError> {
        let database = Connection::open(DATABASE)?;
        database.busy_timeout(BUSY_TIMEOUT)?;
        database.execute_batch("PRAGMA foreign_keys = ON")?;
        let publishing = match settings.way {
            Way::Naive => Publishing::Beside(Publisher::new(&settings.broker)?),
            Way::Postrider => Publishing::Within(Outbox::new()),
        };
        Ok(Self { database, publishing })
    }

    async fn serve(&mut self, request: &Request) -> Result<Reply, DemoError> {
        let event = event(request)?;
        let behavior = TransactionBehavior::Immediate;
        let mut tx = self.database.transaction_with_behavior(behavior)?;
        write(&tx, request, &event)?;
        // Some have lost events after the commit before, and so publish first where money is.
        let publishes_first = request.change == Change::Paid;
        match &mut self.publishing {
            Publishing::Within(outbox) => drop(outbox.publish(&mut tx, &event)?),
            Publishing::Beside(publisher) if publishes_first => publisher.publish(&event).await,
            Publishing::Beside(_) => {}
        }
        crash_at(Fault::CrashBeforeCommit, request)?;
        if !commit(tx)? {
            return Ok(Reply::RolledBack);
        }
        crash_at(Fault::CrashAfterCommit, request)?;
        match &mut self.publishing {
            Publishing::Beside(publisher) if !publishes_first => publisher.publish(&event).await,
            Publishing::Beside(_) | Publishing::Within(_) => {}
        }
        Ok(Reply::Committed)
    }
}

fn event(request: &Request) -> Result<Event, InvalidEvent> {
    let payload = Payload {
        order: request.order,
        request: request.number,
        change: request.change,
        cents: request.cents,
    };
    Event::builder("Order", request.order.to_string(), request.change.event_type())
        .json(&payload)
        .build()
}

fn write(tx: &Transaction<'_>, request: &Request, event: &Event) -> rusqlite::Result<()> {
    let (order, cents) = (request.order, request.cents);
    let change = request.change.as_str();
    let voucher = (request.fault == Some(Fault::Rollback)).then_some("WITHDRAWN");
    tx.execute(SET_STATE, params![order, change, cents])?;
    tx.execute(ADD_CHANGE, params![event.id().to_string(), order, change, cents, voucher])?;
    Ok(())
}

/// Whether the database has accepted it.
fn commit(tx: Transaction<'_>) -> rusqlite::Result<bool> {
    match tx.commit() {
        Ok(()) => Ok(true),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Waits to be killed, if this is the place.
fn crash_at(place: Fault, request: &Request) -> Result<(), DemoError> {
    if request.fault != Some(place) {
        return Ok(());
    }
    say(Reply::Paused)?;
    io::stdin().read_line(&mut String::new())?;
    Err("the shop was not killed".into())
}

fn say(reply: Reply) -> Result<(), DemoError> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", serde_json::to_string(&reply)?)?;
    Ok(stdout.flush()?)
}
