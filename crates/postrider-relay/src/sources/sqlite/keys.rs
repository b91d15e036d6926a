//! Keeps keys from being forgotten.
//!
//! *The first blocking row of a key that is set aside is either parked or due at some time.*
//! Whoever removes or changes a blocking row (a relay that settles, an operator that discards)
//! calls [`mend`] for its key in the same transaction; no other place makes queued rows due.

use std::collections::BTreeSet;

use postrider::Key;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::queries::Queries;

/// A pipeline's rows that are set aside.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) conn: &'a Connection,
    pub(super) sql: &'a Queries,
    pub(super) pipeline: &'a str,
}

impl Keys<'_> {
    /// The key of a row that is set aside, if it blocks.
    pub(super) fn blocking_key(&self, seq: i64) -> rusqlite::Result<Option<Key>> {
        let mut statement = self.conn.prepare_cached(&self.sql.blocking_key)?;
        statement.query_row(params![self.pipeline, seq], key).optional()
    }

    /// Keys with a blocking row.
    pub(super) fn blocked(&self) -> rusqlite::Result<Vec<Key>> {
        let mut statement = self.conn.prepare_cached(&self.sql.blocked_keys)?;
        let keys = statement.query_map([self.pipeline], key)?;
        keys.collect()
    }

    /// Makes the first blocking row of each key due if nothing else would ever hand it out.
    /// Answers the keys that have none.
    pub(super) fn mend(&self, keys: BTreeSet<Key>, now: &str) -> rusqlite::Result<Vec<Key>> {
        let mut first = self.conn.prepare_cached(&self.sql.first_blocking)?;
        let mut unblocked = Vec::new();
        for key in keys {
            let found: Option<(i64, bool)> = first
                .query_row(params![self.pipeline, key.aggregate_type, key.aggregate_id], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })
                .optional()?;
            match found {
                None => unblocked.push(key),
                Some((seq, true)) => {
                    let mut make_due = self.conn.prepare_cached(&self.sql.make_due)?;
                    make_due.execute(params![self.pipeline, seq, now])?;
                }
                Some((_, false)) => {}
            }
        }
        Ok(unblocked)
    }
}

fn key(row: &Row<'_>) -> rusqlite::Result<Key> {
    Ok(Key { aggregate_type: row.get(0)?, aggregate_id: row.get(1)? })
}
