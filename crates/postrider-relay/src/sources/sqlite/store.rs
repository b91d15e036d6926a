//! The open database, and what the statements need to know of the pipeline.

use std::time::SystemTime;

use postrider::timestamp;
use rusqlite::{Connection, OptionalExtension, Params, Row, Transaction, TransactionBehavior};

use super::error::Trouble;
use super::keys::Keys;
use super::queries::{self, CheckpointQueries, Queries};
use crate::source::{SourceError, SourceErrorKind};

#[derive(Debug)]
pub(super) struct Store {
    pub(super) conn: Connection,
    pub(super) sql: Queries,
    pub(super) checkpoints: CheckpointQueries,
    pub(super) table: String,
    pub(super) pipeline: String,
    /// A JSON array of aggregate types; none means all.
    pub(super) matching: Option<String>,
    /// Other pipelines of this relay, which are to become cursors.
    pub(super) companions: Vec<String>,
}

/// The time by SQLite's clock.
#[derive(Clone, Debug)]
pub(super) struct Now {
    pub(super) text: String,
    pub(super) time: SystemTime,
}

impl Store {
    /// A transaction that sees one state of the database.
    pub(super) fn read(&self) -> rusqlite::Result<Transaction<'_>> {
        Transaction::new_unchecked(&self.conn, TransactionBehavior::Deferred)
    }

    /// A transaction that has the right to write from the start, so that it cannot fail half
    /// way for want of it.
    pub(super) fn write(&self) -> rusqlite::Result<Transaction<'_>> {
        Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)
    }

    /// A JSON array of aggregate types, empty for all.
    pub(super) fn types(&self) -> &str {
        self.matching.as_deref().unwrap_or("[]")
    }

    pub(super) fn type_names(&self) -> Vec<String> {
        serde_json::from_str(self.types()).unwrap_or_default()
    }

    pub(super) fn keys(&self) -> Keys<'_> {
        Keys { conn: &self.conn, sql: &self.sql, pipeline: &self.pipeline }
    }

    pub(super) fn now(&self) -> rusqlite::Result<Now> {
        let text: String = self.one(queries::NOW, [], |row| row.get(0))?;
        let time = timestamp::from_text(&text).unwrap_or_else(|_| SystemTime::now());
        Ok(Now { text, time })
    }

    pub(super) fn data_version(&self) -> rusqlite::Result<i64> {
        self.one(queries::DATA_VERSION, [], |row| row.get(0))
    }

    pub(super) fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.conn.prepare_cached(sql)?.execute(params)
    }

    pub(super) fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.conn.prepare_cached(sql)?.query_row(params, read)
    }

    pub(super) fn maybe<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.one(sql, params, read).optional()
    }

    /// Refuses a position beyond the last event that the outbox ever had: it belongs to another
    /// state of the database, and events written since would be passed over.
    pub(super) fn check_position(&self, position: i64) -> Result<(), Trouble> {
        let last: Option<i64> = self.maybe(queries::LAST_SEQ, [&self.table], |row| row.get(0))?;
        let last = last.unwrap_or(0);
        if position <= last {
            return Ok(());
        }
        let (pipeline, table) = (&self.pipeline, &self.table);
        let message = format!(
            "pipeline {pipeline:?} has published up to {position}, but {table} only ever had {last}: \
             it was restored from an older state or its numbering was reset"
        );
        Err(SourceError::new(SourceErrorKind::Unsafe, message)
            .with_hint(format!(
                "if the outbox is right, remove the pipeline's row from {table}_checkpoints: \
             everything in the outbox is then published, some of it again"
            ))
            .into())
    }
}
