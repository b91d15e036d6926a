//! The inbox with sqlx on PostgreSQL.

use std::time::Duration;

use sqlx::postgres::PgArguments;
use sqlx::query::{Query, QueryScalar};
use sqlx::{Error, Postgres};
use uuid::Uuid;

use super::answers::{claim_if, claims_of, sequence_of, version_of};
use super::postgres::{
    ADVANCE, BURY, INSERT_CLAIM, INSERT_CLAIMS, PRUNE, REVIVE, STORE, attempts_of, error_text,
    micros,
};
use crate::error::WriteError;
use crate::event::{Event, Key};
use crate::inbox::{Claim, InboxTransaction, Sequence};
use crate::outboxes::postgres::Row;
use crate::outboxes::sqlx_postgres::write_error;
use crate::schema::{INBOX_MESSAGES_TABLE, INBOX_TABLE, INBOX_VERSIONS_TABLE};

impl InboxTransaction for sqlx::Transaction<'_, Postgres> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let insert = query(INSERT_CLAIM).bind(consumer).bind(event_id);
            let inserted = insert.execute(&mut **self).await.map_err(in_table(INBOX_TABLE))?;
            Ok(claim_if(inserted.rows_affected() == 1))
        })
    }

    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Self::Written<'t, Vec<Claim>> {
        Box::pin(async move {
            let insert = ask::<Uuid>(INSERT_CLAIMS).bind(consumer).bind(event_ids);
            let inserted = insert.fetch_all(&mut **self).await.map_err(in_table(INBOX_TABLE))?;
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
            let last = ask::<Option<i64>>(ADVANCE)
                .bind(consumer)
                .bind(&key.aggregate_type)
                .bind(&key.aggregate_id)
                .bind(version_of(version))
                .fetch_one(&mut **self)
                .await
                .map_err(in_table(INBOX_VERSIONS_TABLE))?;
            Ok(sequence_of(last, version))
        })
    }

    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let row = Row::of(event);
            let stored = ask::<bool>(STORE)
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
                .fetch_one(&mut **self)
                .await;
            Ok(claim_if(stored.map_err(in_table(INBOX_MESSAGES_TABLE))?))
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
            let row = Row::of(event);
            let buried = query(BURY)
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
                .bind(error_text(error))
                .bind(attempts_of(attempts))
                .execute(&mut **self)
                .await;
            buried.map_err(in_table(INBOX_MESSAGES_TABLE))?;
            Ok(())
        })
    }

    fn revive<'t>(
        &'t mut self,
        consumer: &'t str,
        event_id: Option<Uuid>,
    ) -> Self::Written<'t, u64> {
        Box::pin(async move {
            let revive = ask::<i64>(REVIVE).bind(consumer).bind(event_id);
            let revived = revive.fetch_one(&mut **self).await;
            Ok(revived.map_err(in_table(INBOX_MESSAGES_TABLE))?.cast_unsigned())
        })
    }

    fn prune<'t>(
        &'t mut self,
        consumer: &'t str,
        older_than: Duration,
        limit: u32,
    ) -> Self::Written<'t, u64> {
        Box::pin(async move {
            let prune = query(PRUNE).bind(consumer).bind(micros(older_than)).bind(i64::from(limit));
            let pruned = prune.execute(&mut **self).await.map_err(in_table(INBOX_TABLE))?;
            Ok(pruned.rows_affected())
        })
    }
}

fn query<'q>(sql: &'static str) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(sql).persistent(false)
}

fn ask<'q, T>(sql: &'static str) -> QueryScalar<'q, Postgres, T, PgArguments>
where
    (T,): for<'r> sqlx::FromRow<'r, sqlx::postgres::PgRow>,
{
    sqlx::query_scalar(sql).persistent(false)
}

fn in_table(table: &str) -> impl Fn(Error) -> WriteError {
    move |err| write_error(table, &[], err)
}
