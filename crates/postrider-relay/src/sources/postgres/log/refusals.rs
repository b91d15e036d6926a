//! Servers and outboxes whose log cannot be read.

use tokio_postgres::types::Type;

use super::LogQueries;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::connection::{Connection, is_so};
use crate::sources::postgres::error::Trouble;

/// What can be decoded is in the log at this level only.
const WAL_LEVEL: &str = "SELECT current_setting('wal_level')";

impl LogQueries {
    /// Refuses a server whose log cannot be decoded.
    pub(in super::super) async fn refuse_level(
        &self,
        connection: &Connection,
    ) -> Result<(), Trouble> {
        let rows = connection.query(WAL_LEVEL, &[]).await?;
        let level: &str = match rows.first() {
            Some(row) => row.try_get(0)?,
            None => "",
        };
        if level == "logical" {
            return Ok(());
        }
        let message = format!("the log of the server cannot be read: wal_level is {level}");
        Err(SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint("set wal_level = logical and restart the server; or write mode = \"poll\"")
            .into())
    }

    /// Refuses a server whose commits would wait for a pipeline, which waits for its own.
    pub(in super::super) async fn refuse_standbys(
        &self,
        connection: &Connection,
    ) -> Result<(), Trouble> {
        let sql = "SELECT current_setting('synchronous_standby_names') LIKE '%*%'";
        if !is_so(&connection.query(sql, &[]).await?)? {
            return Ok(());
        }
        let message = "synchronous_standby_names has a *, so that commits would wait for the \
                       pipeline to read them, and the pipeline for its own commits";
        Err(SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint("name the standbys in synchronous_standby_names; or write mode = \"poll\"")
            .into())
    }

    /// Refuses columns that the server computes: the log does not have them.
    pub(in super::super) async fn refuse_generated(
        &self,
        connection: &Connection,
        columns: &[&str],
    ) -> Result<(), Trouble> {
        let rows = connection.query(&self.generated, &[(&columns, Type::TEXT_ARRAY)]).await?;
        let generated: Option<&str> = match rows.first() {
            Some(row) => row.try_get(0)?,
            None => None,
        };
        let Some(generated) = generated else { return Ok(()) };
        let outbox = &self.names.outbox;
        let message = format!("the log of {outbox} does not have what is computed: {generated}");
        Err(SourceError::new(SourceErrorKind::Misconfigured, message)
            .with_hint(
                "let writers fill such a column (ALTER TABLE … ALTER COLUMN … DROP EXPRESSION); or \
                 write mode = \"poll\"",
            )
            .into())
    }
}
