//! What was published, and what a failing assertion says about it.

use postrider::Event;
use postrider::testing::{MemoryDatabase, assert_not_published, assert_published};
use serde_json::json;

use crate::{OrderPaid, event, panic_of, placed, publish};

fn shop() -> MemoryDatabase {
    let database = MemoryDatabase::new();
    let shipped = json!({
        "order_id": 1,
        "to": {"city": "Bern", "zip": "3000"},
        "items": [{"sku": "a", "count": 2}],
        "weight": 1.0
    });
    publish(
        &database,
        &[
            event("1", "OrderPaid", &json!({"order_id": 1, "cents": 500})),
            event("2", "OrderPaid", &json!({"order_id": 2, "cents": 999})),
            event("1", "OrderShipped", &shipped),
        ],
    );
    database
}

#[test]
fn an_event_is_found_by_its_type_and_by_fields() {
    let database = shop();
    let paid = assert_published!(database, "OrderPaid");
    assert_eq!(paid.aggregate_id(), "1");
    let paid = assert_published!(database, "OrderPaid", { "cents": 999 });
    assert_eq!(paid.aggregate_id(), "2");
    assert_published!(database, "OrderPaid", { "order_id": 1, "cents": 500 },);
    assert_published!(database, "OrderShipped", { "to": { "city": "Bern" }, "weight": 1 });
    assert_published!(database, "OrderShipped", { "items": [{ "sku": "a" }] });
    let event_type = "OrderPaid".to_owned();
    let cents = 400 + 99;
    assert_not_published!(database, event_type, { "cents": cents });
    assert_not_published!(&database, "OrderCancelled");
    assert_not_published!(database, "OrderShipped", { "items": [] });
    assert_not_published!(database, "OrderPaid", { "cents": "999" });
}

#[test]
fn an_event_is_found_by_its_value() {
    let database = shop();
    assert_published!(database, OrderPaid { order_id: 2, cents: 999 });
    let expected = OrderPaid { order_id: 2, cents: 998 };
    assert_not_published!(database, &expected);
    // The whole payload counts, and the key.
    assert_not_published!(database, event("1", "OrderShipped", &json!({"order_id": 1})));
    assert_not_published!(database, event("9", "OrderPaid", &json!({"order_id": 2, "cents": 999})));
    let text = |text: &'static str| {
        Event::builder("Order", "1", "Note").payload(text, "text/plain").build().unwrap()
    };
    assert_published!([text("hello")], text("hello"));
    assert_not_published!([text("hello")], text("hallo"));
}

#[test]
fn events_are_counted() {
    let database = shop();
    assert_eq!(assert_published!(database, "OrderPaid", times = 2).len(), 2);
    assert_published!(database, "OrderPaid", { "cents": 999 }, times = 1);
    assert_published!(database, "OrderCancelled", times = 0);
}

#[test]
fn events_that_were_read_are_as_good_as_a_database() {
    let events = vec![placed("1"), placed("2")];
    assert_published!(events, "OrderPlaced", times = 2);
    assert_published!(&events[1..], "OrderPlaced", { "order_id": "2" }, times = 1);
    assert_published!([placed("1")], "OrderPlaced");
    assert_published!(&mut MemoryDatabase::new(), "OrderPlaced", times = 0);
}

#[test]
fn a_failure_lists_what_was_published_and_what_differs() {
    let database = shop();
    let message = panic_of(|| assert_published!(database, "OrderPaid", { "cents": 1, "vat": 2 }));
    let expected = r#"no OrderPaid with {"cents":1,"vat":2} was published
published, in order:
  1. OrderPaid of Order/1: {"cents":500,"order_id":1}
       cents: expected 1, found 500
       vat: expected 2, is missing
  2. OrderPaid of Order/2: {"cents":999,"order_id":2}
       cents: expected 1, found 999
       vat: expected 2, is missing
  3. OrderShipped of Order/1: {"items":[{"count":2,"sku":"a"}],"order_id":1,"to":{"city":"Bern","zip":"3000"},"weight":1.0}"#;
    assert_eq!(message, expected);

    let message = panic_of(|| {
        assert_published!(database, "OrderShipped", {
            "to": { "city": "Basel" },
            "items": [{ "sku": "b" }]
        })
    });
    assert!(message.contains("\n       items[0].sku: expected \"b\", found \"a\""), "{message}");
    assert!(message.contains("\n       to.city: expected \"Basel\", found \"Bern\""), "{message}");
}

#[test]
fn a_failure_by_value_names_the_key_and_what_is_too_much() {
    let database = MemoryDatabase::new();
    let more = json!({"order_id": 2, "cents": 999, "vat": 7});
    publish(&database, &[event("2", "OrderPaid", &more)]);
    let message = panic_of(|| assert_published!(database, OrderPaid { order_id: 1, cents: 999 }));
    let expected = r#"no OrderPaid of Order/1 with {"cents":999,"order_id":1} was published
published, in order:
  1. OrderPaid of Order/2: {"cents":999,"order_id":2,"vat":7}
       key: expected Order/1, found Order/2
       order_id: expected 1, found 2
       vat: expected to be missing, found 7"#;
    assert_eq!(message, expected);
}

#[test]
fn a_failure_says_that_nothing_was_published() {
    let database = MemoryDatabase::new();
    let mut tx = database.begin();
    postrider::Outbox::new().publish(&mut tx, &placed("1")).unwrap();
    let message = panic_of(|| assert_published!(database, "OrderPlaced"));
    let expected = "no OrderPlaced was published
nothing was published; an event is, once its transaction has committed";
    assert_eq!(message, expected);
}

#[test]
fn a_failure_of_a_count_shows_what_matches() {
    let database = shop();
    let message =
        panic_of(|| assert_published!(database, "OrderPaid", { "cents": 999 }, times = 2));
    assert!(
        message.starts_with(r#"OrderPaid with {"cents":999} was published once, expected 2 times"#),
        "{message}"
    );
    assert!(message.contains("\"order_id\":2}\n       matches\n"), "{message}");
    let message = panic_of(|| assert_published!(database, "OrderPaid", times = 0));
    assert!(message.starts_with("OrderPaid was published 2 times, expected never\n"), "{message}");
    let message = panic_of(|| assert_not_published!(database, "OrderShipped"));
    assert!(
        message.starts_with("OrderShipped was published, and should not have been\n"),
        "{message}"
    );
}

#[test]
fn odd_payloads_and_long_lists_can_be_shown() {
    let bytes = |payload: Vec<u8>| {
        Event::builder("Order", "1", "Scan").payload(payload, "image/png").build().unwrap()
    };
    let mut events = vec![bytes(vec![0xff; 9]), bytes(Vec::new()), bytes(vec![b'x'; 1000])];
    events.extend((0..60).map(|_| placed("1")));
    let message = panic_of(|| assert_published!(events, "Scan", { "width": 5 }));
    for expected in [
        "1. Scan of Order/1: 9 bytes of image/png\n       payload: expected JSON, found image/png",
        "2. Scan of Order/1: no payload",
        "xxx… (1000 bytes)\n",
        "\n  … and 13 more",
    ] {
        assert!(message.contains(expected), "{expected:?} is not in {message}");
    }
    let invalid = panic_of(|| {
        struct Broken;
        impl postrider::ToEvent for Broken {
            fn to_event(&self) -> Result<Event, postrider::InvalidEvent> {
                Event::builder("", "1", "Broken").build()
            }
        }
        assert_published!(events, Broken)
    });
    assert!(
        invalid.contains("the expected event is invalid: aggregate_type is empty"),
        "{invalid}"
    );
}
