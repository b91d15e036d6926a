//! The same with a real database, by rusqlite.

use std::time::{Duration, SystemTime};

use postrider::testing::{
    Delivery, Source as _, assert_not_published, assert_published, drain, drain_twice, published,
    redeliver_all,
};
use postrider::{Claim, Event, Inbox, Outbox, schema};
use rusqlite::Connection;
use uuid::Uuid;

use crate::{OrderPaid, migrated, panic_of, placed};

type Failure = Box<dyn std::error::Error>;

fn pay(conn: &mut Connection, order_id: u64) -> Result<(), Failure> {
    let mut tx = conn.transaction()?;
    Outbox::new().publish(&mut tx, &OrderPaid { order_id, cents: 999 })?;
    tx.commit()?;
    Ok(())
}

fn count(conn: &mut Connection, event: &Event) -> Result<(), Failure> {
    let mut tx = conn.transaction()?;
    if Inbox::new().once(&mut tx, "counter", event.id())? == Claim::First {
        tx.execute("UPDATE counter SET counted = counted + 1", [])?;
    }
    tx.commit()?;
    Ok(())
}

#[test]
fn an_event_is_read_as_it_was_written() {
    let mut conn = migrated();
    // To the microsecond, as the database keeps it.
    let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_000_000_000_123_456);
    let event = Event::builder("Order", "42", "OrderPaid")
        .id(Uuid::now_v7())
        .version(2)
        .payload("hello", "text/plain")
        .header("tenant", "acme")
        .topic("orders")
        .occurred_at(time)
        .deliver_after(time)
        .build()
        .unwrap();
    let mut tx = conn.transaction().unwrap();
    Outbox::new().publish(&mut tx, &event).unwrap();
    assert_published!(*tx, "OrderPaid");
    tx.commit().unwrap();
    assert_eq!(published(&conn), [event]);
    // As other languages may write it.
    conn.execute("UPDATE outbox SET payload = 'text'", []).unwrap();
    assert_eq!(&published(&conn)[0].payload()[..], b"text");
}

#[test]
fn a_real_database_is_asserted_and_drained() {
    let mut conn = migrated();
    conn.execute_batch("CREATE TABLE counter (counted); INSERT INTO counter VALUES (0)").unwrap();
    pay(&mut conn, 1).unwrap();
    pay(&mut conn, 2).unwrap();
    assert_published!(conn, OrderPaid { order_id: 2, cents: 999 }, times = 1);
    assert_not_published!(&conn, "OrderPlaced");

    let failing = drain(&mut conn, |_, event| match event.aggregate_id() {
        "1" => Err("broken"),
        _ => Ok(()),
    });
    assert_eq!((failing.delivered.len(), failing.failed.len()), (1, 1));
    assert_eq!(conn.pending(&Outbox::new()).len(), 1);
    drain_twice(&mut conn, count).assert_all_delivered();
    redeliver_all(&mut conn, count).assert_all_delivered();
    assert!(conn.pending(&Outbox::new()).is_empty());
    let counted: i64 = conn.query_one("SELECT counted FROM counter", [], |row| row.get(0)).unwrap();
    assert_eq!(counted, 2);
    assert_published!(conn, "OrderPaid", times = 2);
}

#[test]
fn a_table_of_another_name_is_read_too() {
    let mut conn = Connection::open_in_memory().unwrap();
    let message = panic_of(|| published(&conn));
    assert!(message.contains("the events in outbox cannot be read: no such table"), "{message}");

    let outbox = Outbox::in_table("it's \"mine\"").unwrap();
    schema::sqlite::migrate(&mut conn, outbox.table()).unwrap();
    let mut tx = conn.transaction().unwrap();
    outbox.publish(&mut tx, &placed("1")).unwrap();
    tx.commit().unwrap();
    assert_published!(conn.events(&outbox), "OrderPlaced");
    let drained = Delivery::new().outbox(&outbox).drain(&mut conn, |_, _| Ok::<_, String>(()));
    assert_eq!(drained.delivered.len(), 1);
}
