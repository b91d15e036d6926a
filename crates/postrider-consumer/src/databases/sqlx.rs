//! Pools of sqlx.

use std::time::Duration;

use postrider::outbox::Answer;
use postrider::{Claim, Event, Inbox, Key, Sequence, WriteError};
use uuid::Uuid;

use crate::database::Database;

macro_rules! database {
    ($pool:ty, $database:ty, $begin:literal, $before_commit:expr) => {
        impl Database for $pool {
            type Tx = sqlx::Transaction<'static, $database>;

            fn begin(&self) -> Answer<'_, Self::Tx> {
                Box::pin(async move {
                    let begun = self.begin_with($begin).await;
                    begun.map_err(|source| WriteError::Database { source: source.into() })
                })
            }

            fn commit(mut tx: Self::Tx) -> Answer<'static, ()> {
                Box::pin(async move {
                    let before: Option<&'static str> = $before_commit;
                    let committed = match before {
                        Some(statement) => match sqlx::query(statement).execute(&mut *tx).await {
                            Ok(_) => tx.commit().await,
                            Err(error) => Err(error),
                        },
                        None => tx.commit().await,
                    };
                    committed.map_err(|source| WriteError::Database { source: source.into() })
                })
            }

            fn claim_all<'t>(
                tx: &'t mut Self::Tx,
                consumer: &'t str,
                event_ids: &'t [Uuid],
            ) -> Answer<'t, Vec<Claim>> {
                Inbox::new().once_all(tx, consumer, event_ids)
            }

            fn advance<'t>(
                tx: &'t mut Self::Tx,
                consumer: &'t str,
                key: &'t Key,
                version: u64,
            ) -> Answer<'t, Sequence> {
                Inbox::new().advance(tx, consumer, key, version)
            }

            fn bury<'t>(
                tx: &'t mut Self::Tx,
                consumer: &'t str,
                event: &'t Event,
                error: &'t str,
                attempts: u32,
            ) -> Answer<'t, ()> {
                Inbox::new().bury(tx, consumer, event, error, attempts)
            }

            fn prune<'t>(
                tx: &'t mut Self::Tx,
                consumer: &'t str,
                older_than: Duration,
                limit: u32,
            ) -> Answer<'t, u64> {
                Inbox::new().prune(tx, consumer, older_than, limit)
            }
        }
    };
}

#[cfg(feature = "sqlx-postgres")]
// A statement that failed aborts the transaction, also if the handler did not mind, and its COMMIT
// is answered without an error although it rolls back. Any other statement is not.
database!(sqlx::PgPool, sqlx::Postgres, "BEGIN", Some("SELECT 1"));
#[cfg(feature = "sqlx-sqlite")]
// Whoever writes takes the lock at once, and does not fail half way.
database!(sqlx::SqlitePool, sqlx::Sqlite, "BEGIN IMMEDIATE", None);
