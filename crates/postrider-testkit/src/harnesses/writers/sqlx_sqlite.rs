//! sqlx on SQLite, which is awaited.

use async_trait::async_trait;
use postrider::{Claim, Event, Events, Inbox, Outbox, ToEvent, WriteError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Acquire as _, AssertSqlSafe, Sqlite, SqlitePool, Transaction};
use uuid::Uuid;

use super::inbox::open_inbox;
use super::sqlite::{self, BUSY_TIMEOUT};
use crate::suites::Backend;
use crate::suites::inbox::OpenInbox;
use crate::suites::writer::{BoxError, Capabilities, End, Subject, TestClient};

/// sqlx on SQLite.
pub fn backend() -> Backend<Subject, Capabilities> {
    sqlite::backend("sqlx_sqlite", |path| {
        let options = SqliteConnectOptions::new().filename(path).busy_timeout(BUSY_TIMEOUT);
        Box::pin(async {
            let pool = SqlitePool::connect_with(options).await;
            let client = Sqlx(pool.expect("the database can be opened"));
            Box::new(client) as Box<dyn TestClient>
        })
    })
}

struct Sqlx(SqlitePool);

impl Sqlx {
    async fn run<T>(
        &mut self,
        end: End,
        work: impl AsyncFnOnce(&mut Transaction<'static, Sqlite>) -> T,
    ) -> T {
        let mut tx = self.0.begin().await.expect("a transaction can be begun");
        let result = work(&mut tx).await;
        let ended = match end {
            End::Commit => tx.commit().await,
            End::Rollback => tx.rollback().await,
        };
        ended.expect("a transaction can be ended");
        result
    }
}

#[async_trait(?Send)]
impl TestClient for Sqlx {
    async fn publish(&mut self, event: &Event, end: End) -> Result<Uuid, WriteError> {
        self.run(end, async |tx| Outbox::new().publish(tx, event).await).await
    }

    async fn publish_all(
        &mut self,
        events: &[&dyn ToEvent],
        end: End,
    ) -> Result<Vec<Uuid>, WriteError> {
        self.run(end, async |tx| Outbox::new().publish_all(tx, events).await).await
    }

    async fn publish_nested(&mut self, outer: &Event, inner: &Event, end_inner: End) {
        self.run(End::Commit, async |tx| {
            let written = Outbox::new().publish(tx, outer).await;
            written.expect("the event is written");
            let mut savepoint = tx.begin().await.expect("a savepoint can be made");
            let written = Outbox::new().publish(&mut savepoint, inner).await;
            written.expect("the event is written");
            if end_inner == End::Commit {
                savepoint.commit().await.expect("a savepoint can be released");
            }
        })
        .await;
    }

    async fn begin(&mut self) -> Box<dyn OpenInbox + '_> {
        Box::new(Open(Some(self.0.begin().await.expect("a transaction can be begun"))))
    }

    // Spawned, which proves that the future can move between threads.
    async fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError> {
        let pool = self.0.clone();
        let task = tokio::spawn(async move {
            Outbox::new()
                .transact_async(&pool, async |tx| {
                    sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(&mut **tx).await?;
                    Ok(((), result?))
                })
                .await
        });
        task.await.expect("the task does not panic")
    }
}

struct Open(Option<Transaction<'static, Sqlite>>);

impl Open {
    fn tx(&mut self) -> &mut Transaction<'static, Sqlite> {
        self.0.as_mut().expect("it was not lost")
    }

    async fn execute(&mut self, sql: &str) -> sqlx::Result<()> {
        // Safe: it is a statement of a test.
        sqlx::query(AssertSqlSafe(sql)).execute(&mut **self.tx()).await.map(drop)
    }

    async fn finish(mut self, end: End) -> sqlx::Result<()> {
        let tx = self.0.take().expect("it was not lost");
        match end {
            End::Commit => tx.commit().await,
            End::Rollback => tx.rollback().await,
        }
    }

    /// As an application does that is about to end.
    async fn lose(&mut self) {
        drop(self.0.take());
    }
}

open_inbox!(Open, .await);
