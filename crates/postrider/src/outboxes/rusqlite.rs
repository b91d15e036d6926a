//! The outbox with rusqlite, which blocks.

use rusqlite::{Connection, Savepoint, TransactionBehavior, params};

use super::sqlite::{self, Row, Write};
use crate::error::WriteError;
use crate::event::Event;
use crate::events::Events;
use crate::outbox::{Outbox, Transaction};
use crate::schema::TableName;

impl Transaction for rusqlite::Transaction<'_> {
    type Written<'t, T: Send + 't>
        = Result<T, WriteError>
    where
        Self: 't;

    fn answer<'t, T: Send + 't>(result: Result<T, WriteError>) -> Result<T, WriteError>
    where
        Self: 't,
    {
        result
    }

    fn insert<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        events: Vec<Event>,
        written: T,
    ) -> Result<T, WriteError> {
        match events.as_slice() {
            [event] => insert(self, table, event)?,
            events => insert_all(self.savepoint(), table, events)?,
        }
        Ok(written)
    }
}

// The same again, and not by a macro: the compiler would then show users the macro.
impl Transaction for Savepoint<'_> {
    type Written<'t, T: Send + 't>
        = Result<T, WriteError>
    where
        Self: 't;

    fn answer<'t, T: Send + 't>(result: Result<T, WriteError>) -> Result<T, WriteError>
    where
        Self: 't,
    {
        result
    }

    fn insert<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        events: Vec<Event>,
        written: T,
    ) -> Result<T, WriteError> {
        match events.as_slice() {
            [event] => insert(self, table, event)?,
            events => insert_all(self.savepoint(), table, events)?,
        }
        Ok(written)
    }
}

impl Outbox {
    /// Runs a transaction and publishes the events that the closure returns with its value.
    ///
    /// The transaction takes the write lock at its start (`BEGIN IMMEDIATE`), so it never fails
    /// half way because another writer came first. It commits if the closure returns `Ok` and
    /// the events are written, and is rolled back otherwise.
    ///
    /// ```
    /// # use postrider::{Event, Outbox, events, schema};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut conn = rusqlite::Connection::open_in_memory()?;
    /// # schema::sqlite::migrate(&mut conn, &schema::TableName::default())?;
    /// # conn.execute_batch("CREATE TABLE orders (id TEXT, paid INTEGER)")?;
    /// Outbox::new().transact(&mut conn, |tx| {
    ///     tx.execute("UPDATE orders SET paid = 1 WHERE id = '42'", [])?;
    ///     let paid = Event::builder("Order", "42", "OrderPaid").build()?;
    ///     Ok(((), events![paid]))
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The closure's own error, into which a [`WriteError`] of the outbox is converted.
    pub fn transact<T, E: From<WriteError>>(
        &self,
        conn: &mut Connection,
        work: impl FnOnce(&mut rusqlite::Transaction<'_>) -> Result<(T, Events), E>,
    ) -> Result<T, E> {
        let mut tx = conn
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(database_error)?;
        let (value, events) = work(&mut tx)?;
        self.write(&mut tx, events, |_| ())?;
        tx.commit().map_err(database_error)?;
        Ok(value)
    }
}

/// Writes the events in a savepoint, so that the caller's transaction, if it goes on after an
/// error, has none of them.
fn insert_all(
    savepoint: rusqlite::Result<Savepoint<'_>>,
    table: &TableName,
    events: &[Event],
) -> Result<(), WriteError> {
    let savepoint = savepoint.map_err(database_error)?;
    for event in events {
        insert(&savepoint, table, event)?;
    }
    savepoint.commit().map_err(database_error)
}

fn insert(conn: &Connection, table: &TableName, event: &Event) -> Result<(), WriteError> {
    let write = Write { table: table.as_str(), event_id: Some(event.id()) };
    insert_row(conn, table, &Row::of(event)).map_err(|err| write_error(write, err))
}

fn insert_row(conn: &Connection, table: &TableName, row: &Row<'_>) -> rusqlite::Result<()> {
    conn.prepare_cached(&sqlite::insert_event(table))?.execute(params![
        row.id,
        row.aggregate_type,
        row.aggregate_id,
        row.event_type,
        row.event_version,
        row.payload,
        row.content_type,
        row.headers,
        row.topic,
        row.occurred_at,
        row.created_at,
        row.deliver_after,
    ])?;
    Ok(())
}

pub(crate) fn write_error(write: Write<'_>, err: rusqlite::Error) -> WriteError {
    let code = err.sqlite_error().map(|sqlite| sqlite.extended_code);
    sqlite::write_error(write, code, &err.to_string(), err.into())
}

fn database_error(err: rusqlite::Error) -> WriteError {
    WriteError::Database { source: err.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::sqlite::migrate;

    #[test]
    fn a_table_may_have_an_odd_name() {
        let outbox = Outbox::in_table("it's \"mine\"").unwrap();
        let event = Event::builder("Order", "42", "OrderPaid").build().unwrap();
        let mut conn = Connection::open_in_memory().unwrap();

        let mut tx = conn.transaction().unwrap();
        let error = outbox.publish(&mut tx, &event).unwrap_err();
        assert!(matches!(error, WriteError::NotMigrated { .. }), "{error:?}");
        drop(tx);

        migrate(&mut conn, outbox.table()).unwrap();
        let mut tx = conn.transaction().unwrap();
        assert_eq!(outbox.publish(&mut tx, &event).unwrap(), event.id());
        let error = outbox.publish(&mut tx, &event).unwrap_err();
        assert!(matches!(error, WriteError::Duplicate { .. }), "{error:?}");
    }
}
