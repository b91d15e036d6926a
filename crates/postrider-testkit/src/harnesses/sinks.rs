//! Targets for the sink suite.

pub mod file;
#[cfg(feature = "http")]
pub mod http;
mod json_lines;
pub mod memory;
pub mod stdout;
