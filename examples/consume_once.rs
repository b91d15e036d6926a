//! A consumer whose effect happens once, however often an event is delivered.
//!
//! `cargo run -p postrider-examples --bin consume_once`
#![allow(clippy::print_stdout, reason = "an example shows what happens")]

use std::error::Error;

use postrider::{Claim, Inbox, schema};
use rusqlite::{Connection, params};
use uuid::Uuid;

/// What arrives from a broker or a webhook: the id is the `webhook-id`, or the field `id`.
struct Delivery {
    event_id: Uuid,
    account: &'static str,
    cents: i64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut conn = Connection::open_in_memory()?;
    conn.execute_batch(
        "CREATE TABLE balances (account TEXT PRIMARY KEY, cents INTEGER NOT NULL CHECK (cents >= 0));
         INSERT INTO balances VALUES ('ann', 100)",
    )?;
    schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;

    let deposit = Delivery { event_id: Uuid::now_v7(), account: "ann", cents: 50 };
    println!("deposit: {}", told(handle(&mut conn, &deposit)));
    println!("the same again: {}", told(handle(&mut conn, &deposit)));

    // The effect fails, and the claim is rolled back with it: the next delivery is the first.
    let withdrawal = Delivery { event_id: Uuid::now_v7(), account: "ann", cents: -200 };
    println!("withdrawal: {}", told(handle(&mut conn, &withdrawal)));
    conn.execute("UPDATE balances SET cents = cents + 100", [])?;
    println!("the same again: {}", told(handle(&mut conn, &withdrawal)));

    let balance: i64 = conn.query_one("SELECT cents FROM balances", [], |row| row.get(0))?;
    println!("balance: {balance}");
    Ok(())
}

/// Claims the event and applies it in one transaction. Acknowledge the delivery after `Ok`.
fn handle(conn: &mut Connection, delivery: &Delivery) -> Result<Claim, Box<dyn Error>> {
    let mut tx = conn.transaction()?;
    let claim = Inbox::new().once(&mut tx, "balances", delivery.event_id)?;
    if claim == Claim::First {
        tx.execute(
            "UPDATE balances SET cents = cents + ?2 WHERE account = ?1",
            params![delivery.account, delivery.cents],
        )?;
    }
    tx.commit()?;
    Ok(claim)
}

fn told(handled: Result<Claim, Box<dyn Error>>) -> String {
    match handled {
        Ok(Claim::First) => "applied".into(),
        Ok(Claim::Duplicate) => "a duplicate, nothing done".into(),
        Err(error) => format!("failed, deliver it again: {error}"),
    }
}
