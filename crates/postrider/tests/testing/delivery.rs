//! Events are delivered as a relay does it: in order per key, at least once.

use std::time::{Duration, SystemTime};

use postrider::testing::{
    Delivery, MemoryDatabase, deliver_twice, drain, drain_twice, redeliver_all,
};
use postrider::{Claim, Event, Inbox, Outbox, WriteError};
use serde_json::json;

use crate::{event, panic_of, placed, publish};

fn ids(events: &[Event]) -> Vec<&str> {
    events.iter().map(Event::aggregate_id).collect()
}

/// Counts the event once, however often it comes.
fn count(database: &MemoryDatabase, event: &Event, counted: &mut u32) -> Result<(), WriteError> {
    let mut tx = database.begin();
    if Inbox::new().once(&mut tx, "counter", event.id())? == Claim::First {
        *counted += 1;
    }
    tx.commit()
}

#[test]
fn events_that_handlers_publish_are_delivered_too() {
    let mut database = MemoryDatabase::new();
    publish(&database, &[placed("1"), placed("2")]);
    let drained = drain(&mut database, |database, event| {
        let mut tx = database.begin();
        if event.event_type() == "OrderPlaced" {
            let paid = Event::builder("Order", event.aggregate_id(), "OrderPaid").build()?;
            Outbox::new().publish(&mut tx, &paid)?;
        }
        tx.commit()
    });
    drained.assert_all_delivered();
    let expected = ["OrderPlaced", "OrderPlaced", "OrderPaid", "OrderPaid"];
    assert_eq!(drained.delivered_types(), expected);
    assert_eq!(ids(&drained.delivered), ["1", "2", "1", "2"]);
    assert!(database.pending(&Outbox::new()).is_empty());
    assert_eq!(database.events(&Outbox::new()).len(), 4);

    let again = drain(&mut database, |_, _| Err("nothing is left"));
    assert_eq!(again, postrider::testing::Drained::default());
}

#[test]
fn what_fails_stays_with_its_key_and_others_go_on() {
    let mut database = MemoryDatabase::new();
    let paid = event("1", "OrderPaid", &json!({"cents": -1}));
    publish(
        &database,
        &[placed("1"), paid.clone(), placed("2"), event("1", "OrderShipped", &json!({}))],
    );
    let mut calls = Vec::new();
    let drained = drain(&mut database, |_, event| {
        calls.push(event.event_type().to_owned());
        if event.event_type() == "OrderPaid" { Err("a negative amount") } else { Ok(()) }
    });
    assert_eq!(calls, ["OrderPlaced", "OrderPaid", "OrderPlaced"]);
    assert_eq!(ids(&drained.delivered), ["1", "2"]);
    assert_eq!((drained.failed.len(), &drained.failed[0].event), (1, &paid));
    assert_eq!(drained.failed[0].error, "a negative amount");
    assert_eq!(drained.waiting.len(), 1);
    let pending = database.pending(&Outbox::new());
    assert_eq!(
        pending.iter().map(Event::event_type).collect::<Vec<_>>(),
        ["OrderPaid", "OrderShipped"]
    );

    let message = panic_of(|| drained.assert_all_delivered());
    let expected = r#"2 delivered, 1 failed, 1 waiting
  failed: OrderPaid of Order/1: {"cents":-1}
    a negative amount
  waiting behind it: OrderShipped of Order/1: {}"#;
    assert_eq!(message, expected);

    // The next drain tries again, in order.
    let drained = drain(&mut database, |_, _| Ok::<_, String>(()));
    drained.assert_all_delivered();
    assert_eq!(drained.delivered_types(), ["OrderPaid", "OrderShipped"]);
}

#[test]
fn handlers_in_a_loop_are_found() {
    let mut database = MemoryDatabase::new();
    publish(&database, &[placed("1")]);
    let message = panic_of(|| {
        Delivery::new().deliveries_max(10).drain(&mut database, |database, event| {
            let echo = Event::builder("Order", event.aggregate_id(), "Echo").build()?;
            let mut tx = database.begin();
            Outbox::new().publish(&mut tx, &echo)?;
            tx.commit()
        })
    });
    assert!(
        message.starts_with("10 events were delivered, and the outbox is not empty"),
        "{message}"
    );
    assert!(message.contains("Echo of Order/1, Echo of Order/1"), "{message}");
    assert!(message.ends_with("raise `Delivery::deliveries_max`"), "{message}");

    // As many as that are fine.
    let mut database = MemoryDatabase::new();
    publish(&database, &[placed("1"), placed("2")]);
    Delivery::new()
        .deliveries_max(2)
        .drain(&mut database, |_, _| Ok::<_, String>(()))
        .assert_all_delivered();
}

