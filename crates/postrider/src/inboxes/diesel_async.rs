//! The inbox with diesel-async on PostgreSQL.

use std::time::Duration;

use diesel::result::Error;
use diesel::sql_types::{Array, BigInt, Binary, Bool, Integer, Nullable, Text, Uuid as SqlUuid};
use diesel::{QueryableByName, sql_query};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use uuid::Uuid;

use super::answers::{claim_if, claims_of, sequence_of, version_of};
use super::postgres::{
    ADVANCE, BURY, INSERT_CLAIM, INSERT_CLAIMS, PRUNE, REVIVE, STORE, attempts_of, error_text,
    micros,
};
use crate::error::WriteError;
use crate::event::{Event, Key};
use crate::inbox::{Claim, InboxTransaction, Sequence};
use crate::outboxes::diesel_async::{check_in_transaction, write_error};
use crate::outboxes::postgres::Row;
use crate::schema::{INBOX_MESSAGES_TABLE, INBOX_TABLE, INBOX_VERSIONS_TABLE};

#[derive(QueryableByName)]
struct Claimed {
    #[diesel(sql_type = SqlUuid)]
    event_id: Uuid,
}

#[derive(QueryableByName)]
struct Last {
    #[diesel(sql_type = Nullable<BigInt>)]
    answer: Option<i64>,
}

#[derive(QueryableByName)]
struct Stored {
    #[diesel(sql_type = Bool)]
    answer: bool,
}

#[derive(QueryableByName)]
struct Revived {
    #[diesel(sql_type = BigInt)]
    answer: i64,
}

/// As for [`Transaction`](crate::outbox::Transaction).
impl InboxTransaction for AsyncPgConnection {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            check_in_transaction(self)?;
            let insert =
                sql_query(INSERT_CLAIM).bind::<Text, _>(consumer).bind::<SqlUuid, _>(event_id);
            let inserted = insert.execute(self).await.map_err(in_table(INBOX_TABLE))?;
            Ok(claim_if(inserted == 1))
        })
    }

    fn claim_all<'t>(
        &'t mut self,
        consumer: &'t str,
        event_ids: &'t [Uuid],
    ) -> Self::Written<'t, Vec<Claim>> {
        Box::pin(async move {
            check_in_transaction(self)?;
            let insert = sql_query(INSERT_CLAIMS)
                .bind::<Text, _>(consumer)
                .bind::<Array<SqlUuid>, _>(event_ids);
            let inserted: Vec<Claimed> = insert.load(self).await.map_err(in_table(INBOX_TABLE))?;
            Ok(claims_of(event_ids, inserted.into_iter().map(|claimed| claimed.event_id)))
        })
    }

    fn advance<'t>(
        &'t mut self,
        consumer: &'t str,
        key: &'t Key,
        version: u64,
    ) -> Self::Written<'t, Sequence> {
        Box::pin(async move {
            check_in_transaction(self)?;
            let advance = sql_query(ADVANCE)
                .bind::<Text, _>(consumer)
                .bind::<Text, _>(&key.aggregate_type)
                .bind::<Text, _>(&key.aggregate_id)
                .bind::<BigInt, _>(version_of(version));
            let last: Result<Last, Error> = advance.get_result(self).await;
            Ok(sequence_of(last.map_err(in_table(INBOX_VERSIONS_TABLE))?.answer, version))
        })
    }

    fn store<'t>(&'t mut self, consumer: &'t str, event: &'t Event) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            check_in_transaction(self)?;
            let row = Row::of(event);
            let store = sql_query(STORE)
                .bind::<Text, _>(consumer)
                .bind::<SqlUuid, _>(row.id)
                .bind::<Text, _>(row.aggregate_type)
                .bind::<Text, _>(row.aggregate_id)
                .bind::<Text, _>(row.event_type)
                .bind::<BigInt, _>(row.event_version)
                .bind::<Binary, _>(row.payload)
                .bind::<Text, _>(row.content_type)
                .bind::<Text, _>(row.headers)
                .bind::<Nullable<Text>, _>(row.topic)
                .bind::<Text, _>(row.occurred_at);
            let stored: Result<Stored, Error> = store.get_result(self).await;
            Ok(claim_if(stored.map_err(in_table(INBOX_MESSAGES_TABLE))?.answer))
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
            check_in_transaction(self)?;
            let row = Row::of(event);
            let bury = sql_query(BURY)
                .bind::<Text, _>(consumer)
                .bind::<SqlUuid, _>(row.id)
                .bind::<Text, _>(row.aggregate_type)
                .bind::<Text, _>(row.aggregate_id)
                .bind::<Text, _>(row.event_type)
                .bind::<BigInt, _>(row.event_version)
                .bind::<Binary, _>(row.payload)
                .bind::<Text, _>(row.content_type)
                .bind::<Text, _>(row.headers)
                .bind::<Nullable<Text>, _>(row.topic)
                .bind::<Text, _>(row.occurred_at)
                .bind::<Text, _>(error_text(error))
                .bind::<Integer, _>(attempts_of(attempts));
            bury.execute(self).await.map_err(in_table(INBOX_MESSAGES_TABLE))?;
            Ok(())
        })
    }

    fn revive<'t>(
        &'t mut self,
        consumer: &'t str,
        event_id: Option<Uuid>,
    ) -> Self::Written<'t, u64> {
        Box::pin(async move {
            check_in_transaction(self)?;
            let revive =
                sql_query(REVIVE).bind::<Text, _>(consumer).bind::<Nullable<SqlUuid>, _>(event_id);
            let revived: Result<Revived, Error> = revive.get_result(self).await;
            Ok(revived.map_err(in_table(INBOX_MESSAGES_TABLE))?.answer.cast_unsigned())
        })
    }

    fn prune<'t>(
        &'t mut self,
        consumer: &'t str,
        older_than: Duration,
        limit: u32,
    ) -> Self::Written<'t, u64> {
        Box::pin(async move {
            check_in_transaction(self)?;
            let prune = sql_query(PRUNE)
                .bind::<Text, _>(consumer)
                .bind::<BigInt, _>(micros(older_than))
                .bind::<BigInt, _>(i64::from(limit));
            let pruned = prune.execute(self).await.map_err(in_table(INBOX_TABLE))?;
            Ok(pruned as u64)
        })
    }
}

fn in_table(table: &str) -> impl Fn(Error) -> WriteError {
    move |err| write_error(table, &[], err)
}
