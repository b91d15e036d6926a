//! The benchmarks of Postrider, run by `cargo xtask bench`.
//!
//! Each measures Postrider and a peer in the same run, on the same data, and prints both rates
//! with their ratio, so that a number from another machine can be compared. The figures are kept
//! in `docs/benchmarks.md`. Exits with 1 if a target was missed.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "its results are what it prints")]

mod brokers;
mod consumer;
mod memory;
mod postgres;
mod report;
mod sqlite;

use std::error::Error;
use std::process::ExitCode;

use tempfile::TempDir;

// The system's allocator takes a quarter of the pipeline's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "\
usage: postrider-bench consumer|memory|sqlite
       postrider-bench brokers [kafka|keys|nats|rabbitmq|redelivery|redis]
       postrider-bench brokers keys kafka
       postrider-bench postgres [drain|latency|kept|writers|log|large]";

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let reached = match args.as_slice() {
        ["brokers"] => brokers::run(None),
        ["brokers", "keys"] => brokers::keys::run(false),
        ["brokers", "keys", "kafka"] => brokers::keys::run(true),
        ["brokers", "redelivery"] => brokers::redelivery::run(),
        ["brokers", name] => match brokers::Broker::from_name(name) {
            Some(broker) => brokers::run(Some(broker)),
            None => return not_understood(),
        },
        ["consumer"] => consumer::run(),
        ["memory"] => memory::run(),
        ["postgres"] => postgres::run(None),
        ["postgres", part] => match postgres::Part::from_name(part) {
            Some(part) => postgres::run(Some(part)),
            None => return not_understood(),
        },
        ["sqlite"] => sqlite::run(),
        [memory::CHILD, what, events] => memory::run_child(what, events).map(|()| true),
        [brokers::redelivery::CHILD, file] => brokers::redelivery::run_child(file).map(|()| true),
        [postgres::log::CHILD, url, events] => postgres::log::run_child(url, events).map(|()| true),
        _ => return not_understood(),
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

/// A folder beside this program, on a disk: the system's temporary folder may be in memory, where
/// syncing costs nothing.
fn beside_program() -> Outcome<TempDir> {
    let program = std::env::current_exe()?;
    let beside = program.parent().ok_or("this program is in no folder")?;
    Ok(tempfile::tempdir_in(beside)?)
}

fn not_understood() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
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
