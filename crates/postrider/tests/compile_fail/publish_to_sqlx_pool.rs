use postrider::{Event, Outbox};

async fn publish(mut pool: sqlx::SqlitePool, event: &Event) {
    let _ = Outbox::new().publish(&mut pool, event).await;
}

fn main() {}
