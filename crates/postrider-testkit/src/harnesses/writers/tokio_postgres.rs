//! tokio-postgres.

use async_trait::async_trait;
use postrider::schema::postgres::{Layout, PartitionWidth};
use postrider::{Claim, Event, Events, Inbox, LostCommit, Outbox, Outcome, ToEvent, WriteError};
use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

use super::inbox::open_inbox;
use super::postgres::{self, END_CONNECTION, Setting};
use crate::servers;
use crate::suites::Backend;
use crate::suites::inbox::OpenInbox;
use crate::suites::writer::{BoxError, Capabilities, End, Subject, TestClient};

const SETTING: Setting = Setting {
    open: |url| {
        Box::pin(async move {
            let client = servers::postgres::connect(&url).await;
            Box::new(TokioPostgres(client)) as Box<dyn TestClient>
        })
    },
    layout: Layout::Plain,
    is_pooled: false,
    transacts: true,
};

/// tokio-postgres.
pub fn backend() -> Backend<Subject, Capabilities> {
    postgres::backend("tokio_postgres", SETTING)
}

/// Behind pgbouncer in transaction mode.
pub fn pooled() -> Backend<Subject, Capabilities> {
    postgres::backend("tokio_postgres_pooled", Setting { is_pooled: true, ..SETTING })
}

/// On an outbox in partitions.
pub fn partitioned() -> Backend<Subject, Capabilities> {
    let layout = Layout::Partitioned { width: PartitionWidth::DAY };
    postgres::backend("tokio_postgres_partitioned", Setting { layout, ..SETTING })
}

struct TokioPostgres(Client);

impl TokioPostgres {
    async fn run<T>(&mut self, end: End, work: impl AsyncFnOnce(&mut Transaction<'_>) -> T) -> T {
        let mut tx = self.0.transaction().await.expect("a transaction can be begun");
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
impl TestClient for TokioPostgres {
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
            let mut savepoint = tx.transaction().await.expect("a savepoint can be made");
            let written = Outbox::new().publish(&mut savepoint, inner).await;
            written.expect("the event is written");
            if end_inner == End::Commit {
                savepoint.commit().await.expect("a savepoint can be released");
            }
        })
        .await;
    }

    async fn begin(&mut self) -> Box<dyn OpenInbox + '_> {
        let tx = self.0.transaction().await.expect("a transaction can be begun");
        Box::new(Open(tx))
    }

    async fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError> {
        // The future can move between threads.
        fn sendable<F: Future + Send>(future: F) -> F {
            future
        }
        sendable(Outbox::new().transact_async(&mut self.0, async |tx| {
            tx.execute_typed("INSERT INTO orders DEFAULT VALUES", &[]).await?;
            Ok(((), result?))
        }))
        .await
    }

    async fn was_written(&mut self, commit: &LostCommit) -> Result<Outcome, WriteError> {
        Outbox::new().was_written(&self.0, commit).await
    }
}

struct Open<'c>(Transaction<'c>);

impl<'c> Open<'c> {
    fn tx(&mut self) -> &mut Transaction<'c> {
        &mut self.0
    }

    async fn execute(&mut self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.0.execute_typed(sql, &[]).await.map(drop)
    }

    async fn finish(self, end: End) -> Result<(), tokio_postgres::Error> {
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

open_inbox!(Open<'_>, .await);
