//! What proves Postrider: conformance suites for every backend, a deterministic simulation of
//! the pipeline, the checker of histories, and real servers with faults. Never linked into a
//! program.

#[cfg(all(feature = "http", feature = "postgres"))]
pub mod chaos;
pub mod harnesses;
pub mod history;
pub mod proxy;
pub mod servers;
pub mod simulation;
pub mod suites;
