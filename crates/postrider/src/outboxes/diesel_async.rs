//! The outbox with diesel-async on PostgreSQL.
//!
//! diesel hands the connection itself to the closure of `conn.transaction(…)`, so the compiler
//! cannot tell whether one is open. It is checked at every call instead, before anything is sent.

use diesel::result::{DatabaseErrorKind, Error};
use diesel::sql_query;
use diesel::sql_types::{Array, BigInt, Binary, Nullable, Text, Uuid as SqlUuid};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, TransactionManager};
use uuid::Uuid;

use super::postgres::{self, Refusal, Row, Rows};
use crate::error::WriteError;
use crate::event::Event;
use crate::outbox::{Answer, LogTransaction, Transaction};
use crate::schema::TableName;

/// Inside `conn.transaction(async |conn| …)`; elsewhere every call answers
/// [`WriteError::NotInTransaction`]. Of a connection from a pool pass what it wraps:
/// `&mut **conn`.
impl Transaction for AsyncPgConnection {
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
            check_in_transaction(self)?;
            for events in postgres::statements(&events) {
                insert(self, table, events).await?;
            }
            Ok(written)
        })
    }
}

/// As for [`Transaction`].
impl LogTransaction for AsyncPgConnection {
    fn emit<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        event: Event,
        written: T,
    ) -> Self::Written<'t, T> {
        Box::pin(async move {
            check_in_transaction(self)?;
            let emitted = write_row(self, postgres::publish_message(table), Row::of(&event)).await;
            emitted.map_err(|err| write_error(table.as_str(), &[event.id()], err))?;
            Ok(written)
        })
    }
}

pub(crate) fn check_in_transaction(conn: &mut AsyncPgConnection) -> Result<(), WriteError> {
    type Manager = <AsyncPgConnection as AsyncConnection>::TransactionManager;
    let depth = Manager::transaction_manager_status_mut(conn).transaction_depth();
    match depth.map_err(|err| WriteError::Database { source: err.into() })? {
        Some(_) => Ok(()),
        None => Err(WriteError::NotInTransaction),
    }
}

/// Writes events in one statement.
async fn insert(
    conn: &mut AsyncPgConnection,
    table: &TableName,
    events: &[Event],
) -> Result<(), WriteError> {
    let inserted = match events {
        [event] => write_row(conn, postgres::insert_event(table), Row::of(event)).await,
        events => insert_rows(conn, table, Rows::of(events)).await,
    };
    inserted.map_err(|err| {
        let event_ids: Vec<Uuid> = events.iter().map(Event::id).collect();
        write_error(table.as_str(), &event_ids, err)
    })
}

async fn write_row(conn: &mut AsyncPgConnection, sql: String, row: Row<'_>) -> Result<(), Error> {
    sql_query(sql)
        .bind::<SqlUuid, _>(row.id)
        .bind::<Text, _>(row.aggregate_type)
        .bind::<Text, _>(row.aggregate_id)
        .bind::<Text, _>(row.event_type)
        .bind::<BigInt, _>(row.event_version)
        .bind::<Binary, _>(row.payload)
        .bind::<Text, _>(row.content_type)
        .bind::<Text, _>(row.headers)
        .bind::<Nullable<Text>, _>(row.topic)
        .bind::<Text, _>(row.occurred_at)
        .bind::<Nullable<Text>, _>(row.deliver_after)
        .execute(conn)
        .await?;
    Ok(())
}

async fn insert_rows(
    conn: &mut AsyncPgConnection,
    table: &TableName,
    rows: Rows<'_>,
) -> Result<(), Error> {
    sql_query(postgres::insert_events(table))
        .bind::<Array<SqlUuid>, _>(rows.id)
        .bind::<Array<Text>, _>(rows.aggregate_type)
        .bind::<Array<Text>, _>(rows.aggregate_id)
        .bind::<Array<Text>, _>(rows.event_type)
        .bind::<Array<BigInt>, _>(rows.event_version)
        .bind::<Array<Binary>, _>(rows.payload)
        .bind::<Array<Text>, _>(rows.content_type)
        .bind::<Array<Text>, _>(rows.headers)
        .bind::<Array<Nullable<Text>>, _>(rows.topic)
        .bind::<Array<Text>, _>(rows.occurred_at)
        .bind::<Array<Nullable<Text>>, _>(rows.deliver_after)
        .execute(conn)
        .await?;
    Ok(())
}

/// diesel keeps of the server's error codes only the kind, so what has no kind is told by the
/// message.
pub(crate) fn write_error(table: &str, event_ids: &[Uuid], err: Error) -> WriteError {
    use DatabaseErrorKind::{
        CheckViolation, ClosedConnection, ExclusionViolation, ForeignKeyViolation,
        NotNullViolation, ReadOnlyTransaction, RestrictViolation, SerializationFailure,
        UnableToSendCommand, UniqueViolation,
    };
    let (kind, said) = match &err {
        // The server said nothing.
        Error::DatabaseError(ClosedConnection | UnableToSendCommand, _) => {
            return WriteError::Database { source: err.into() };
        }
        Error::DatabaseError(kind, said) => (kind, said),
        _ => return WriteError::Database { source: err.into() },
    };
    let is_named = said.message().contains(&format!("relation \"{table}\""))
        || said.message().starts_with("function ");
    let is_undefined = is_named && said.message().ends_with("does not exist");
    let code = match kind {
        CheckViolation => "23514",
        ExclusionViolation => "23P01",
        ForeignKeyViolation => "23503",
        NotNullViolation => "23502",
        ReadOnlyTransaction => "25006",
        RestrictViolation => "23001",
        SerializationFailure => "40001",
        UniqueViolation => postgres::UNIQUE_VIOLATION,
        _ if is_undefined => postgres::UNDEFINED[0],
        _ => "",
    };
    let refusal = Refusal {
        code: code.to_owned(),
        message: said.message().to_owned(),
        constraint: said.constraint_name().map(str::to_owned),
        table: said.table_name().map(str::to_owned),
        detail: said.details().map(str::to_owned),
    };
    postgres::write_error(table, event_ids, refusal, err)
}
