use postrider::Event;
use serde::Serialize;

#[derive(Serialize, Event)]
struct NoAttribute {
    id: String,
}

#[derive(Serialize, Event)]
#[event(id = id)]
struct NoAggregate {
    id: String,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Order")]
struct NoId {
    id: String,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = id, typ = "Paid")]
struct UnknownOption {
    id: String,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = id, id = id)]
struct GivenTwice {
    id: String,
}

#[derive(Serialize, Event)]
#[event(aggregate = "", id = id)]
struct EmptyName {
    id: String,
}

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = id, version = 0)]
struct VersionZero {
    id: String,
}

fn main() {}
