//! What makes each backend ready for a suite: one file per backend.
//!
//! A new backend is a file here and a line in `tests/sources.rs`, `tests/sinks.rs` or
//! `tests/writers.rs`.

pub mod brokers;
#[cfg(feature = "postgres")]
pub mod consumers;
pub mod sinks;
pub mod sources;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod writers;
