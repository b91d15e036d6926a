//! The inbox with sqlx on SQLite.

use std::time::Duration;

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Acquire, Sqlite, SqliteConnection};
use uuid::Uuid;

use super::answers::{claim_if, claims_of, sequence_of, version_of};
use super::sqlite::{
    BURY, DELETE_DEAD_CLAIMS, INSERT_CLAIM, INSERT_CLAIMS, INSERT_VERSION, PRUNE, REVIVE,
    SELECT_VERSION, STORE, UPDATE_VERSION, ago, as_json, now,
};
use crate::error::WriteError;
use crate::event::{Event, Key};
use crate::inbox::{Claim, InboxTransaction, Sequence};
use crate::outboxes::sqlite::{Row, Write};
use crate::outboxes::sqlx_sqlite::write_error;
use crate::schema::{INBOX_MESSAGES_TABLE, INBOX_TABLE, INBOX_VERSIONS_TABLE};

impl InboxTransaction for sqlx::Transaction<'_, Sqlite> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let claim =
                sqlx::query(INSERT_CLAIM).bind(consumer).bind(event_id.to_string()).bind(now());
            let inserted = claim.execute(&mut **self).await.map_err(in_table(INBOX_TABLE))?;
            Ok(claim_if(inserted.rows_affected() == 1))
        })
    }

    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Self::Written<'t, Vec<Claim>> {
        Box::pin(async move {
            let claims = sqlx::query_scalar(INSERT_CLAIMS)
                .bind(consumer)
                .bind(as_json(event_ids))
                .bind(now());
            let inserted: Vec<String> =
                claims.fetch_all(&mut **self).await.map_err(in_table(INBOX_TABLE))?;
            let inserted = inserted.iter().map(|id| id.parse().expect("it was given as an id"));
            Ok(claims_of(event_ids, inserted))
        })
    }

    fn advance<'t>(
        &'t mut self,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Self::Written<'t, Sequence> {
        Box::pin(async move {
            advance(self, consumer, key, version).await.map_err(in_table(INBOX_VERSIONS_TABLE))
        })
    }

    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let stored = message(STORE, consumer, Row::of(event)).execute(&mut **self).await;
            let stored = stored.map_err(in_table(INBOX_MESSAGES_TABLE))?;
            Ok(claim_if(stored.rows_affected() == 1))
        })
    }

    fn bury<'t>(
        &'t mut self,
        consumer: &'t str,
        event: &'t Event,
        error: &'t str,
        attempts: u32,
    ) -> Self::Written<'t, ()> {
        Box::pin(async move {
            let buried = bury(self, consumer, event, error, attempts).await;
            buried.map_err(in_table(INBOX_MESSAGES_TABLE))
        })
    }

    fn revive<'t>(
        &'t mut self,
        consumer: &'t str,
        event_id: Option<Uuid>,
    ) -> Self::Written<'t, u64> {
        Box::pin(async move {
            revive(self, consumer, event_id).await.map_err(in_table(INBOX_MESSAGES_TABLE))
        })
    }

    fn prune<'t>(
        &'t mut self,
        consumer: &'t str,
        older_than: Duration,
        limit: u32,
    ) -> Self::Written<'t, u64> {
        Box::pin(async move {
            let prune = sqlx::query(PRUNE).bind(consumer).bind(ago(older_than)).bind(limit);
            let pruned = prune.execute(&mut **self).await.map_err(in_table(INBOX_TABLE))?;
            Ok(pruned.rows_affected())
        })
    }
}

async fn advance(
    conn: &mut SqliteConnection,
    consumer: &str,
    key: &Key,
    version: u64,
) -> sqlx::Result<Sequence> {
    let watermark = |sql| {
        sqlx::query(sql)
            .bind(consumer)
            .bind(&key.aggregate_type)
            .bind(&key.aggregate_id)
            .bind(version_of(version))
    };
    if watermark(INSERT_VERSION).execute(&mut *conn).await?.rows_affected() == 1 {
        return Ok(sequence_of(None, version));
    }
    let last = sqlx::query_scalar(SELECT_VERSION)
        .bind(consumer)
        .bind(&key.aggregate_type)
        .bind(&key.aggregate_id)
        .fetch_one(&mut *conn)
        .await?;
    watermark(UPDATE_VERSION).execute(conn).await?;
    Ok(sequence_of(Some(last), version))
}

/// In a savepoint, so that the caller's transaction, if it goes on after an error, has both parts
/// or none.
async fn bury(
    tx: &mut sqlx::Transaction<'_, Sqlite>,
    consumer: &str,
    event: &Event,
    error: &str,
    attempts: u32,
) -> sqlx::Result<()> {
    let mut savepoint = tx.begin().await?;
    let row = Row::of(event);
    let claim = sqlx::query(INSERT_CLAIM).bind(consumer).bind(row.id.clone()).bind(now());
    claim.execute(&mut *savepoint).await?;
    message(BURY, consumer, row).bind(error).bind(attempts).execute(&mut *savepoint).await?;
    savepoint.commit().await
}

/// In a savepoint, for the same reason.
async fn revive(
    tx: &mut sqlx::Transaction<'_, Sqlite>,
    consumer: &str,
    event_id: Option<Uuid>,
) -> sqlx::Result<u64> {
    let mut savepoint = tx.begin().await?;
    let event_id = event_id.map(|id| id.to_string());
    let claims = sqlx::query(DELETE_DEAD_CLAIMS).bind(consumer).bind(event_id.clone());
    claims.execute(&mut *savepoint).await?;
    let revive = sqlx::query(REVIVE).bind(consumer).bind(event_id).bind(now());
    let revived = revive.execute(&mut *savepoint).await?.rows_affected();
    savepoint.commit().await?;
    Ok(revived)
}

fn message<'q>(
    sql: &'static str,
    consumer: &'q str,
    row: Row<'q>,
) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(sql)
        .bind(consumer)
        .bind(row.id)
        .bind(row.aggregate_type)
        .bind(row.aggregate_id)
        .bind(row.event_type)
        .bind(row.event_version)
        .bind(row.payload)
        .bind(row.content_type)
        .bind(row.headers)
        .bind(row.topic)
        .bind(row.occurred_at)
        .bind(row.created_at)
}

fn in_table(table: &str) -> impl Fn(sqlx::Error) -> WriteError {
    move |err| write_error(Write { table, event_id: None }, err)
}
