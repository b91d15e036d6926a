//! The outbox in each database client. A new client is one line here and one file.

#[cfg(feature = "rusqlite")]
pub(crate) mod rusqlite;
#[cfg(any(feature = "rusqlite", feature = "sqlx-sqlite"))]
pub(crate) mod sqlite;
#[cfg(feature = "sqlx-sqlite")]
pub(crate) mod sqlx_sqlite;
