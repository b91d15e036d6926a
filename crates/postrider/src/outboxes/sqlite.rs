//! What the clients of SQLite share: the statements, an event as a row, and what errors mean.

use std::error::Error as StdError;
use std::time::SystemTime;

use uuid::Uuid;

use crate::error::WriteError;
use crate::event::Event;
use crate::schema::{INBOX_TABLE, TableName};
use crate::timestamp;

/// A violated UNIQUE constraint (<https://sqlite.org/rescode.html#constraint_unique>).
const SQLITE_CONSTRAINT_UNIQUE: i32 = 2067;

/// Writes one [`Row`], whose fields are the parameters in order.
pub(crate) fn insert_event(table: &TableName) -> String {
    format!(
        "INSERT INTO {} (id, aggregate_type, aggregate_id, event_type, event_version, payload, \
         content_type, headers, topic, occurred_at, created_at, deliver_after) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        table.quoted()
    )
}

/// An event as the table has it.
pub(crate) struct Row<'e> {
    pub(crate) id: String,
    pub(crate) aggregate_type: &'e str,
    pub(crate) aggregate_id: &'e str,
    pub(crate) event_type: &'e str,
    pub(crate) event_version: u32,
    pub(crate) payload: &'e [u8],
    pub(crate) content_type: &'e str,
    pub(crate) headers: String,
    pub(crate) topic: Option<&'e str>,
    pub(crate) occurred_at: String,
    pub(crate) created_at: String,
    pub(crate) deliver_after: Option<String>,
}

impl<'e> Row<'e> {
    pub(crate) fn of(event: &'e Event) -> Self {
        Row {
            id: event.id().to_string(),
            aggregate_type: event.aggregate_type(),
            aggregate_id: event.aggregate_id(),
            event_type: event.event_type(),
            event_version: event.event_version(),
            payload: event.payload(),
            content_type: event.content_type(),
            headers: serde_json::to_string(event.headers()).expect("a map of texts is JSON"),
            topic: event.topic(),
            occurred_at: timestamp::to_text(event.occurred_at()),
            created_at: timestamp::to_text(SystemTime::now()),
            deliver_after: event.deliver_after().map(timestamp::to_text),
        }
    }
}

/// What was being written when the database refused.
#[derive(Clone, Copy)]
pub(crate) struct Write<'w> {
    pub(crate) table: &'w str,
    /// Of which event, if the table has events of which each has an id of its own.
    pub(crate) event_id: Option<Uuid>,
}

/// What an error of SQLite means to the writer: `code` is its extended code, `message` its text.
pub(crate) fn write_error(
    write: Write<'_>,
    code: Option<i32>,
    message: &str,
    source: Box<dyn StdError + Send + Sync>,
) -> WriteError {
    let Write { table, event_id } = write;
    if let Some(id) = event_id
        && code == Some(SQLITE_CONSTRAINT_UNIQUE)
        && message.contains(&format!("{table}.id"))
    {
        return WriteError::Duplicate { id };
    }
    // A call about something else of the inbox looks at claims, too.
    for table in [table, INBOX_TABLE] {
        if message.contains(&format!("no such table: {table}"))
            || message.contains(&format!("table {table} has no column"))
        {
            return WriteError::NotMigrated { table: table.to_owned(), source };
        }
    }
    WriteError::Database { source }
}
