//! sqlx as a client under test.

use std::path::Path;

use postrider::{Claim, Event, Events, Inbox, Outbox, ToEvent, WriteError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Acquire, Sqlite, SqlitePool, Transaction};
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::{BoxError, Client, End};

pub(crate) struct Sqlx {
    runtime: Runtime,
    pool: SqlitePool,
}

impl Sqlx {
    fn run<T>(
        &mut self,
        end: End,
        work: impl AsyncFnOnce(&mut Transaction<'static, Sqlite>) -> T,
    ) -> T {
        self.runtime.block_on(async {
            let mut tx = self.pool.begin().await.unwrap();
            let result = work(&mut tx).await;
            match end {
                End::Commit => tx.commit().await.unwrap(),
                End::Rollback => tx.rollback().await.unwrap(),
            }
            result
        })
    }
}

impl Client for Sqlx {
    fn open(path: &Path) -> Self {
        let runtime = Runtime::new().unwrap();
        let options = SqliteConnectOptions::new().filename(path);
        let pool = runtime.block_on(SqlitePool::connect_with(options)).unwrap();
        Self { runtime, pool }
    }

    fn publish(&mut self, event: &Event, end: End) -> Result<Uuid, WriteError> {
        self.run(end, async |tx| Outbox::new().publish(tx, event).await)
    }

    fn publish_all<E: ToEvent>(&mut self, events: &[E], end: End) -> Result<Vec<Uuid>, WriteError> {
        self.run(end, async |tx| Outbox::new().publish_all(tx, events).await)
    }

    fn publish_nested(&mut self, outer: &Event, inner: &Event, end_inner: End) {
        self.run(End::Commit, async |tx| {
            Outbox::new().publish(tx, outer).await.unwrap();
            let mut savepoint = tx.begin().await.unwrap();
            Outbox::new().publish(&mut savepoint, inner).await.unwrap();
            if end_inner == End::Commit {
                savepoint.commit().await.unwrap();
            }
        });
    }

    fn once(&mut self, consumer: &str, event_id: Uuid, end: End) -> Result<Claim, WriteError> {
        self.run(end, async |tx| {
            Inbox::new().once(tx, consumer, event_id).await
        })
    }

    // Spawned, which proves that the future can move between threads.
    fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError> {
        let pool = self.pool.clone();
        let task = self.runtime.spawn(async move {
            Outbox::new()
                .transact_async(&pool, async |tx| {
                    sqlx::query("INSERT INTO orders DEFAULT VALUES")
                        .execute(&mut **tx)
                        .await?;
                    Ok(((), result?))
                })
                .await
        });
        self.runtime.block_on(task).unwrap()
    }
}
