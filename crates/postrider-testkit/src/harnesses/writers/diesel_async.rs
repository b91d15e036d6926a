//! diesel-async on PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use diesel::sql_query;
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl as _, TransactionManager as _};
use postrider::schema::postgres::Layout;
use postrider::{Claim, Event, Events, Inbox, Outbox, ToEvent, WriteError};
use uuid::Uuid;

use super::inbox::open_inbox;
use super::postgres::{self, END_CONNECTION, Setting};
use crate::suites::Backend;
use crate::suites::inbox::OpenInbox;
use crate::suites::writer::{BoxError, Capabilities, End, Subject, TestClient};

type Manager = <AsyncPgConnection as AsyncConnection>::TransactionManager;

/// diesel-async on PostgreSQL.
pub fn backend() -> Backend<Subject, Capabilities> {
    let setting = Setting {
        open: |url| {
            Box::pin(async move {
                let connection = AsyncPgConnection::establish(&url).await;
                let client = Diesel(connection.expect("the server can be reached"));
                Box::new(client) as Box<dyn TestClient>
            })
        },
        layout: Layout::Plain,
        // It keeps prepared statements, which such a pooler does not.
        is_pooled: false,
        transacts: false,
    };
    postgres::backend("diesel_async", setting)
}

struct Diesel(AsyncPgConnection);

impl Diesel {
    async fn run<T>(&mut self, end: End, work: impl AsyncFnOnce(&mut AsyncPgConnection) -> T) -> T {
        let begun = Manager::begin_transaction(&mut self.0).await;
        begun.expect("a transaction can be begun");
        let result = work(&mut self.0).await;
        let ended = match end {
            End::Commit => Manager::commit_transaction(&mut self.0).await,
            End::Rollback => Manager::rollback_transaction(&mut self.0).await,
        };
        ended.expect("a transaction can be ended");
        result
    }
}

#[async_trait(?Send)]
impl TestClient for Diesel {
    async fn publish(&mut self, event: &Event, end: End) -> Result<Uuid, WriteError> {
        let error = Outbox::new().publish(&mut self.0, event).await;
        let error = error.expect_err("nothing is written outside of a transaction");
        assert!(matches!(error, WriteError::NotInTransaction), "{error:?}");
        self.run(end, async |conn| Outbox::new().publish(conn, event).await).await
    }

    async fn publish_all(
        &mut self,
        events: &[&dyn ToEvent],
        end: End,
    ) -> Result<Vec<Uuid>, WriteError> {
        self.run(end, async |conn| Outbox::new().publish_all(conn, events).await).await
    }

    async fn publish_message(&mut self, event: &dyn ToEvent, end: End) -> Result<Uuid, WriteError> {
        let error = Outbox::new().publish_message(&mut self.0, event).await;
        let error = error.expect_err("nothing is written outside of a transaction");
        let is_refused = matches!(error, WriteError::NotInTransaction | WriteError::Invalid(_));
        assert!(is_refused, "{error:?}");
        self.run(end, async |conn| Outbox::new().publish_message(conn, event).await).await
    }

    async fn publish_nested(&mut self, outer: &Event, inner: &Event, end_inner: End) {
        self.run(End::Commit, async |conn| {
            let written = Outbox::new().publish(conn, outer).await;
            written.expect("the event is written");
            let savepoint = conn.transaction(async |conn| {
                Outbox::new().publish(conn, inner).await?;
                match end_inner {
                    End::Commit => Ok(()),
                    End::Rollback => Err(BoxError::from("rolled back")),
                }
            });
            assert_eq!(savepoint.await.is_ok(), end_inner == End::Commit);
        })
        .await;
    }

    async fn begin(&mut self) -> Box<dyn OpenInbox + '_> {
        assert_outside_is_refused(&mut self.0).await;
        let begun = Manager::begin_transaction(&mut self.0).await;
        begun.expect("a transaction can be begun");
        Box::new(Open(&mut self.0))
    }

    // diesel has a `transaction` of its own.
    async fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError> {
        self.0
            .transaction(async |conn| {
                sql_query("INSERT INTO orders DEFAULT VALUES").execute(conn).await?;
                let events = result?.into_result().map_err(WriteError::from)?;
                Outbox::new().publish_all(conn, events).await?;
                Ok(())
            })
            .await
    }
}

/// Nothing happens outside of a transaction.
async fn assert_outside_is_refused(conn: &mut AsyncPgConnection) {
    let (inbox, id) = (Inbox::new(), Uuid::now_v7());
    let event = Event::builder("Order", "42", "OrderPaid").build().expect("the event is valid");
    let outside = [
        inbox.once(conn, "billing", id).await.map(drop),
        inbox.once_all(conn, "billing", &[id]).await.map(drop),
        inbox.advance(conn, "billing", event.key(), 1).await.map(drop),
        inbox.store(conn, "billing", &event).await.map(drop),
        inbox.bury(conn, "billing", &event, "no stock", 1).await,
        inbox.revive(conn, "billing", None).await.map(drop),
        inbox.prune(conn, "billing", Duration::ZERO, 1).await.map(drop),
    ];
    for refused in outside {
        let error = refused.expect_err("there is no transaction");
        assert!(matches!(error, WriteError::NotInTransaction), "{error:?}");
    }
}

struct Open<'c>(&'c mut AsyncPgConnection);

impl Open<'_> {
    fn tx(&mut self) -> &mut AsyncPgConnection {
        self.0
    }

    async fn execute(&mut self, sql: &str) -> diesel::QueryResult<()> {
        sql_query(sql).execute(self.0).await.map(drop)
    }

    async fn finish(self, end: End) -> diesel::QueryResult<()> {
        match end {
            End::Commit => Manager::commit_transaction(self.0).await,
            End::Rollback => Manager::rollback_transaction(self.0).await,
        }
    }

    async fn lose(&mut self) {
        let ended = self.execute(END_CONNECTION).await;
        ended.expect_err("the connection is lost");
    }
}

open_inbox!(Open<'_>, .await);
