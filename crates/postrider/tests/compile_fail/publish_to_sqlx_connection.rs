use postrider::{Event, Outbox};

async fn publish(conn: &mut sqlx::SqliteConnection, event: &Event) {
    let _ = Outbox::new().publish(conn, event).await;
}

fn main() {}
