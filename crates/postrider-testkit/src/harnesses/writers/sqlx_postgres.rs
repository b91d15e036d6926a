//! sqlx on PostgreSQL.

use async_trait::async_trait;
use postrider::schema::postgres::Layout;
use postrider::{Claim, Event, Events, Inbox, LostCommit, Outbox, Outcome, ToEvent, WriteError};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Acquire as _, AssertSqlSafe, PgPool, Postgres, Transaction};
use uuid::Uuid;

use super::inbox::open_inbox;
use super::postgres::{self, END_CONNECTION, Setting};
use crate::suites::Backend;
use crate::suites::inbox::OpenInbox;
use crate::suites::writer::{BoxError, Capabilities, End, Subject, TestClient};

const SETTING: Setting = Setting {
    open: |url| {
        Box::pin(async move {
            let pool = PgPoolOptions::new().max_connections(2).connect(&url).await;
            Box::new(Sqlx(pool.expect("the server can be reached"))) as Box<dyn TestClient>
        })
    },
    layout: Layout::Plain,
    is_pooled: false,
    transacts: true,
};

/// sqlx on PostgreSQL.
pub fn backend() -> Backend<Subject, Capabilities> {
    postgres::backend("sqlx_postgres", SETTING)
}

/// Behind pgbouncer in transaction mode.
pub fn pooled() -> Backend<Subject, Capabilities> {
    postgres::backend("sqlx_postgres_pooled", Setting { is_pooled: true, ..SETTING })
}

struct Sqlx(PgPool);

impl Sqlx {
    async fn run<T>(
        &mut self,
        end: End,
        work: impl AsyncFnOnce(&mut Transaction<'static, Postgres>) -> T,
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

    async fn publish_message(&mut self, event: &dyn ToEvent, end: End) -> Result<Uuid, WriteError> {
        self.run(end, async |tx| Outbox::new().publish_message(tx, event).await).await
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
        Box::new(Open(self.0.begin().await.expect("a transaction can be begun")))
    }

    // Spawned, which proves that the future can move between threads.
    async fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError> {
        let pool = self.0.clone();
        let task = tokio::spawn(async move {
            Outbox::new()
                .transact_async(&pool, async |tx| {
                    let order = sqlx::query("INSERT INTO orders DEFAULT VALUES").persistent(false);
                    order.execute(&mut **tx).await?;
                    Ok(((), result?))
                })
                .await
        });
        task.await.expect("the task does not panic")
    }

    async fn was_written(&mut self, commit: &LostCommit) -> Result<Outcome, WriteError> {
        Outbox::new().was_written(&self.0, commit).await
    }
}

struct Open(Transaction<'static, Postgres>);

impl Open {
    fn tx(&mut self) -> &mut Transaction<'static, Postgres> {
        &mut self.0
    }

    async fn execute(&mut self, sql: &str) -> sqlx::Result<()> {
        // Safe: it is a statement of a test.
        let query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
        query.execute(&mut *self.0).await.map(drop)
    }

    async fn finish(self, end: End) -> sqlx::Result<()> {
        match end {
            End::Commit => self.0.commit().await,
            End::Rollback => self.0.rollback().await,
        }
    }

    async fn lose(&mut self) {
        let ended = self.execute(END_CONNECTION).await;
        ended.expect_err("the connection is lost");
    }
}

open_inbox!(Open, .await);
