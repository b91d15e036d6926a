//! The inbox with tokio-postgres.

use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::inbox::{Claim, InboxTransaction};
use crate::outboxes::postgres::{INSERT_CLAIM, claim_of};
use crate::outboxes::tokio_postgres::write_error;
use crate::schema::INBOX_TABLE;

impl InboxTransaction for tokio_postgres::Transaction<'_> {
    fn claim<'t>(&'t mut self, consumer: &'t str, event_id: Uuid) -> Self::Written<'t, Claim> {
        Box::pin(async move {
            let params: [(&(dyn ToSql + Sync), Type); 2] =
                [(&consumer, Type::TEXT), (&event_id, Type::UUID)];
            let inserted = self.execute_typed(INSERT_CLAIM, &params).await;
            let inserted = inserted.map_err(|err| write_error(INBOX_TABLE, &[event_id], err))?;
            Ok(claim_of(inserted))
        })
    }
}
