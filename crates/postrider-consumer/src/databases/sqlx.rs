//! Pools of sqlx.

use std::time::SystemTime;

use postrider::inbox::InboxTransaction;
use postrider::outbox::Answer;
use postrider::{Claim, Event, Key, Sequence, WriteError};
use uuid::Uuid;

use crate::database::Database;

macro_rules! database {
    ($pool:ty, $database:ty, $begin:literal) => {
        impl Database for $pool {
            type Tx = sqlx::Transaction<'static, $database>;

            fn begin(&self) -> Answer<'_, Self::Tx> {
                Box::pin(async move {
                    let begun = self.begin_with($begin).await;
                    begun.map_err(|source| WriteError::Database { source: source.into() })
                })
            }

            fn commit(tx: Self::Tx) -> Answer<'static, ()> {
                Box::pin(async move {
                    let committed = tx.commit().await;
                    committed.map_err(|source| WriteError::Database { source: source.into() })
                })
            }

            fn claim_all<'t>(
                tx: &'t mut Self::Tx,
                consumer: &'t str,
                event_ids: &'t [Uuid],
            ) -> Answer<'t, Vec<Claim>> {
                tx.claim_all(consumer, event_ids)
            }

            fn advance<'t>(
                tx: &'t mut Self::Tx,
                consumer: &'t str,
                key: &'t Key,
                version: u64,
            ) -> Answer<'t, Sequence> {
                InboxTransaction::advance(tx, consumer, key, version)
            }

            fn bury<'t>(
                tx: &'t mut Self::Tx,
                consumer: &'t str,
                event: &'t Event,
                error: &'t str,
                attempts: u32,
            ) -> Answer<'t, ()> {
                InboxTransaction::bury(tx, consumer, event, error, attempts)
            }

            fn prune<'t>(
                tx: &'t mut Self::Tx,
                consumer: &'t str,
                older_than: SystemTime,
                limit: u32,
            ) -> Answer<'t, u64> {
                InboxTransaction::prune(tx, consumer, older_than, limit)
            }
        }
    };
}

#[cfg(feature = "sqlx-postgres")]
database!(sqlx::PgPool, sqlx::Postgres, "BEGIN");
#[cfg(feature = "sqlx-sqlite")]
// Whoever writes takes the lock at once, and does not fail half way.
database!(sqlx::SqlitePool, sqlx::Sqlite, "BEGIN IMMEDIATE");
