//! The inbox with sqlx on SQLite.

use std::time::SystemTime;

use sqlx::Sqlite;
use uuid::Uuid;

use crate::inbox::{Claim, InboxTransaction};
use crate::outboxes::sqlite::{INSERT_CLAIM, Write, claim_of};
use crate::outboxes::sqlx_sqlite::write_error;
use crate::schema::INBOX_TABLE;
use crate::timestamp;

impl InboxTransaction for sqlx::Transaction<'_, Sqlite> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let inserted = sqlx::query(INSERT_CLAIM)
                .bind(consumer)
                .bind(event_id.to_string())
                .bind(timestamp::to_text(SystemTime::now()))
                .execute(&mut **self)
                .await
                .map_err(|err| write_error(Write { table: INBOX_TABLE, event_id }, err))?;
            Ok(claim_of(inserted.rows_affected()))
        })
    }
}
