//! The tables of an outbox: made, looked at and compared, by the database's URL.

#![cfg_attr(
    not(all(feature = "postgres", feature = "sqlite")),
    allow(unused_imports, unused_variables, reason = "not every database needs all of it")
)]

use postrider::schema::postgres::{Layout, Replicated, RolePrefix};
use postrider::schema::{self, Difference, Migration, Status, TableName};

use super::Backend;
#[cfg(feature = "postgres")]
use super::postgres;
#[cfg(feature = "sqlite")]
use super::sqlite;
use crate::source::{SourceError, SourceErrorKind};

/// Makes the tables of an outbox, or brings them up to date. Makes a database file that does not
/// exist. Answers the migrations that were needed. `layout` is for a new outbox; `None` means as
/// it is, and plain if it is new.
pub async fn migrate(
    url: &str,
    table: &TableName,
    layout: Option<Layout>,
) -> Result<Vec<&'static Migration>, SourceError> {
    match Backend::of(url)? {
        #[cfg(feature = "postgres")]
        Backend::Postgres(location) => postgres::migrate(&location, table, layout).await,
        #[cfg(feature = "sqlite")]
        Backend::Sqlite(location) => {
            check_plain(layout)?;
            sqlite::migrate(location, table.clone()).await
        }
    }
}

/// Changes what becomes of rows that logical replication brings into an outbox that was migrated.
pub async fn set_replicated(
    url: &str,
    table: &TableName,
    replicated: Replicated,
) -> Result<(), SourceError> {
    match Backend::of(url)? {
        #[cfg(feature = "postgres")]
        Backend::Postgres(location) => postgres::set_replicated(&location, table, replicated).await,
        #[cfg(feature = "sqlite")]
        Backend::Sqlite(_) => Err(no_replication()),
    }
}

/// The statements of [`set_replicated`], without looking at the database.
pub fn replicated_sql(
    url: &str,
    table: &TableName,
    replicated: Replicated,
) -> Result<String, SourceError> {
    match Backend::of(url)? {
        #[cfg(feature = "postgres")]
        Backend::Postgres(_) => Ok(schema::postgres::replicated_sql(table, replicated)),
        #[cfg(feature = "sqlite")]
        Backend::Sqlite(_) => Err(no_replication()),
    }
}

#[cfg(feature = "sqlite")]
fn no_replication() -> SourceError {
    let message = "SQLite has no logical replication";
    SourceError::new(SourceErrorKind::Misconfigured, message).with_hint("leave --replicated out")
}

/// All migrations as one script for an empty database, without looking at it.
pub fn sql(url: &str, table: &TableName, layout: Option<Layout>) -> Result<String, SourceError> {
    match Backend::of(url)? {
        #[cfg(feature = "postgres")]
        Backend::Postgres(_) => Ok(schema::postgres::sql(table, layout.unwrap_or_default())),
        #[cfg(feature = "sqlite")]
        Backend::Sqlite(_) => {
            check_plain(layout)?;
            Ok(schema::sqlite::sql(table))
        }
    }
}

/// What was migrated, and when.
pub async fn status(url: &str, table: &TableName) -> Result<Status, SourceError> {
    match Backend::of(url)? {
        #[cfg(feature = "postgres")]
        Backend::Postgres(location) => postgres::status(&location, table).await,
        #[cfg(feature = "sqlite")]
        Backend::Sqlite(location) => sqlite::status(location, table.clone()).await,
    }
}

/// In what the tables differ from what the migrations make.
pub async fn verify(url: &str, table: &TableName) -> Result<Vec<Difference>, SourceError> {
    match Backend::of(url)? {
        #[cfg(feature = "postgres")]
        Backend::Postgres(location) => postgres::verify(&location, table).await,
        #[cfg(feature = "sqlite")]
        Backend::Sqlite(location) => sqlite::verify(location, table.clone()).await,
    }
}

/// The SQL of roles with no more rights than their work needs.
pub fn roles(url: &str, table: &TableName, prefix: &RolePrefix) -> Result<String, SourceError> {
    match Backend::of(url)? {
        #[cfg(feature = "postgres")]
        Backend::Postgres(_) => Ok(schema::postgres::roles(table, prefix)),
        #[cfg(feature = "sqlite")]
        Backend::Sqlite(_) => {
            let message = "SQLite has no roles";
            Err(SourceError::new(SourceErrorKind::Misconfigured, message)
                .with_hint("give the file to those who need it, by its permissions"))
        }
    }
}

#[cfg(feature = "sqlite")]
fn check_plain(layout: Option<Layout>) -> Result<(), SourceError> {
    let what = match layout {
        None | Some(Layout::Plain) => return Ok(()),
        Some(Layout::Partitioned { .. }) => "SQLite has no partitions",
        Some(Layout::Existing) => {
            "a table that is not of our making is relayed from PostgreSQL only"
        }
    };
    Err(SourceError::new(SourceErrorKind::Misconfigured, what)
        .with_hint("leave the layout out: one plain table is made"))
}
