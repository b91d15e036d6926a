//! Events that are known by a number, which is all that a case wants to say about them.

use postrider::{Event, EventBuilder, Key};
use postrider_relay::source::Record;
use uuid::Uuid;

/// The first half of every id: version 7, at a time of no meaning.
const ID_PREFIX: u64 = 0x0190_0000_0000_7000;
/// The variant of RFC 9562.
const ID_VARIANT: u64 = 0b10 << 62;
/// The aggregate type of every event.
pub const AGGREGATE_TYPE: &str = "Order";

/// Starts the event of this number.
pub fn building(key: &str, number: u32) -> EventBuilder {
    Event::builder(AGGREGATE_TYPE, key, format!("Event{number}")).id(id(number)).json(&number)
}

/// The event of this number.
pub fn event(key: &str, number: u32) -> Event {
    building(key, number).build().expect("a numbered event is valid")
}

/// Events of one key.
pub fn events(key: &str, numbers: impl IntoIterator<Item = u32>) -> Vec<Event> {
    numbers.into_iter().map(|number| event(key, number)).collect()
}

/// Events spread over keys in turn.
pub fn spread(keys: u32, numbers: impl IntoIterator<Item = u32>) -> Vec<Event> {
    let spread = |number| event(&key_of(number, keys), number);
    numbers.into_iter().map(spread).collect()
}

/// The key that [`spread`] gives to a number.
pub fn key_of(number: u32, keys: u32) -> String {
    format!("k{}", number % keys)
}

/// The key of that aggregate id.
pub fn key(aggregate_id: &str) -> Key {
    Key { aggregate_type: AGGREGATE_TYPE.to_owned(), aggregate_id: aggregate_id.to_owned() }
}

/// The id of the event of this number.
pub fn id(number: u32) -> Uuid {
    Uuid::from_u64_pair(ID_PREFIX, ID_VARIANT | u64::from(number))
}

/// The number of the event of this id.
pub fn number(id: Uuid) -> u32 {
    let (prefix, rest) = id.as_u64_pair();
    assert_eq!(prefix, ID_PREFIX, "{id} is not the id of a numbered event");
    u32::try_from(rest & !ID_VARIANT).expect("numbers have 32 bits")
}

/// The numbers of records, none of which may be undecodable.
pub fn numbers<'r>(records: impl IntoIterator<Item = &'r Record>) -> Vec<u32> {
    let number_of = |record: &Record| match &record.event {
        Ok(event) => number(event.id()),
        Err(bad) => panic!("a row cannot be decoded: {}", bad.reason),
    };
    records.into_iter().map(number_of).collect()
}
