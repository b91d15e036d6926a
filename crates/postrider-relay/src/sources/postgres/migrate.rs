//! Makes the tables of an outbox in PostgreSQL, and looks at them.

use postrider::schema::postgres::{self as schema, Layout, Replicated};
use postrider::schema::{Difference, Migration, SchemaError, Status, TableName};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::Location;
use super::connection::client;
use super::error::Trouble;
use crate::source::{SourceError, SourceErrorKind};

/// Makes the tables of an outbox, or brings them up to date, and answers which migrations that
/// took. Without a layout it keeps the one it has.
pub async fn migrate(
    location: &Location,
    table: &TableName,
    layout: Option<Layout>,
) -> Result<Vec<&'static Migration>, SourceError> {
    let mut client = connect(location).await?;
    let migrated = schema::migrate(&mut client, table, layout).await;
    migrated.map_err(|error| schema_error(&format!("migrate {location}"), error))
}

/// Changes what becomes of rows that logical replication brings from another server.
pub async fn set_replicated(
    location: &Location,
    table: &TableName,
    replicated: Replicated,
) -> Result<(), SourceError> {
    let mut client = connect(location).await?;
    let changed = schema::set_replicated(&mut client, table, replicated).await;
    changed.map_err(|error| schema_error(&format!("change the trigger in {location}"), error))
}

/// What was migrated, and when.
pub async fn status(location: &Location, table: &TableName) -> Result<Status, SourceError> {
    let client = connect(location).await?;
    let status = schema::status(&client, table).await;
    status.map_err(|error| schema_error(&format!("look at {location}"), error))
}

/// In what the tables differ from what the migrations make.
pub async fn verify(
    location: &Location,
    table: &TableName,
) -> Result<Vec<Difference>, SourceError> {
    let mut client = connect(location).await?;
    let found = schema::verify(&mut client, table).await;
    found.map_err(|error| schema_error(&format!("verify {location}"), error))
}

async fn connect(location: &Location) -> Result<Client, SourceError> {
    client(location).await.map_err(|trouble| trouble.while_doing("connect"))
}

fn schema_error(doing: &str, error: SchemaError) -> SourceError {
    let said = error.to_string();
    let (message, source) = match error {
        SchemaError::Database { source } => (format!("cannot {doing}"), source),
        SchemaError::Migration { source, .. } => (said, source),
        _ => return SourceError::new(SourceErrorKind::Misconfigured, said),
    };
    let error = match source.downcast::<tokio_postgres::Error>() {
        Ok(error) => *error,
        Err(source) => {
            let error = SourceError::new(SourceErrorKind::Misconfigured, message);
            return SourceError { source: Some(source), ..error };
        }
    };
    let hint = error.code().and_then(hint);
    let error = Trouble::Postgres(error).while_doing(doing);
    SourceError { message, hint: hint.map(str::to_owned).or(error.hint), ..error }
}

/// What to do where it is not what a relay would have to do.
fn hint(code: &SqlState) -> Option<&'static str> {
    match *code {
        SqlState::INSUFFICIENT_PRIVILEGE => Some(
            "migrate as a role that may create tables in the schema; to verify, it must be \
             allowed to create a schema as well",
        ),
        SqlState::DUPLICATE_TABLE | SqlState::DUPLICATE_OBJECT | SqlState::DUPLICATE_FUNCTION => {
            Some(
                "the name is taken by something else; choose another --table, or relay the table \
                 that is there with --existing",
            )
        }
        SqlState::INVALID_SCHEMA_NAME => {
            Some("create the schema first, or name another in the URL: options=-csearch_path=app")
        }
        _ => None,
    }
}
