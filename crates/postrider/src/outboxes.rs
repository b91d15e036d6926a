//! The outbox in each database client. A new client is one line here and one file.

#[cfg(feature = "diesel-async")]
pub(crate) mod diesel_async;
#[cfg(any(feature = "diesel-async", feature = "sqlx-postgres", feature = "tokio-postgres"))]
pub(crate) mod postgres;
#[cfg(feature = "rusqlite")]
pub(crate) mod rusqlite;
#[cfg(any(feature = "rusqlite", feature = "sqlx-sqlite"))]
pub(crate) mod sqlite;
#[cfg(feature = "sqlx-postgres")]
pub(crate) mod sqlx_postgres;
#[cfg(feature = "sqlx-sqlite")]
pub(crate) mod sqlx_sqlite;
#[cfg(feature = "tokio-postgres")]
pub(crate) mod tokio_postgres;
