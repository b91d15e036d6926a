//! The inbox in each database client. A new client is one line here and one file.

#[cfg(any(
    feature = "diesel-async",
    feature = "rusqlite",
    feature = "sqlx-postgres",
    feature = "sqlx-sqlite",
    feature = "tokio-postgres"
))]
mod answers;
#[cfg(feature = "diesel-async")]
mod diesel_async;
#[cfg(any(feature = "diesel-async", feature = "sqlx-postgres", feature = "tokio-postgres"))]
mod postgres;
#[cfg(feature = "rusqlite")]
mod rusqlite;
#[cfg(any(feature = "rusqlite", feature = "sqlx-sqlite"))]
mod sqlite;
#[cfg(feature = "sqlx-postgres")]
mod sqlx_postgres;
#[cfg(feature = "sqlx-sqlite")]
mod sqlx_sqlite;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;
