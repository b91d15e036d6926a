//! Keys that wait in PostgreSQL.

use async_trait::async_trait;
use postrider::Key;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::connection::Param;
use super::super::error::Trouble;
use super::PostgresAdmin;
use super::events::set_aside;
use crate::events::Blocker;
use crate::keys::{BlockedKey, Keys, Released};
use crate::source::SourceError;

#[async_trait]
impl Keys for PostgresAdmin {
    async fn blocked(
        &self,
        pipeline: Option<&str>,
        limit: usize,
    ) -> Result<Vec<BlockedKey>, SourceError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let params: [Param<'_>; 2] = [(&pipeline, Type::TEXT), (&limit, Type::INT8)];
        let rows = self.connection.query(&self.stops.blocked, &params).await;
        let keys = rows.and_then(|rows| Ok(blocked(&rows)?));
        keys.map_err(|trouble: Trouble| trouble.while_doing("look at blocked keys"))
    }

    async fn release(
        &self,
        pipeline: Option<&str>,
        key: &Key,
    ) -> Result<Vec<Released>, SourceError> {
        let released = self.release_key(pipeline, key).await;
        released.map_err(|trouble| trouble.while_doing("release a key"))
    }
}

impl PostgresAdmin {
    async fn release_key(
        &self,
        pipeline: Option<&str>,
        key: &Key,
    ) -> Result<Vec<Released>, Trouble> {
        let of_key: [Param<'_>; 2] =
            [(&key.aggregate_type, Type::TEXT), (&key.aggregate_id, Type::TEXT)];
        let [aggregate_type, aggregate_id] = of_key;
        let params: [Param<'_>; 3] =
            [(&pipeline, Type::TEXT), aggregate_type.clone(), aggregate_id.clone()];
        let mut released = Vec::new();
        for row in self.connection.query(&self.stops.waits_in, &params).await? {
            let pipeline: String = row.try_get(0)?;
            let mut tx = self.connection.begin().await?;
            tx.query(&self.stops.lock_failures, &[(&pipeline, Type::TEXT)]).await?;
            let params: [Param<'_>; 3] =
                [(&pipeline, Type::TEXT), aggregate_type.clone(), aggregate_id.clone()];
            let rows = tx.query(&self.stops.release, &params).await?;
            tx.commit().await?;
            for row in rows {
                let pipeline = pipeline.clone();
                let (event_id, was) = (row.try_get(0)?, row.try_get(1)?);
                released.push(Released { pipeline, event_id, was });
            }
        }
        Ok(released)
    }
}

fn blocked(rows: &[Row]) -> Result<Vec<BlockedKey>, tokio_postgres::Error> {
    let mut keys = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(set_aside) = set_aside(row, 6)? else { continue };
        let event_id = row.try_get::<_, Option<String>>(5)?.unwrap_or_default();
        keys.push(BlockedKey {
            pipeline: row.try_get(0)?,
            key: Key { aggregate_type: row.try_get(1)?, aggregate_id: row.try_get(2)? },
            since: row.try_get(3)?,
            events: u64::try_from(row.try_get::<_, i64>(4)?).unwrap_or(0),
            first: Blocker { event_id, set_aside },
        });
    }
    Ok(keys)
}
