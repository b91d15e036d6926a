use postrider::{Event, Outbox};

async fn publish(client: &mut tokio_postgres::Client, event: &Event) {
    let _ = Outbox::new().publish(client, event).await;
}

fn main() {}
