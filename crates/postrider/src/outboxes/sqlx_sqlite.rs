//! The outbox with sqlx on SQLite, which is awaited.

use sqlx::{Acquire, AssertSqlSafe, Sqlite, SqliteConnection, SqlitePool};

use super::sqlite::{self, Row, Write};
use crate::error::WriteError;
use crate::event::Event;
use crate::outbox::{Answer, Begin, Transaction};
use crate::schema::TableName;

impl Transaction for sqlx::Transaction<'_, Sqlite> {
    type Written<'t, T: Send + 't>
        = Answer<'t, T>
    where
        Self: 't;

    fn answer<'t, T: Send + 't>(result: Result<T, WriteError>) -> Self::Written<'t, T>
    where
        Self: 't,
    {
        Box::pin(std::future::ready(result))
    }

    fn insert<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        events: Vec<Event>,
        written: T,
    ) -> Self::Written<'t, T> {
        Box::pin(async move {
            match events.as_slice() {
                [event] => insert(self, table, event).await?,
                events => insert_all(self, table, events).await?,
            }
            Ok(written)
        })
    }
}

impl Begin for &SqlitePool {
    type Tx<'t> = sqlx::Transaction<'t, Sqlite>;

    fn begin<'t>(self) -> Answer<'t, Self::Tx<'t>>
    where
        Self: 't,
    {
        Box::pin(async move { self.begin_with("BEGIN IMMEDIATE").await.map_err(database_error) })
    }

    fn finish<'t>(
        mut tx: Self::Tx<'t>,
        table: &'t TableName,
        events: Vec<Event>,
    ) -> Answer<'t, ()> {
        Box::pin(async move {
            if !events.is_empty() {
                tx.insert(table, events, ()).await?;
            }
            tx.commit().await.map_err(database_error)
        })
    }
}

/// Writes the events in a savepoint, so that the caller's transaction, if it goes on after an
/// error, has none of them.
async fn insert_all(
    tx: &mut sqlx::Transaction<'_, Sqlite>,
    table: &TableName,
    events: &[Event],
) -> Result<(), WriteError> {
    let mut savepoint = tx.begin().await.map_err(database_error)?;
    for event in events {
        insert(&mut savepoint, table, event).await?;
    }
    savepoint.commit().await.map_err(database_error)
}

async fn insert(
    conn: &mut SqliteConnection,
    table: &TableName,
    event: &Event,
) -> Result<(), WriteError> {
    let write = Write { table: table.as_str(), event_id: Some(event.id()) };
    insert_row(conn, table, Row::of(event)).await.map_err(|err| write_error(write, err))
}

async fn insert_row(
    conn: &mut SqliteConnection,
    table: &TableName,
    row: Row<'_>,
) -> sqlx::Result<()> {
    // Safe: the only variable part of the statement is a quoted table name.
    sqlx::query(AssertSqlSafe(sqlite::insert_event(table)))
        .bind(row.id)
        .bind(row.aggregate_type)
        .bind(row.aggregate_id)
        .bind(row.event_type)
        .bind(row.event_version)
        .bind(row.payload)
        .bind(row.content_type)
        .bind(row.headers)
        .bind(row.topic)
        .bind(row.occurred_at)
        .bind(row.created_at)
        .bind(row.deliver_after)
        .execute(conn)
        .await?;
    Ok(())
}

pub(crate) fn write_error(write: Write<'_>, err: sqlx::Error) -> WriteError {
    let Some(database) = err.as_database_error() else {
        return database_error(err);
    };
    let code = database.code().and_then(|code| code.parse().ok());
    let message = database.message().to_owned();
    sqlite::write_error(write, code, &message, err.into())
}

fn database_error(err: sqlx::Error) -> WriteError {
    WriteError::Database { source: err.into() }
}
