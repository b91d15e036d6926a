use postrider::{Outbox, WriteError};

async fn pay(pool: sqlx::SqlitePool) -> Result<(), WriteError> {
    Outbox::new().transact_async(&pool, async |_tx| Ok(())).await
}

fn main() {}
