//! `#[derive(Event)]` as applications use it.

use postrider::{Event, InvalidEvent, ToEvent};
use serde::Serialize;

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = order_id)]
struct OrderPlaced {
    order_id: u64,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = order_id, type = "order.paid")]
#[event(version = 2, topic = "payments")]
struct OrderPaid<'a> {
    order_id: &'a str,
    cents: u32,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Thing", id = id)]
struct Changed<I, T: Clone = String>
where
    T: Default,
{
    id: I,
    to: T,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Envelope", id = id)]
struct Envelope<T> {
    id: String,
    body: T,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Pair", id = 1)]
struct Pair(u8, String);

#[test]
fn the_name_and_version_have_defaults() {
    let event = OrderPlaced { order_id: 42 }.to_event().unwrap();
    assert_eq!(event.key().to_string(), "Order/42");
    assert_eq!(event.event_type(), "OrderPlaced");
    assert_eq!(event.event_version(), 1);
    assert_eq!(event.topic(), None);
    assert_eq!(&event.payload()[..], br#"{"order_id":42}"#);
}

#[test]
fn every_option_is_used() {
    let event = OrderPaid { order_id: "42", cents: 5 }.to_event().unwrap();
    assert_eq!(event.event_type(), "order.paid");
    assert_eq!(event.event_version(), 2);
    assert_eq!(event.topic(), Some("payments"));
    assert_eq!(&event.payload()[..], br#"{"order_id":"42","cents":5}"#);
}

#[test]
fn generic_and_tuple_structs_are_events_too() {
    let changed = Changed { id: 'x', to: 7_u8 }.to_event().unwrap();
    assert_eq!(changed.key().to_string(), "Thing/x");
    let envelope = Envelope { id: "e".to_owned(), body: [1, 2] }.to_event().unwrap();
    assert_eq!(&envelope.payload()[..], br#"{"id":"e","body":[1,2]}"#);
    let pair = Pair(1, "second".to_owned()).to_event().unwrap();
    assert_eq!(pair.aggregate_id(), "second");
}

#[test]
fn a_value_over_its_limit_is_invalid() {
    let error = OrderPaid { order_id: "", cents: 5 }.to_event().unwrap_err();
    assert_eq!(error, InvalidEvent::Empty { field: "aggregate_id" });
}
