//! The inbox in each database client. A new client is one line here and one file.

#[cfg(feature = "diesel-async")]
mod diesel_async;
#[cfg(feature = "rusqlite")]
mod rusqlite;
#[cfg(feature = "sqlx-postgres")]
mod sqlx_postgres;
#[cfg(feature = "sqlx-sqlite")]
mod sqlx_sqlite;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;
