//! An application and its relay in one process: no second program to run.
//!
//! `cargo run -p postrider-examples --bin in_process`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use postrider::{Event, Outbox, schema};
use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::relay::Relay;
use postrider_relay::shutdown::shutdown;
use postrider_relay::sinks::MemorySink;
use postrider_relay::sources::SourceSpec;
use rusqlite::{Connection, params};
use serde::Serialize;

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = order_id)]
struct OrderPlaced {
    order_id: i64,
    cents: i64,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = order_id)]
struct OrderPaid {
    order_id: i64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("shop.db");
    create_tables(&database)?;

    // Where events go. A real one is made by `SinkSpec`, from a URL such as https://….
    let sink = MemorySink::new();
    let source = SourceSpec::new(format!("sqlite:{}", database.display()));
    let pipeline = Pipeline::new(
        "orders",
        source.connect().await?,
        Box::new(sink.clone()),
        Options::default(),
    );
    let (stop, shutdown) = shutdown();
    let relay = tokio::spawn(Relay::of(vec![pipeline]).run(shutdown));

    // The application's own work. rusqlite blocks, so it has a thread for it.
    tokio::task::spawn_blocking(|| take_orders(database)).await??;

    sink.wait_for(3).await;
    stop.stop();
    let outcomes = relay.await?;

    let mut arrived: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for message in sink.messages() {
        let types = arrived.entry(message.key.clone()).or_default();
        types.push(message.event.event_type().to_owned());
    }
    for (order, types) in arrived {
        println!("order {order}: {}", types.join(", "));
    }
    for outcome in outcomes {
        let totals = outcome.result?;
        println!("{}: delivered {}, parked {}", outcome.name, totals.delivered, totals.parked);
    }
    Ok(())
}

fn create_tables(database: &Path) -> Result<(), Failure> {
    let mut conn = Connection::open(database)?;
    conn.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL)")?;
    schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;
    Ok(())
}

/// Order 1 is placed and paid, order 2 is placed, and order 3 is rolled back.
fn take_orders(database: PathBuf) -> Result<(), Failure> {
    let mut conn = Connection::open(database)?;
    let outbox = Outbox::new();
    for order_id in 1..=3 {
        let mut tx = conn.transaction()?;
        tx.execute("INSERT INTO orders VALUES (?1, 0)", params![order_id])?;
        outbox.publish(&mut tx, &OrderPlaced { order_id, cents: 999 })?;
        if order_id == 3 {
            tx.rollback()?;
        } else {
            tx.commit()?;
        }
    }
    let mut tx = conn.transaction()?;
    tx.execute("UPDATE orders SET paid = 1 WHERE id = 1", [])?;
    outbox.publish(&mut tx, &OrderPaid { order_id: 1 })?;
    tx.commit()?;
    Ok(())
}