#[test]
fn delayed_events_wait_for_their_time_and_nobody_waits_for_them() {
    let mut database = MemoryDatabase::new();
    let tomorrow = SystemTime::now() + Duration::from_secs(24 * 60 * 60);
    let reminder =
        Event::builder("Order", "1", "Reminder").deliver_after(tomorrow).build().unwrap();
    publish(&database, &[reminder.clone(), placed("1")]);

    let drained = drain(&mut database, |_, _| Ok::<_, String>(()));
    drained.assert_all_delivered();
    assert_eq!(drained.delivered_types(), ["OrderPlaced"]);
    assert_eq!(drained.not_due, [reminder]);

    publish(&database, &[placed("1")]);
    let drained = Delivery::new().at(tomorrow).drain(&mut database, |_, event| {
        if event.event_type() == "Reminder" { Err("not at home") } else { Ok(()) }
    });
    assert_eq!(drained.delivered_types(), ["OrderPlaced"]);
    assert_eq!(drained.failed.len(), 1);
    assert!(drained.waiting.is_empty() && drained.not_due.is_empty(), "{drained}");
}

#[test]
fn an_event_that_comes_twice_has_its_effect_once() {
    let mut database = MemoryDatabase::new();
    publish(&database, &[placed("1"), placed("2")]);
    let (mut calls, mut counted) = (Vec::new(), 0);
    let drained = drain_twice(&mut database, |database, event| {
        calls.push(event.clone());
        count(database, event, &mut counted)
    });
    drained.assert_all_delivered();
    assert_eq!(ids(&calls), ["1", "1", "2", "2"]);
    assert_eq!(calls[0], calls[1]);
    assert_eq!(counted, 2);
    assert_eq!(drained.delivered.len(), 2);

    let event = placed("3");
    deliver_twice(&event, |event| count(&database, event, &mut counted)).unwrap();
    assert_eq!(counted, 3);
    let mut calls = 0;
    let failed = deliver_twice(&event, |_| {
        calls += 1;
        Err("broken")
    });
    assert_eq!((failed, calls), (Err("broken"), 1));
}

#[test]
fn a_second_delivery_that_fails_is_a_failure() {
    let mut database = MemoryDatabase::new();
    publish(&database, &[placed("1")]);
    let mut calls = 0;
    let drained = drain_twice(&mut database, |_, _| {
        calls += 1;
        if calls == 2 { Err("again?") } else { Ok(()) }
    });
    assert_eq!((drained.delivered.len(), drained.failed.len()), (0, 1));
    assert_eq!(database.pending(&Outbox::new()).len(), 1);
}

#[test]
fn all_that_was_ever_published_can_come_again() {
    let mut database = MemoryDatabase::new();
    let mut counted = 0;
    publish(&database, &[placed("1"), placed("2")]);
    drain(&mut database, |database, event| count(database, event, &mut counted))
        .assert_all_delivered();
    publish(&database, &[placed("1")]);

    let again =
        redeliver_all(&mut database, |database, event| count(database, event, &mut counted));
    again.assert_all_delivered();
    assert_eq!(ids(&again.delivered), ["1", "2", "1"]);
    assert_eq!(counted, 3);
    assert_eq!(database.pending(&Outbox::new()).len(), 1);

    let failed = redeliver_all(&mut database, |_, event| match event.aggregate_id() {
        "1" => Err("broken"),
        _ => Ok(()),
    });
    assert_eq!((failed.delivered.len(), failed.failed.len(), failed.waiting.len()), (1, 1, 1));
}

#[test]
fn another_outbox_is_drained_on_request() {
    let mut database = MemoryDatabase::new();
    let audit = Outbox::in_table("audit").unwrap();
    let mut tx = database.begin();
    audit.publish(&mut tx, &placed("1")).unwrap();
    tx.commit().unwrap();
    assert!(drain(&mut database, |_, _| Ok::<_, String>(())).delivered.is_empty());
    let drained = Delivery::new().outbox(&audit).drain(&mut database, |_, _| Ok::<_, String>(()));
    assert_eq!(drained.delivered.len(), 1);
    assert!(database.pending(&audit).is_empty());
}
