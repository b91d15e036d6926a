use postrider::{Event, Outbox};

fn publish(conn: &mut rusqlite::Connection, event: &Event) {
    let _ = Outbox::new().publish(conn, event);
}

fn main() {}
