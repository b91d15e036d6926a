//! The inbox with tokio-postgres.

use std::time::Duration;

use tokio_postgres::Error;
use tokio_postgres::types::{FromSqlOwned, ToSql, Type};
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
use crate::outboxes::tokio_postgres::write_error;
use crate::schema::{INBOX_MESSAGES_TABLE, INBOX_TABLE, INBOX_VERSIONS_TABLE};

type Param<'p> = (&'p (dyn ToSql + Sync), Type);

impl InboxTransaction for tokio_postgres::Transaction<'_> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let params: [Param<'_>; 2] = [(&consumer, Type::TEXT), (&event_id, Type::UUID)];
            let inserted = self.execute_typed(INSERT_CLAIM, &params).await;
            Ok(claim_if(inserted.map_err(in_table(INBOX_TABLE))? == 1))
        })
    }

    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Self::Written<'t, Vec<Claim>> {
        Box::pin(async move {
            let params: [Param<'_>; 2] = [(&consumer, Type::TEXT), (&event_ids, Type::UUID_ARRAY)];
            let inserted = self.query_typed(INSERT_CLAIMS, &params).await;
            let inserted = inserted.map_err(in_table(INBOX_TABLE))?;
            Ok(claims_of(event_ids, inserted.iter().map(|row| row.get(0))))
        })
    }

    fn advance<'t>(
        &'t mut self,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Self::Written<'t, Sequence> {
        Box::pin(async move {
            let params: [Param<'_>; 4] = [
                (&consumer, Type::TEXT),
                (&key.aggregate_type, Type::TEXT),
                (&key.aggregate_id, Type::TEXT),
                (&version_of(version), Type::INT8),
            ];
            let last = ask(self, ADVANCE, &params).await.map_err(in_table(INBOX_VERSIONS_TABLE))?;
            Ok(sequence_of(last, version))
        })
    }

    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let row = Row::of(event);
            let stored = ask(self, STORE, &message(&consumer, &row)).await;
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
            let (row, error, attempts) = (Row::of(event), error_text(error), attempts_of(attempts));
            let mut params = message(&consumer, &row).to_vec();
            params.extend([(&error as _, Type::TEXT), (&attempts as _, Type::INT4)]);
            let buried = self.execute_typed(BURY, &params).await;
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
            let params: [Param<'_>; 2] = [(&consumer, Type::TEXT), (&event_id, Type::UUID)];
            let revived: Result<i64, _> = ask(self, REVIVE, &params).await;
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
            let params: [Param<'_>; 3] = [
                (&consumer, Type::TEXT),
                (&micros(older_than), Type::INT8),
                (&i64::from(limit), Type::INT8),
            ];
            let pruned = self.execute_typed(PRUNE, &params).await;
            pruned.map_err(in_table(INBOX_TABLE))
        })
    }
}

/// The only value of the only row.
async fn ask<T: FromSqlOwned>(
    tx: &tokio_postgres::Transaction<'_>,
    sql: &str,
    params: &[Param<'_>],
) -> Result<T, Error> {
    tx.query_typed_one(sql, params).await?.try_get(0)
}

fn message<'p>(consumer: &'p &str, row: &'p Row<'_>) -> [Param<'p>; 11] {
    [
        (consumer, Type::TEXT),
        (&row.id, Type::UUID),
        (&row.aggregate_type, Type::TEXT),
        (&row.aggregate_id, Type::TEXT),
        (&row.event_type, Type::TEXT),
        (&row.event_version, Type::INT8),
        (&row.payload, Type::BYTEA),
        (&row.content_type, Type::TEXT),
        (&row.headers, Type::TEXT),
        (&row.topic, Type::TEXT),
        (&row.occurred_at, Type::TEXT),
    ]
}

fn in_table(table: &str) -> impl Fn(Error) -> WriteError {
    move |err| write_error(table, &[], err)
}
