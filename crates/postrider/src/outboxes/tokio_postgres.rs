//! The outbox with tokio-postgres. Every statement is unnamed, so that it works behind a pooler
//! which gives each transaction another connection.

use std::error::Error as StdError;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error};
use uuid::Uuid;

use super::postgres::{self, Refusal, Row, Rows};
use crate::commit::{AskOutcome, LostCommit, Outcome};
use crate::error::{ServerError, WriteError};
use crate::event::Event;
use crate::outbox::{Answer, Begin, LogTransaction, Transaction};
use crate::schema::TableName;

impl Transaction for tokio_postgres::Transaction<'_> {
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

impl LogTransaction for tokio_postgres::Transaction<'_> {
    fn emit<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        event: Event,
        written: T,
    ) -> Self::Written<'t, T> {
        Box::pin(async move {
            let sql = postgres::publish_message(table);
            let emitted = write_row(self, sql, &Row::of(&event)).await;
            emitted.map_err(|err| write_error(table.as_str(), &[event.id()], err))?;
            Ok(written)
        })
    }
}

impl Begin for &mut Client {
    type Tx<'t> = tokio_postgres::Transaction<'t>;

    fn begin<'t>(self) -> Answer<'t, Self::Tx<'t>>
    where
        Self: 't,
    {
        Box::pin(async move { self.transaction().await.map_err(database_error) })
    }

    fn finish<'t>(tx: Self::Tx<'t>, table: &'t TableName, events: Vec<Event>) -> Answer<'t, ()> {
        Box::pin(async move {
            let mut transaction = None;
            for events in postgres::statements(&events) {
                transaction = insert(&tx, table, events, postgres::RETURNING_TRANSACTION).await?;
            }
            if events.is_empty() {
                let row = tx.query_typed_one(postgres::TRANSACTION, &[]).await;
                transaction = row.map_err(database_error)?.get(0);
            }
            tx.commit().await.map_err(|err| {
                let event_ids = events.iter().map(Event::id).collect();
                let transaction = transaction.and_then(|number| number.parse().ok());
                commit_error(LostCommit::new(event_ids, transaction), err)
            })
        })
    }
}

impl AskOutcome for Client {
    async fn outcome(&self, table: &TableName, commit: &LostCommit) -> Result<Outcome, WriteError> {
        let transaction = commit.transaction().map(|number| number.to_string());
        let params: [(&(dyn ToSql + Sync), Type); 2] =
            [(&commit.event_ids(), Type::UUID_ARRAY), (&transaction, Type::TEXT)];
        let mut row = self.query_typed_one(&postgres::select_outcome(table), &params).await;
        let code = row.as_ref().err().and_then(Error::code).map(SqlState::code);
        if code == Some(postgres::UNDEFINED_FUNCTION) {
            let by_table = postgres::select_outcome_by_table(table);
            row = self.query_typed_one(&by_table, &params).await;
        }
        let row = row.map_err(|err| write_error(table.as_str(), commit.event_ids(), err))?;
        Ok(postgres::outcome_of(commit, row.get(0), row.get(1)))
    }
}

/// Writes events in one statement; gives back what `returning` asks for.
async fn insert(
    tx: &tokio_postgres::Transaction<'_>,
    table: &TableName,
    events: &[Event],
    returning: &str,
) -> Result<Option<String>, WriteError> {
    let inserted = match events {
        [event] => write_row(tx, postgres::insert_event(table) + returning, &Row::of(event)).await,
        events => {
            insert_rows(tx, postgres::insert_events(table) + returning, &Rows::of(events)).await
        }
    };
    inserted.map_err(|err| {
        let event_ids: Vec<Uuid> = events.iter().map(Event::id).collect();
        write_error(table.as_str(), &event_ids, err)
    })
}

async fn write_row(
    tx: &tokio_postgres::Transaction<'_>,
    sql: String,
    row: &Row<'_>,
) -> Result<Option<String>, Error> {
    let params: [(&(dyn ToSql + Sync), Type); 11] = [
        (&row.id, Type::UUID),
        (&row.aggregate_type, Type::TEXT),
        (&row.aggregate_id, Type::TEXT),
        (&row.event_type, Type::TEXT),
        (&row.event_version, Type::INT8),
        (&row.payload, Type::BYTEA),
        (&row.content_type, Type::TEXT),
        (&row.headers, Type::TEXT),
        (&row.topic, Type::TEXT),
        (&row.occurred_at, Type::TEXT),
        (&row.deliver_after, Type::TEXT),
    ];
    let rows = tx.query_typed(&sql, &params).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

async fn insert_rows(
    tx: &tokio_postgres::Transaction<'_>,
    sql: String,
    rows: &Rows<'_>,
) -> Result<Option<String>, Error> {
    let params: [(&(dyn ToSql + Sync), Type); 11] = [
        (&rows.id, Type::UUID_ARRAY),
        (&rows.aggregate_type, Type::TEXT_ARRAY),
        (&rows.aggregate_id, Type::TEXT_ARRAY),
        (&rows.event_type, Type::TEXT_ARRAY),
        (&rows.event_version, Type::INT8_ARRAY),
        (&rows.payload, Type::BYTEA_ARRAY),
        (&rows.content_type, Type::TEXT_ARRAY),
        (&rows.headers, Type::TEXT_ARRAY),
        (&rows.topic, Type::TEXT_ARRAY),
        (&rows.occurred_at, Type::TEXT_ARRAY),
        (&rows.deliver_after, Type::TEXT_ARRAY),
    ];
    let rows = tx.query_typed(&sql, &params).await?;
    Ok(rows.first().map(|row| row.get(0)))
}

pub(crate) fn write_error(table: &str, event_ids: &[Uuid], err: Error) -> WriteError {
    match err.as_db_error().map(refusal) {
        Some(said) => postgres::write_error(table, event_ids, said, err),
        None => database_error(err),
    }
}

/// Whether the transaction was committed is known only if the server said no.
fn commit_error(commit: LostCommit, err: Error) -> WriteError {
    let severity = err.as_db_error().map(DbError::parsed_severity);
    match severity {
        Some(Some(Severity::Error)) => database_error(err),
        _ => WriteError::Unknown { commit, source: source(err) },
    }
}

fn database_error(err: Error) -> WriteError {
    WriteError::Database { source: source(err) }
}

/// The error without what may quote rows.
fn source(err: Error) -> Box<dyn StdError + Send + Sync> {
    match err.as_db_error().map(refusal) {
        Some(said) => ServerError::new(said, err).into(),
        None => err.into(),
    }
}

fn refusal(said: &DbError) -> Refusal {
    Refusal {
        code: said.code().code().to_owned(),
        message: said.message().to_owned(),
        constraint: said.constraint().map(str::to_owned),
        table: said.table().map(str::to_owned),
        detail: said.detail().map(str::to_owned),
    }
}
