//! Outboxes for the source suite.

pub mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;
