use postrider::{Event, Outbox};

fn publish(tx: &mut rusqlite::Transaction<'_>, event: &Event) {
    let _ = Outbox::new().publish_message(tx, event);
}

fn main() {}
