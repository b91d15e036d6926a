//! Databases that a consumer can work with. A new client is one line here and one file.

#[cfg(any(feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
mod sqlx;
