//! Keys that wait in SQLite.

use std::time::SystemTime;

use async_trait::async_trait;
use postrider::Key;
use rusqlite::{Row, Transaction, TransactionBehavior, params};

use super::super::queries;
use super::events::set_aside;
use super::{SqliteAdmin, shown, time};
use crate::events::Blocker;
use crate::keys::{BlockedKey, Keys, Released};
use crate::source::SourceError;

#[async_trait]
impl Keys for SqliteAdmin {
    async fn blocked(
        &self,
        pipeline: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlockedKey>, SourceError> {
        let pipeline = pipeline.map(str::to_owned);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.run("look at blocked keys", move |conn, shared| {
            let mut statement = conn.prepare(&shared.stops.blocked)?;
            let keys = statement.query_map(params![pipeline, limit], blocked)?;
            Ok(keys.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn release(
        &self,
        pipeline: Option<&str>,
        key: &Key,
    ) -> Result<Vec<Released>, SourceError> {
        let (pipeline, key) = (pipeline.map(str::to_owned), key.clone());
        self.run("release a key", move |conn, shared| {
            let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
            let now: String = tx.query_row(queries::NOW, [], |row| row.get(0))?;
            let first = tx
                .prepare(&shared.stops.first)?
                .query_map(params![pipeline, key.aggregate_type, key.aggregate_id], |row| {
                    let seq: i64 = row.get(1)?;
                    let (event_id, was) = (shown(row, 2)?, row.get(3)?);
                    Ok((seq, Released { pipeline: row.get(0)?, event_id, was }))
                })?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            for (seq, released) in &first {
                tx.execute(&shared.stops.release, params![released.pipeline, seq, now])?;
            }
            tx.commit()?;
            Ok(first.into_iter().map(|(_, released)| released).collect())
        })
        .await
    }
}

fn blocked(row: &Row<'_>) -> rusqlite::Result<BlockedKey> {
    Ok(BlockedKey {
        pipeline: row.get(0)?,
        key: Key { aggregate_type: shown(row, 1)?, aggregate_id: shown(row, 2)? },
        since: time(row, 3)?.unwrap_or(SystemTime::UNIX_EPOCH),
        events: row.get::<_, i64>(4)? as u64,
        first: Blocker { event_id: shown(row, 5)?, set_aside: set_aside(row, 6)? },
    })
}
