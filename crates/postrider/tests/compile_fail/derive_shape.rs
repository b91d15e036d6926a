use postrider::Event;
use serde::Serialize;

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = order_id)]
struct NoSuchField {
    id: String,
    cents: u32,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = id)]
struct NoFields;

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = id)]
enum Enum {
    A { id: String },
}

#[derive(Event)]
#[event(aggregate = "Order", id = id)]
union Union {
    id: u8,
}

fn main() {}
