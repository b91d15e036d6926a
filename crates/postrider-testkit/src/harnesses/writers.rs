//! Database clients for the writer suite.

pub mod rusqlite;
mod sqlite;
pub mod sqlx_sqlite;
