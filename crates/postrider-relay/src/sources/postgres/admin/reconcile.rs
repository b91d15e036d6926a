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
        let mut pipelines: BTreeMap<&String, Vec<&Missed>> = BTreeMap::new();
        for it in missed.iter().filter(|it| !it.kind.comes_by_itself()) {
            pipelines.entry(&it.pipeline).or_default().push(it);
        }
        let mut given_back = 0;
        for (pipeline, missed) in pipelines {
            let count = self.give_back_to(pipeline, &missed).await;
            given_back += count.map_err(|trouble| trouble.while_doing("give events back"))?;
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

    /// Each in the step of a relay that sets an event aside: it is in one place all the time.
    async fn give_back_to(&self, pipeline: &String, missed: &[&Missed]) -> Result<u64, Trouble> {
        let sql = &self.reconcile;
        let of = |kind: MissedKind| missed.iter().filter(move |it| it.kind == kind);
        let mut tx = self.connection.begin().await?;
        let name: Param<'_> = (pipeline, Type::TEXT);
        tx.query(&sql.lock_failures, std::slice::from_ref(&name)).await?;
        let progress = tx.query(&sql.progress, std::slice::from_ref(&name)).await?;
        let progress: Option<String> = progress.first().map(|row| row.try_get(0)).transpose()?;
        let overtaken: Vec<i64> = of(MissedKind::Overtaken).map(|it| it.position).collect();
        let params: [Param<'_>; 2] = [name.clone(), (&overtaken, Type::INT8_ARRAY)];
        let mut taken = Vec::new();
        for row in tx.query(&sql.set_aside, &params).await? {
            taken.push(row.try_get::<_, i64>(0)?);
        }
        let leave = match progress.as_deref() == Some(Progress::Delete.as_str()) {
            true => &sql.delete,
            false => &sql.mark,
        };
        tx.execute(leave, &[(&taken, Type::INT8_ARRAY)]).await?;
        let keys: Vec<&Key> = missed.iter().map(|it| &it.key).collect();
        let types: Vec<&str> = keys.iter().map(|key| key.aggregate_type.as_str()).collect();
        let ids: Vec<&str> = keys.iter().map(|key| key.aggregate_id.as_str()).collect();
        let params: [Param<'_>; 3] = [name, (&types, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)];
        tx.query(&sql.mend, &params).await?;
        tx.commit().await?;
        Ok((taken.len() + of(MissedKind::Forgotten).count()) as u64)
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
