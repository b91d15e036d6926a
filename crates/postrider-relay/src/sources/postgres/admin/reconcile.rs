//! Events that were missed, in PostgreSQL.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use postrider::Key;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::connection::Param;
use super::super::error::Trouble;
use super::super::queries::{FEW_ROWS, ONE_SNAPSHOT};
use super::PostgresAdmin;
use super::status::{Checkpoint, ahead};
use crate::reconcile::{Missed, MissedKind, Reconcile};
use crate::source::SourceError;
use crate::sources::Progress;

#[async_trait]
impl Reconcile for PostgresAdmin {
    async fn missed(
        &self,
        older_than: Duration,
        aggregate_types: &[String],
        limit: usize,
    ) -> Result<Vec<Missed>, SourceError> {
        let missed = self.find_missed(older_than, aggregate_types, limit).await;
        missed.map_err(|trouble| trouble.while_doing("look for missed events"))
    }

    async fn give_back(&self, missed: &[Missed]) -> Result<u64, SourceError> {
        let mut pipelines: BTreeMap<&String, Vec<&Key>> = BTreeMap::new();
        for it in missed.iter().filter(|it| it.kind == MissedKind::Forgotten) {
            pipelines.entry(&it.pipeline).or_default().push(&it.key);
        }
        let mut given_back = 0;
        for (pipeline, keys) in pipelines {
            let given = self.give_back_to(pipeline, &keys).await;
            given.map_err(|trouble| trouble.while_doing("give events back"))?;
            given_back += keys.len() as u64;
        }
        Ok(given_back)
    }
}

impl PostgresAdmin {
    async fn find_missed(
        &self,
        older_than: Duration,
        aggregate_types: &[String],
        limit: usize,
    ) -> Result<Vec<Missed>, Trouble> {
        let age = i64::try_from(older_than.as_micros()).unwrap_or(i64::MAX);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let types = Some(aggregate_types).filter(|types| !types.is_empty());
        let params: [Param<'_>; 3] =
            [(&age, Type::INT8), (&limit, Type::INT8), (&types, Type::TEXT_ARRAY)];
        let sql = &self.reconcile;
        let mut tx = self.connection.begin().await?;
        tx.batch(ONE_SNAPSHOT).await?;
        tx.batch(FEW_ROWS).await?;
        let mut missed = Vec::new();
        for (kind, sql) in
            [(MissedKind::Forgotten, &sql.forgotten), (MissedKind::Overdue, &sql.overdue)]
        {
            for row in tx.query(sql, &params[..2]).await? {
                missed.push(read(&row, kind)?);
            }
        }
        for row in tx.query(&sql.unmarked, &params).await? {
            let kind = match row.try_get(6)? {
                true => MissedKind::Overtaken,
                false => MissedKind::Unpublished,
            };
            missed.push(read(&row, kind)?);
        }
        for row in tx.query(&self.sql.checkpoints, &[]).await? {
            let checkpoint = Checkpoint::read(&row)?;
            if checkpoint.progress == Progress::Cursor.as_str() {
                for row in ahead(&mut tx, &self.sql, &checkpoint, limit, Some(age)).await? {
                    missed.push(read(&row, MissedKind::Unpublished)?);
                }
            }
        }
        tx.commit().await?;
        missed.sort_by_key(|it| (it.kind, it.position));
        Ok(missed)
    }

    async fn give_back_to(&self, pipeline: &String, keys: &[&Key]) -> Result<(), Trouble> {
        let sql = &self.reconcile;
        let mut tx = self.connection.begin().await?;
        let name: Param<'_> = (pipeline, Type::TEXT);
        tx.query(&sql.lock_failures, std::slice::from_ref(&name)).await?;
        let types: Vec<&str> = keys.iter().map(|key| key.aggregate_type.as_str()).collect();
        let ids: Vec<&str> = keys.iter().map(|key| key.aggregate_id.as_str()).collect();
        let params: [Param<'_>; 3] = [name, (&types, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)];
        tx.query(&sql.mend, &params).await?;
        tx.commit().await
    }
}

fn read(row: &Row, kind: MissedKind) -> Result<Missed, tokio_postgres::Error> {
    Ok(Missed {
        kind,
        pipeline: row.try_get(0)?,
        position: row.try_get(1)?,
        event_id: row.try_get(2)?,
        key: Key { aggregate_type: row.try_get(3)?, aggregate_id: row.try_get(4)? },
        since: row.try_get(5)?,
    })
}
