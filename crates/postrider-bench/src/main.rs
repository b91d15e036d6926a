//! The benchmarks of Postrider, run by `cargo xtask bench`.
//!
//! Each measures Postrider and a peer in the same run, on the same data, and prints both rates
//! with their ratio, so that a number from another machine can be compared. Exits with 1 if a
//! target was missed.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "its results are what it prints")]

mod memory;
mod report;
mod sqlite;

use std::error::Error;
use std::process::ExitCode;

// The system's allocator takes a quarter of the pipeline's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: postrider-bench memory|sqlite";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let reached = match args.as_slice() {
        ["memory"] => memory::run(),
        ["sqlite"] => sqlite::run(),
        [memory::CHILD, what, events] => memory::run_child(what, events).map(|()| true),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match reached {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
