//! Makes the tables of an outbox in SQLite.

use postrider::schema::{self, Difference, Migration, SchemaError, Status, TableName};
use rusqlite::Connection;

use super::error::source_error;
use super::files::refuse_mixture;
use super::open::open;
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
        if let Ok(database) = std::fs::canonicalize(location.path()) {
            refuse_mixture(&location, &database)?;
        }
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

/// What was migrated, and when. Fails if there is no database file.
pub async fn status(location: Location, table: TableName) -> Result<Status, SourceError> {
    look(location, table, schema::sqlite::status).await
}

/// In what the tables differ from what the migrations make. Fails if there is no database file.
pub async fn verify(location: Location, table: TableName) -> Result<Vec<Difference>, SourceError> {
    look(location, table, schema::sqlite::verify).await
}

async fn look<T: Send + 'static>(
    location: Location,
    table: TableName,
    at: fn(&Connection, &TableName) -> Result<T, SchemaError>,
) -> Result<T, SourceError> {
    let looked = tokio::task::spawn_blocking(move || {
        let conn = open(&location, &table, BUSY_TIMEOUT)?;
        at(&conn, &table).map_err(|err| migration_error(&location, err))
    });
    looked.await.unwrap_or_else(|err| {
        let message = "cannot look at the tables: it was broken off";
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
