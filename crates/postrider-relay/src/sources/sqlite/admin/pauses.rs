//! What is stopped in SQLite.

use std::time::SystemTime;

use async_trait::async_trait;
use postrider::Key;
use rusqlite::{Connection, Row, Transaction, TransactionBehavior, params};

use super::super::queries;
use super::{Shared, SqliteAdmin, shown, time};
use crate::pauses::{EVERY_PIPELINE, Pause, Pauses};
use crate::source::SourceError;

#[async_trait]
impl Pauses for SqliteAdmin {
    async fn pauses(&self) -> Result<Vec<Pause>, SourceError> {
        self.run("look at what is paused", |conn, shared| Ok(read(conn, shared)?)).await
    }

    async fn pause(
        &self,
        pipeline: Option<&str>,
        key: Option<&Key>,
        reason: Option<&str>,
    ) -> Result<bool, SourceError> {
        let pipeline = pipeline.unwrap_or(EVERY_PIPELINE).to_owned();
        let (key, reason) = (key.cloned(), reason.map(str::to_owned));
        self.run("pause", move |conn, shared| {
            let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
            let now: String = tx.query_row(queries::NOW, [], |row| row.get(0))?;
            let (aggregate_type, aggregate_id) = parts(key.as_ref());
            let of = params![pipeline, aggregate_type, aggregate_id];
            let was: bool = tx.query_row(&shared.stops.is_paused, of, |row| row.get(0))?;
            let row = params![pipeline, aggregate_type, aggregate_id, reason, now];
            tx.execute(&shared.stops.pause, row)?;
            tx.commit()?;
            Ok(!was)
        })
        .await
    }

    async fn resume(
        &self,
        pipeline: Option<&str>,
        key: Option<&Key>,
    ) -> Result<Vec<Pause>, SourceError> {
        let (pipeline, key) = (pipeline.map(str::to_owned), key.cloned());
        self.run("resume", move |conn, shared| {
            let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
            let now: String = tx.query_row(queries::NOW, [], |row| row.get(0))?;
            let (aggregate_type, aggregate_id) = parts(key.as_ref());
            let removed = tx
                .prepare(&shared.stops.resume)?
                .query_map(params![pipeline, aggregate_type, aggregate_id], pause)?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            if key.is_some() && !removed.is_empty() {
                let of = params![pipeline, aggregate_type, aggregate_id, now];
                tx.execute(&shared.stops.hurry, of)?;
            }
            tx.commit()?;
            Ok(removed)
        })
        .await
    }

    async fn hurry(&self, pipeline: Option<&str>, key: &Key) -> Result<(), SourceError> {
        let (pipeline, key) = (pipeline.map(str::to_owned), key.clone());
        self.run("let a key go on", move |conn, shared| {
            let now: String = conn.query_row(queries::NOW, [], |row| row.get(0))?;
            let of = params![pipeline, key.aggregate_type, key.aggregate_id, now];
            conn.execute(&shared.stops.hurry, of)?;
            Ok(())
        })
        .await
    }
}

/// A key as its row has it.
fn parts(key: Option<&Key>) -> (&str, &str) {
    key.map_or(("", ""), |key| (key.aggregate_type.as_str(), key.aggregate_id.as_str()))
}

/// Everything that is stopped.
pub(super) fn read(conn: &Connection, shared: &Shared) -> rusqlite::Result<Vec<Pause>> {
    conn.prepare(&shared.stops.pauses)?.query_map([], pause)?.collect()
}

fn pause(row: &Row<'_>) -> rusqlite::Result<Pause> {
    let key = (shown(row, 1)?, shown(row, 2)?);
    let since = time(row, 3)?.unwrap_or(SystemTime::UNIX_EPOCH);
    Ok(Pause::of_row(row.get(0)?, key, since, row.get(4)?))
}
