//! The outbox with sqlx on PostgreSQL. No statement is kept prepared, so that it works behind a
//! pooler which gives each transaction another connection.

use std::error::Error as StdError;

use sqlx::postgres::{PgArguments, PgDatabaseError, PgSeverity};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Error, PgConnection, PgPool, Postgres};
use uuid::Uuid;

use super::postgres::{self, Refusal, Row, Rows};
use crate::commit::{AskOutcome, LostCommit, Outcome};
use crate::error::{ServerError, WriteError};
use crate::event::Event;
use crate::outbox::{Answer, Begin, LogTransaction, Transaction};
use crate::schema::TableName;

impl Transaction for sqlx::Transaction<'_, Postgres> {
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
            for events in postgres::statements(&events) {
                insert(self, table, events, "").await?;
            }
            Ok(written)
        })
    }
}

impl LogTransaction for sqlx::Transaction<'_, Postgres> {
    fn emit<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        event: Event,
        written: T,
    ) -> Self::Written<'t, T> {
        Box::pin(async move {
            // Safe: the only variable part of the statement is a quoted name.
            let sql = AssertSqlSafe(postgres::publish_message(table));
            let query = bind_row(sqlx::query(sql), Row::of(&event)).persistent(false);
            let emitted = query.execute(&mut **self).await;
            emitted.map_err(|err| write_error(table.as_str(), &[event.id()], err))?;
            Ok(written)
        })
    }
}

impl Begin for &PgPool {
    type Tx<'t> = sqlx::Transaction<'t, Postgres>;

    fn begin<'t>(self) -> Answer<'t, Self::Tx<'t>>
    where
        Self: 't,
    {
        Box::pin(async move { PgPool::begin(self).await.map_err(database_error) })
    }

    fn finish<'t>(
        mut tx: Self::Tx<'t>,
        table: &'t TableName,
        events: Vec<Event>,
    ) -> Answer<'t, ()> {
        Box::pin(async move {
            let mut transaction = None;
            for events in postgres::statements(&events) {
                transaction =
                    insert(&mut tx, table, events, postgres::RETURNING_TRANSACTION).await?;
            }
            if events.is_empty() {
                let number = sqlx::query_scalar(postgres::TRANSACTION).persistent(false);
                transaction = number.fetch_one(&mut *tx).await.map_err(database_error)?;
            }
            tx.commit().await.map_err(|err| {
                let event_ids = events.iter().map(Event::id).collect();
                let transaction = transaction.and_then(|number| number.parse().ok());
                commit_error(LostCommit::new(event_ids, transaction), err)
            })
        })
    }
}

impl AskOutcome for PgPool {
    async fn outcome(&self, table: &TableName, commit: &LostCommit) -> Result<Outcome, WriteError> {
        let mut found = ask_outcome(self, postgres::select_outcome(table), commit).await;
        if let Err(Error::Database(said)) = &found
            && said.code().as_deref() == Some(postgres::UNDEFINED_FUNCTION)
        {
            found = ask_outcome(self, postgres::select_outcome_by_table(table), commit).await;
        }
        let (found, status) =
            found.map_err(|err| write_error(table.as_str(), commit.event_ids(), err))?;
        Ok(postgres::outcome_of(commit, found, status.as_deref()))
    }
}

async fn ask_outcome(
    pool: &PgPool,
    sql: String,
    commit: &LostCommit,
) -> Result<(bool, Option<String>), Error> {
    // Safe: the only variable part of the statement is a quoted name.
    sqlx::query_as(AssertSqlSafe(sql))
        .persistent(false)
        .bind(commit.event_ids())
        .bind(commit.transaction().map(|number| number.to_string()))
        .fetch_one(pool)
        .await
}

/// Writes events in one statement; gives back what `returning` asks for.
async fn insert(
    conn: &mut PgConnection,
    table: &TableName,
    events: &[Event],
    returning: &str,
) -> Result<Option<String>, WriteError> {
    // Safe: the only variable part of the statement is a quoted table name.
    let query = match events {
        [event] => {
            let sql = postgres::insert_event(table) + returning;
            bind_row(sqlx::query(AssertSqlSafe(sql)), Row::of(event))
        }
        events => {
            let sql = postgres::insert_events(table) + returning;
            bind_rows(sqlx::query(AssertSqlSafe(sql)), Rows::of(events))
        }
    };
    let returned = query.persistent(false).fetch_all(conn).await;
    let rows = returned.map_err(|err| {
        let event_ids: Vec<Uuid> = events.iter().map(Event::id).collect();
        write_error(table.as_str(), &event_ids, err)
    })?;
    let number = rows.first().map(|row| sqlx::Row::try_get(row, 0)).transpose();
    number.map_err(database_error)
}

type Insert<'q> = Query<'q, Postgres, PgArguments>;

fn bind_row<'q>(query: Insert<'q>, row: Row<'q>) -> Insert<'q> {
    query
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
        .bind(row.deliver_after)
}

fn bind_rows<'q>(query: Insert<'q>, rows: Rows<'q>) -> Insert<'q> {
    query
        .bind(rows.id)
        .bind(rows.aggregate_type)
        .bind(rows.aggregate_id)
        .bind(rows.event_type)
        .bind(rows.event_version)
        .bind(rows.payload)
        .bind(rows.content_type)
        .bind(rows.headers)
        .bind(rows.topic)
        .bind(rows.occurred_at)
        .bind(rows.deliver_after)
}

pub(crate) fn write_error(table: &str, event_ids: &[Uuid], err: Error) -> WriteError {
    match said_by_server(&err).map(refusal) {
        Some(said) => postgres::write_error(table, event_ids, said, err),
        None => database_error(err),
    }
}

/// Whether the transaction was committed is known only if the server said no.
fn commit_error(commit: LostCommit, err: Error) -> WriteError {
    match said_by_server(&err).map(PgDatabaseError::severity) {
        Some(PgSeverity::Error) => database_error(err),
        _ => WriteError::Unknown { commit, source: source(err) },
    }
}

fn said_by_server(err: &Error) -> Option<&PgDatabaseError> {
    err.as_database_error().and_then(|database| database.try_downcast_ref())
}

fn database_error(err: Error) -> WriteError {
    WriteError::Database { source: source(err) }
}

/// The error without what may quote rows.
fn source(err: Error) -> Box<dyn StdError + Send + Sync> {
    match said_by_server(&err).map(refusal) {
        Some(said) => ServerError::new(said, err).into(),
        None => err.into(),
    }
}

fn refusal(said: &PgDatabaseError) -> Refusal {
    Refusal {
        code: said.code().to_owned(),
        message: said.message().to_owned(),
        constraint: said.constraint().map(str::to_owned),
        table: said.table().map(str::to_owned),
        detail: said.detail().map(str::to_owned),
    }
}
