use postrider::Event;
use serde::Serialize;

#[derive(Serialize)]
struct Opaque;

#[derive(Serialize, Event)]
#[event(aggregate = "Order", id = id)]
struct IdCannotBeDisplayed {
    id: Opaque,
}

fn main() {}
