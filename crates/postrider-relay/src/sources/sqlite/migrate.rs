//! Makes the tables of an outbox in SQLite.

use postrider::schema::{self, Migration, SchemaError, TableName};
use rusqlite::Connection;

use super::error::source_error;
use super::{BUSY_TIMEOUT, Location};
use crate::source::{SourceError, SourceErrorKind};

/// Makes the tables of an outbox, or brings them up to date, and answers which migrations that
/// took. Makes the database file if there is none.
pub async fn migrate(
    location: Location,
    table: TableName,
) -> Result<Vec<&'static Migration>, SourceError> {
    let migrated = tokio::task::spawn_blocking(move || {
        let doing = format!("open {location}");
        let mut conn =
            Connection::open(location.path()).map_err(|err| source_error(&doing, err))?;
        conn.busy_timeout(BUSY_TIMEOUT).map_err(|err| source_error(&doing, err))?;
        schema::sqlite::migrate(&mut conn, &table).map_err(|err| migration_error(&location, err))
    });
    migrated.await.unwrap_or_else(|err| {
        let message = "cannot migrate: it was broken off";
        Err(SourceError::new(SourceErrorKind::Unavailable, message).with_source(err))
    })
}

fn migration_error(location: &Location, err: SchemaError) -> SourceError {
    match err {
        SchemaError::Database { source } => match source.downcast::<rusqlite::Error>() {
            Ok(err) => source_error(&format!("migrate {location}"), *err),
            Err(source) => SourceError {
                source: Some(source),
                ..SourceError::new(
                    SourceErrorKind::Unavailable,
                    format!("cannot migrate {location}"),
                )
            },
        },
        err => SourceError::new(SourceErrorKind::Misconfigured, err.to_string()).with_source(err),
    }
}
