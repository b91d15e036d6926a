//! Every way to write events: with rusqlite, and with sqlx.
//!
//! `cargo run -p postrider-examples --bin write_events`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::error::Error;
use std::path::Path;
use std::time::{Duration, SystemTime};

use postrider::{Event, Outbox, events, schema};
use rusqlite::Connection;
use serde::Serialize;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

type Failure = Box<dyn Error + Send + Sync>;

/// The JSON of the struct is the payload; the struct's name is the event type.
#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = order_id)]
struct OrderPaid {
    order_id: i64,
    cents: i64,
}

/// A second shape of the same fact, with a topic of its own.
#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = order_id, type = "OrderShipped", version = 2, topic = "shipping")]
struct OrderShippedV2 {
    order_id: i64,
    carrier: &'static str,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("shop.db");
    let mut conn = Connection::open(&database)?;
    conn.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL)")?;
    schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;

    with_rusqlite(&mut conn)?;
    with_sqlx(&database).await?;
    print_outbox(&conn)
}

fn with_rusqlite(conn: &mut Connection) -> Result<(), Failure> {
    let outbox = Outbox::new();

    // One event, in a transaction of the application's.
    let mut tx = conn.transaction()?;
    tx.execute("INSERT INTO orders VALUES (1, 'paid')", [])?;
    outbox.publish(&mut tx, &OrderPaid { order_id: 1, cents: 999 })?;
    tx.commit()?;

    // Several events: all of them are written, or none is.
    let mut tx = conn.transaction()?;
    tx.execute("INSERT INTO orders VALUES (2, 'paid'), (3, 'paid')", [])?;
    let paid = [2, 3].map(|order_id| OrderPaid { order_id, cents: 500 });
    outbox.publish_all(&mut tx, &paid)?;
    tx.commit()?;

    // A closure that has to return its events: forgetting them does not compile.
    outbox.transact(conn, |tx| {
        tx.execute("UPDATE orders SET state = 'shipped' WHERE id = 1", [])?;
        let shipped = OrderShippedV2 { order_id: 1, carrier: "mule" };
        Ok::<_, Failure>(((), events![shipped]))
    })?;

    // An event made by hand: headers, another media type, a later time of delivery.
    let reminder = Event::builder("Order", "2", "PaymentReminder")
        .payload("pay, please", "text/plain")
        .header("tenant", "acme")
        .deliver_after(SystemTime::now() + Duration::from_secs(3600))
        .build()?;
    let mut tx = conn.transaction()?;
    outbox.publish(&mut tx, &reminder)?;
    tx.commit()?;
    Ok(())
}

async fn with_sqlx(database: &Path) -> Result<(), Failure> {
    let outbox = Outbox::new();
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(database)).await?;

    // The same calls, awaited.
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders VALUES (4, 'paid')").execute(&mut *tx).await?;
    outbox.publish(&mut tx, &OrderPaid { order_id: 4, cents: 100 }).await?;
    tx.commit().await?;

    outbox
        .transact_async(&pool, async |tx| {
            sqlx::query("UPDATE orders SET state = 'shipped' WHERE id = 4")
                .execute(&mut **tx)
                .await?;
            let shipped = OrderShippedV2 { order_id: 4, carrier: "pigeon" };
            Ok::<_, Failure>(((), events![shipped]))
        })
        .await?;
    pool.close().await;
    Ok(())
}

fn print_outbox(conn: &Connection) -> Result<(), Failure> {
    let mut statement = conn.prepare(
        "SELECT aggregate_type || '/' || aggregate_id, event_type, event_version,
                CAST(payload AS TEXT), coalesce(topic, '-') FROM outbox ORDER BY seq",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (key, event_type, version): (String, String, u32) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let (payload, topic): (String, String) = (row.get(3)?, row.get(4)?);
        println!("{key} {event_type} v{version} topic={topic} {payload}");
    }
    Ok(())
}
