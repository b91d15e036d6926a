//! The inbox with rusqlite.

use std::time::SystemTime;

use rusqlite::{Connection, params};
use uuid::Uuid;

use crate::error::WriteError;
use crate::inbox::{Claim, InboxTransaction};
use crate::outboxes::rusqlite::write_error;
use crate::outboxes::sqlite::{INSERT_CLAIM, Write, claim_of};
use crate::schema::INBOX_TABLE;
use crate::timestamp;

impl InboxTransaction for rusqlite::Transaction<'_> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Result<Claim, WriteError> {
        claim(self, consumer, event_id)
    }
}

impl InboxTransaction for rusqlite::Savepoint<'_> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Result<Claim, WriteError> {
        claim(self, consumer, event_id)
    }
}

fn claim(conn: &Connection, consumer: &str, event_id: Uuid) -> Result<Claim, WriteError> {
    let processed_at = timestamp::to_text(SystemTime::now());
    let inserted = conn
        .prepare_cached(INSERT_CLAIM)
        .and_then(|mut statement| {
            statement.execute(params![consumer, event_id.to_string(), processed_at])
        })
        .map_err(|err| write_error(Write { table: INBOX_TABLE, event_id }, err))?;
    Ok(claim_of(inserted as u64))
}
