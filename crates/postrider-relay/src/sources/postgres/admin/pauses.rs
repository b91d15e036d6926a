//! What is stopped in PostgreSQL.

use async_trait::async_trait;
use postrider::Key;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::super::connection::{Param, is_so};
use super::super::error::Trouble;
use super::PostgresAdmin;
use crate::pauses::{EVERY_PIPELINE, Pause, Pauses};
use crate::source::SourceError;

#[async_trait]
impl Pauses for PostgresAdmin {
    async fn pauses(&self) -> Result<Vec<Pause>, SourceError> {
        let rows = self.connection.query(&self.stops.pauses, &[]).await;
        let pauses = rows.and_then(|rows| Ok(read(&rows)?));
        pauses.map_err(|trouble: Trouble| {
            let is_denied = trouble.is(&SqlState::INSUFFICIENT_PRIVILEGE);
            let error = trouble.while_doing("look at what is paused");
            let table = self.outbox.pauses().quoted();
            match is_denied {
                true => error.with_hint(format!(
                    "GRANT SELECT ON {table} TO the role that looks; `postrider migrate roles` has \
                     all that a relay needs"
                )),
                false => error,
            }
        })
    }

    async fn pause(
        &self,
        pipeline: Option<&str>,
        key: Option<&Key>,
        reason: Option<&str>,
    ) -> Result<bool, SourceError> {
        let pipeline = pipeline.unwrap_or(EVERY_PIPELINE);
        let (aggregate_type, aggregate_id) = parts(key);
        let params: [Param<'_>; 4] = [
            (&pipeline, Type::TEXT),
            (&aggregate_type, Type::TEXT),
            (&aggregate_id, Type::TEXT),
            (&reason, Type::TEXT),
        ];
        let rows = self.connection.query(&self.stops.pause, &params).await;
        let is_new = rows.and_then(|rows| is_so(&rows));
        is_new.map_err(|trouble| trouble.while_doing("pause"))
    }

    async fn resume(
        &self,
        pipeline: Option<&str>,
        key: Option<&Key>,
    ) -> Result<Vec<Pause>, SourceError> {
        let removed = self.remove_pauses(pipeline, key).await;
        removed.map_err(|trouble| trouble.while_doing("resume"))
    }

    async fn hurry(&self, pipeline: Option<&str>, key: &Key) -> Result<(), SourceError> {
        let params = of_key(&pipeline, key);
        let hurried = self.connection.query(&self.stops.hurry, &params).await;
        hurried.map(drop).map_err(|trouble| trouble.while_doing("let a key go on"))
    }
}

impl PostgresAdmin {
    async fn remove_pauses(
        &self,
        pipeline: Option<&str>,
        key: Option<&Key>,
    ) -> Result<Vec<Pause>, Trouble> {
        let (aggregate_type, aggregate_id) = parts(key);
        let params: [Param<'_>; 3] =
            [(&pipeline, Type::TEXT), (&aggregate_type, Type::TEXT), (&aggregate_id, Type::TEXT)];
        let mut tx = self.connection.begin().await?;
        let removed = read(&tx.query(&self.stops.resume, &params).await?)?;
        if let Some(key) = key.filter(|_| !removed.is_empty()) {
            tx.execute(&self.stops.hurry, &of_key(&pipeline, key)).await?;
        }
        tx.commit().await?;
        Ok(removed)
    }
}

fn of_key<'k>(pipeline: &'k Option<&str>, key: &'k Key) -> [Param<'k>; 3] {
    let Key { aggregate_type, aggregate_id } = key;
    [(pipeline, Type::TEXT), (aggregate_type, Type::TEXT), (aggregate_id, Type::TEXT)]
}

/// A key as its row has it.
fn parts(key: Option<&Key>) -> (&str, &str) {
    key.map_or(("", ""), |key| (key.aggregate_type.as_str(), key.aggregate_id.as_str()))
}

pub(super) fn read(rows: &[Row]) -> Result<Vec<Pause>, tokio_postgres::Error> {
    let pause = |row: &Row| {
        let key = (row.try_get(1)?, row.try_get(2)?);
        Ok(Pause::of_row(row.try_get(0)?, key, row.try_get(3)?, row.try_get(4)?))
    };
    rows.iter().map(pause).collect()
}
