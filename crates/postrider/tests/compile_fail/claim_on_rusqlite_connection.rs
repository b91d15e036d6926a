use postrider::Inbox;

fn claim(conn: &mut rusqlite::Connection, event_id: uuid::Uuid) {
    let _ = Inbox::new().once(conn, "billing", event_id);
}

fn main() {}
