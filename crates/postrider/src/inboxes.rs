//! The inbox in each database client. A new client is one line here and one file.

#[cfg(feature = "rusqlite")]
mod rusqlite;
#[cfg(feature = "sqlx-sqlite")]
mod sqlx_sqlite;
