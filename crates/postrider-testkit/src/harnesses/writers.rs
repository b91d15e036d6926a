//! Database clients for the writer suite and the inbox suite.

#[cfg(feature = "postgres")]
pub mod diesel_async;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod inbox;
#[cfg(feature = "postgres")]
pub mod messages;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
pub mod rusqlite;
#[cfg(feature = "postgres")]
pub mod schema;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "postgres")]
pub mod sqlx_postgres;
#[cfg(feature = "sqlite")]
pub mod sqlx_sqlite;
#[cfg(feature = "postgres")]
pub mod tokio_postgres;
