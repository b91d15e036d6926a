//! What proves Postrider: conformance suites for every backend, a deterministic simulation of
//! the pipeline, and the checker of histories. Never linked into a program.

pub mod harnesses;
pub mod history;
pub mod simulation;
pub mod suites;
