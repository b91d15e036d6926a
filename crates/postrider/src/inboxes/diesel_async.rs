//! The inbox with diesel-async on PostgreSQL.

use diesel::sql_query;
use diesel::sql_types::{Text, Uuid as SqlUuid};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use uuid::Uuid;

use crate::inbox::{Claim, InboxTransaction};
use crate::outboxes::diesel_async::{check_in_transaction, write_error};
use crate::outboxes::postgres::{INSERT_CLAIM, claim_of};
use crate::schema::INBOX_TABLE;

impl InboxTransaction for AsyncPgConnection {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            check_in_transaction(self)?;
            let inserted = sql_query(INSERT_CLAIM)
                .bind::<Text, _>(consumer)
                .bind::<SqlUuid, _>(event_id)
                .execute(self)
                .await
                .map_err(|err| write_error(INBOX_TABLE, &[event_id], err))?;
            Ok(claim_of(inserted as u64))
        })
    }
}
