//! The inbox with rusqlite.

use std::time::Duration;

use rusqlite::{Connection, Savepoint, params};
use uuid::Uuid;

use super::answers::{claim_if, claims_of, sequence_of, version_of};
use super::sqlite::{
    BURY, DELETE_DEAD_CLAIMS, INSERT_CLAIM, INSERT_CLAIMS, INSERT_VERSION, PRUNE, REVIVE,
    SELECT_VERSION, STORE, UPDATE_VERSION, ago, as_json, now,
};
use crate::error::WriteError;
use crate::event::{Event, Key};
use crate::inbox::{Claim, InboxTransaction, Sequence};
use crate::outboxes::rusqlite::write_error;
use crate::outboxes::sqlite::{Row, Write};
use crate::schema::{INBOX_MESSAGES_TABLE, INBOX_TABLE, INBOX_VERSIONS_TABLE};

impl InboxTransaction for rusqlite::Transaction<'_> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Result<Claim, WriteError> {
        claim(self, consumer, event_id)
    }

    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Result<Vec<Claim>, WriteError> {
        claim_all(self, consumer, event_ids)
    }

    fn advance<'t>(
        &'t mut self,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Result<Sequence, WriteError> {
        advance(self, consumer, key, version).map_err(in_table(INBOX_VERSIONS_TABLE))
    }

    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Result<Claim, WriteError> {
        store(self, consumer, event)
    }

    fn bury<'t>(
        &'t mut self,
        consumer: &'t str,
        event: &'t Event,
        error: &'t str,
        attempts: u32,
    ) -> Result<(), WriteError> {
        bury(self.savepoint(), consumer, event, error, attempts)
            .map_err(in_table(INBOX_MESSAGES_TABLE))
    }

    fn revive<'t>(
        &'t mut self,
        consumer: &'t str,
        event_id: Option<Uuid>,
    ) -> Result<u64, WriteError> {
        revive(self.savepoint(), consumer, event_id).map_err(in_table(INBOX_MESSAGES_TABLE))
    }

    fn prune(
        &mut self,
        consumer: &str,
        older_than: Duration,
        limit: u32,
    ) -> Result<u64, WriteError> {
        prune(self, consumer, older_than, limit)
    }
}

// The same again, and not by a macro: the compiler would then show users the macro.
impl InboxTransaction for Savepoint<'_> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Result<Claim, WriteError> {
        claim(self, consumer, event_id)
    }

    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Result<Vec<Claim>, WriteError> {
        claim_all(self, consumer, event_ids)
    }

    fn advance<'t>(
        &'t mut self,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Result<Sequence, WriteError> {
        advance(self, consumer, key, version).map_err(in_table(INBOX_VERSIONS_TABLE))
    }

    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Result<Claim, WriteError> {
        store(self, consumer, event)
    }

    fn bury<'t>(
        &'t mut self,
        consumer: &'t str,
        event: &'t Event,
        error: &'t str,
        attempts: u32,
    ) -> Result<(), WriteError> {
        bury(self.savepoint(), consumer, event, error, attempts)
            .map_err(in_table(INBOX_MESSAGES_TABLE))
    }

    fn revive<'t>(
        &'t mut self,
        consumer: &'t str,
        event_id: Option<Uuid>,
    ) -> Result<u64, WriteError> {
        revive(self.savepoint(), consumer, event_id).map_err(in_table(INBOX_MESSAGES_TABLE))
    }

    fn prune(
        &mut self,
        consumer: &str,
        older_than: Duration,
        limit: u32,
    ) -> Result<u64, WriteError> {
        prune(self, consumer, older_than, limit)
    }
}

fn claim(conn: &Connection, consumer: &str, event_id: Uuid) -> Result<Claim, WriteError> {
    let inserted = execute(conn, INSERT_CLAIM, params![consumer, event_id.to_string(), now()]);
    Ok(claim_if(inserted.map_err(in_table(INBOX_TABLE))? == 1))
}

fn claim_all(
    conn: &Connection,
    consumer: &str,
    event_ids: &[Uuid],
) -> Result<Vec<Claim>, WriteError> {
    let inserted = insert_claims(conn, consumer, event_ids).map_err(in_table(INBOX_TABLE))?;
    Ok(claims_of(event_ids, inserted))
}

fn insert_claims(
    conn: &Connection,
    consumer: &str,
    event_ids: &[Uuid],
) -> rusqlite::Result<Vec<Uuid>> {
    let mut statement = conn.prepare_cached(INSERT_CLAIMS)?;
    let ids = statement
        .query_map(params![consumer, as_json(event_ids), now()], |row| row.get::<_, String>(0))?;
    ids.map(|id| Ok(id?.parse().expect("it was given as an id"))).collect()
}

fn advance(
    conn: &Connection,
    consumer: &str,
    key: &Key,
    version: u64,
) -> rusqlite::Result<Sequence> {
    let Key { aggregate_type, aggregate_id } = key;
    let number = version_of(version);
    let watermark = params![consumer, aggregate_type, aggregate_id, number];
    if execute(conn, INSERT_VERSION, watermark)? == 1 {
        return Ok(sequence_of(None, version));
    }
    let known = params![consumer, aggregate_type, aggregate_id];
    let last = conn.prepare_cached(SELECT_VERSION)?.query_one(known, |row| row.get(0))?;
    execute(conn, UPDATE_VERSION, watermark)?;
    Ok(sequence_of(Some(last), version))
}

fn store(conn: &Connection, consumer: &str, event: &Event) -> Result<Claim, WriteError> {
    let row = Row::of(event);
    let inserted = execute(
        conn,
        STORE,
        params![
            consumer,
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
        ],
    );
    Ok(claim_if(inserted.map_err(in_table(INBOX_MESSAGES_TABLE))? == 1))
}

/// In a savepoint, so that the caller's transaction, if it goes on after an error, has both parts
/// or none.
fn bury(
    savepoint: rusqlite::Result<Savepoint<'_>>,
    consumer: &str,
    event: &Event,
    error: &str,
    attempts: u32,
) -> rusqlite::Result<()> {
    let savepoint = savepoint?;
    let row = Row::of(event);
    execute(&savepoint, INSERT_CLAIM, params![consumer, row.id, row.created_at])?;
    execute(
        &savepoint,
        BURY,
        params![
            consumer,
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
            error,
            attempts,
        ],
    )?;
    savepoint.commit()
}

/// In a savepoint, for the same reason.
fn revive(
    savepoint: rusqlite::Result<Savepoint<'_>>,
    consumer: &str,
    event_id: Option<Uuid>,
) -> rusqlite::Result<u64> {
    let savepoint = savepoint?;
    let event_id = event_id.map(|id| id.to_string());
    execute(&savepoint, DELETE_DEAD_CLAIMS, params![consumer, event_id])?;
    let revived = execute(&savepoint, REVIVE, params![consumer, event_id, now()])?;
    savepoint.commit()?;
    Ok(revived)
}

fn prune(
    conn: &Connection,
    consumer: &str,
    older_than: Duration,
    limit: u32,
) -> Result<u64, WriteError> {
    let pruned = execute(conn, PRUNE, params![consumer, ago(older_than), limit]);
    pruned.map_err(in_table(INBOX_TABLE))
}

fn execute(conn: &Connection, sql: &str, params: &[&dyn rusqlite::ToSql]) -> rusqlite::Result<u64> {
    let rows = conn.prepare_cached(sql)?.execute(params)?;
    Ok(rows as u64)
}

fn in_table(table: &str) -> impl Fn(rusqlite::Error) -> WriteError {
    move |err| write_error(Write { table, event_id: None }, err)
}
