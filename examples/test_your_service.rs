//! A small service and its tests: it bills each order once, however often it hears of it.
//!
//! `cargo run -p postrider-examples --bin test_your_service`
//!
//! Here the tests run from `main`, so that their output can be shown; `cargo test` runs them as
//! well. The feature `testing` of postrider is for `[dev-dependencies]`.
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::error::Error;
use std::panic::catch_unwind;

use postrider::testing::{
    MemoryDatabase, assert_not_published, assert_published, drain, drain_twice, redeliver_all,
};
use postrider::{Claim, Event, Inbox, Outbox, schema};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};

type Failure = Box<dyn Error>;

/// What the service hears of, from a shop.
#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "Order", id = order_id)]
struct OrderPlaced {
    order_id: i64,
    customer: String,
    cents: i64,
}

/// What it tells others.
#[derive(Serialize, Event)]
#[event(aggregate = "Invoice", id = order_id)]
struct OrderBilled {
    order_id: i64,
    cents: i64,
}

/// The service: claims the event, writes the invoice and publishes that, in one transaction.
fn bill(conn: &mut Connection, event: &Event) -> Result<(), Failure> {
    let OrderPlaced { order_id, customer, cents } = serde_json::from_slice(event.payload())?;
    let mut tx = conn.transaction()?;
    if Inbox::new().once(&mut tx, "billing", event.id())? == Claim::First {
        tx.execute("INSERT INTO invoices VALUES (?1, ?2, ?3)", params![order_id, customer, cents])?;
        Outbox::new().publish(&mut tx, &OrderBilled { order_id, cents })?;
    }
    tx.commit()?;
    Ok(())
}

/// An empty database of the service, with its own tables.
fn service() -> Result<Connection, Failure> {
    let mut conn = Connection::open_in_memory()?;
    conn.execute_batch(
        "PRAGMA foreign_keys = ON;
         CREATE TABLE customers (name TEXT PRIMARY KEY);
         CREATE TABLE invoices (order_id, customer REFERENCES customers, cents);
         INSERT INTO customers VALUES ('ann')",
    )?;
    schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;
    Ok(conn)
}

/// The shop is another service; here it is only an outbox.
fn shop(orders: &[(i64, &str)]) -> Result<MemoryDatabase, Failure> {
    let shop = MemoryDatabase::new();
    let mut tx = shop.begin();
    for &(order_id, customer) in orders {
        let placed = OrderPlaced { order_id, customer: customer.to_owned(), cents: 999 };
        Outbox::new().publish(&mut tx, &placed)?;
    }
    tx.commit()?;
    Ok(shop)
}

fn invoices(conn: &Connection) -> Result<i64, Failure> {
    Ok(conn.query_one("SELECT count(*) FROM invoices", [], |row| row.get(0))?)
}

#[cfg_attr(test, test)]
fn an_order_is_billed_once() -> Result<(), Failure> {
    let (mut shop, mut conn) = (shop(&[(1, "ann")])?, service()?);
    // Each delivery is repeated, as after a crash of the relay, and then everything comes again.
    drain_twice(&mut shop, |_, event| bill(&mut conn, event)).assert_all_delivered();
    redeliver_all(&mut shop, |_, event| bill(&mut conn, event)).assert_all_delivered();

    assert_published!(conn, OrderBilled { order_id: 1, cents: 999 }, times = 1);
    assert_eq!(invoices(&conn)?, 1);
    println!("three deliveries: 1 invoice");
    Ok(())
}

#[cfg_attr(test, test)]
fn what_fails_is_not_half_done() -> Result<(), Failure> {
    let (mut shop, mut conn) = (shop(&[(1, "bob"), (2, "ann")])?, service()?);
    let drained = drain(&mut shop, |_, event| bill(&mut conn, event));
    println!("an unknown customer: {drained}");
    assert_not_published!(conn, "OrderBilled", { "order_id": 1 });
    assert_published!(conn, "OrderBilled", { "order_id": 2 });

    // The claim was rolled back with the rest, so the next delivery counts as the first.
    conn.execute("INSERT INTO customers VALUES ('bob')", [])?;
    let drained = drain(&mut shop, |_, event| bill(&mut conn, event));
    println!("the customer is known: {drained}");
    assert_published!(conn, "OrderBilled", { "order_id": 1 }, times = 1);
    Ok(())
}

#[cfg_attr(test, test)]
fn a_wrong_expectation_is_explained() -> Result<(), Failure> {
    let (mut shop, mut conn) = (shop(&[(1, "ann")])?, service()?);
    drain(&mut shop, |_, event| bill(&mut conn, event)).assert_all_delivered();
    let events = postrider::testing::published(&conn);
    let failure = catch_unwind(|| {
        assert_published!(events, "OrderBilled", { "order_id": 1, "cents": 500 });
    });
    let message = failure.expect_err("it was billed in full");
    println!("{}", message.downcast::<String>().map_err(|_| "a message is text")?);
    Ok(())
}

fn main() -> Result<(), Failure> {
    an_order_is_billed_once()?;
    what_fails_is_not_half_done()?;
    a_wrong_expectation_is_explained()
}
