//! The helpers for tests of applications, as those use them.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod testing {
    mod assertions;
    mod asynchronous;
    mod concurrency;
    mod delivery;
    mod memory;
    mod real;
}

use std::panic::{AssertUnwindSafe, catch_unwind};

use postrider::testing::MemoryDatabase;
use postrider::{Event, Outbox, schema};
use serde::Serialize;
use serde_json::{Value, json};

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = order_id)]
struct OrderPaid {
    order_id: u64,
    cents: u64,
}

fn event(id: &str, event_type: &str, payload: &Value) -> Event {
    Event::builder("Order", id, event_type).json(payload).build().unwrap()
}

fn placed(id: &str) -> Event {
    event(id, "OrderPlaced", &json!({"order_id": id}))
}

/// Commits events.
fn publish(database: &MemoryDatabase, events: &[Event]) {
    let mut tx = database.begin();
    Outbox::new().publish_all(&mut tx, events).unwrap();
    tx.commit().unwrap();
}

fn migrated() -> rusqlite::Connection {
    let mut conn = rusqlite::Connection::open_in_memory().unwrap();
    schema::sqlite::migrate(&mut conn, &schema::TableName::default()).unwrap();
    conn
}

/// What a failing assertion says.
fn panic_of<T>(failing: impl FnOnce() -> T) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(failing)) else {
        panic!("it should have failed");
    };
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => (*payload.downcast::<&str>().unwrap()).to_owned(),
    }
}
