//! The publication of an outbox: what it is like, and how it is made.

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::LogQueries;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::connection::Connection;
use crate::sources::postgres::error::Trouble;

/// `$1` name: nobody else makes what has this name until the transaction ends.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";

impl LogQueries {
    /// Which publication there is, if it is as it should be.
    pub(in super::super) async fn publication(
        &self,
        connection: &Connection,
    ) -> Result<Option<String>, Trouble> {
        fit(&connection.query(&self.publication, &[]).await?)
    }

    /// Makes the publication, in place of one that is not as it should be.
    pub(in super::super) async fn make_publication(
        &self,
        connection: &Connection,
    ) -> Result<String, Trouble> {
        let made = async {
            let mut tx = connection.begin().await?;
            // Other pipelines of the outbox may be about to make it, too.
            tx.query(LOCK, &[(&self.names.publication, Type::TEXT)]).await?;
            if fit(&tx.query(&self.publication, &[]).await?)?.is_none() {
                tx.batch(&self.drop_publication).await?;
                tx.batch(&self.create_publication).await?;
            }
            tx.commit().await
        };
        if let Err(trouble) = made.await {
            let message = format!("the log of {} is not published", self.names.outbox);
            // Somebody else makes it this very moment, or drops it.
            let changes = [
                SqlState::DUPLICATE_OBJECT,
                SqlState::INTERNAL_ERROR,
                SqlState::UNDEFINED_OBJECT,
                SqlState::UNIQUE_VIOLATION,
            ];
            if changes.iter().any(|code| trouble.is(code)) {
                let cause = trouble.while_doing("publish it");
                let error = SourceError::new(SourceErrorKind::Unavailable, message);
                return Err(error.with_source(cause).into());
            }
            if !trouble.is(&SqlState::INSUFFICIENT_PRIVILEGE) {
                return Err(trouble);
            }
            let error =
                SourceError::new(SourceErrorKind::Misconfigured, message).with_hint(format!(
                    "let the owner of the table run {}; {}",
                    self.drop_publication, self.create_publication
                ));
            return Err(error.into());
        }
        self.publication(connection).await?.ok_or_else(|| {
            let message = format!("{} was made and is not there", self.names.publication);
            SourceError::new(SourceErrorKind::Unavailable, message).into()
        })
    }

    /// The statement that makes the publication.
    pub(in super::super) fn create_publication(&self) -> &str {
        &self.create_publication
    }
}

/// Of a publication, which one it is, if it is as it should be.
fn fit(rows: &[Row]) -> Result<Option<String>, Trouble> {
    let Some(row) = rows.first() else { return Ok(None) };
    let (id, is_fit): (String, bool) = (row.try_get(0)?, row.try_get(1)?);
    Ok(is_fit.then_some(id))
}
