//! The inbox with sqlx on PostgreSQL.

use sqlx::Postgres;
use uuid::Uuid;

use crate::inbox::{Claim, InboxTransaction};
use crate::outboxes::postgres::{INSERT_CLAIM, claim_of};
use crate::outboxes::sqlx_postgres::write_error;
use crate::schema::INBOX_TABLE;

impl InboxTransaction for sqlx::Transaction<'_, Postgres> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let inserted = sqlx::query(INSERT_CLAIM)
                .persistent(false)
                .bind(consumer)
                .bind(event_id)
                .execute(&mut **self)
                .await
                .map_err(|err| write_error(INBOX_TABLE, &[event_id], err))?;
            Ok(claim_of(inserted.rows_affected()))
        })
    }
}
