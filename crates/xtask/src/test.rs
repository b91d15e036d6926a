//! Everything that must pass, in order, up to the first step that fails.
//!
//! Most of the time goes into building dependencies, and each other set of features builds some
//! of them anew. So all that can be is done with all features, and what needs a set of its own
//! comes last and is only checked, not built. The servers come first; tests find them by the
//! environment that `.cargo/config.toml` gives them.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::commands::{Failed, cargo, run, text};
use crate::service::Service as _;
use crate::services::{self, postgres::OTHERS};

const WHOLE: [&str; 5] = [
    "fmt --all --check",
    "clippy --workspace --all-targets --all-features -- -D warnings",
    // Doctests too. One failure hides no other.
    "test --workspace --all-features --no-fail-fast",
    DENY,
    // What `cargo demo` builds.
    "clippy --package postrider-cli --no-default-features --features demo -- -D warnings",
];

/// What we depend on, held against `deny.toml`. With the features of the tests nothing is built anew for it.
const DENY: &str = "run --quiet --all-features --bin deny --";

/// What runs against other versions of PostgreSQL, too. A case that starts a server of its own starts
/// Debian's there as well.
const OTHER_VERSIONS: [&str; 3] = [
    "test --workspace --all-features --test audit -- findings leftovers tables",
    "test --workspace --all-features --test sources -- postgres_cdc",
    "test --workspace --all-features --test postgres_log -- contents log_only modes outboxes slots \
     tables",
];

/// The features that a user may want alone. None of them is one, too.
const ALONE: [(&str, &[&str]); 3] = [
    (
        "postrider",
        &[
            "",
            "derive",
            "diesel-async",
            "opentelemetry",
            "rusqlite",
            "sqlx-postgres",
            "sqlx-sqlite",
            "testing",
            "tokio-postgres",
        ],
    ),
    (
        "postrider-consumer",
        &["", "axum", "kafka", "nats", "rabbitmq", "redis", "sqlx-postgres", "sqlx-sqlite"],
    ),
    (
        "postrider-relay",
        &["", "http", "kafka", "nats", "opentelemetry", "postgres", "rabbitmq", "redis", "sqlite"],
    ),
];

/// Runs all steps.
pub(crate) fn run_steps() -> Result<(), Failed> {
    let started = Instant::now();
    let mut steps = steps();
    let count = 1 + steps.len();
    println!("\n[1/{count}] services up");
    services::up()?;
    for (index, step) in steps.iter_mut().enumerate() {
        println!("\n[{}/{count}] {}", index + 2, text(step));
        if step.get_args().next().is_some_and(|subcommand| subcommand == "test") {
            run_tests(step)?;
        } else {
            run(step)?;
        }
    }
    println!("\nall {count} steps passed in {} s", started.elapsed().as_secs());
    Ok(())
}

/// Runs tests. What failed is said once more at the end: thousands of lines may stand in between.
fn run_tests(step: &mut Command) -> Result<(), Failed> {
    let text = text(step);
    // Some cases panic on purpose, and their traces would bury the others' messages.
    step.env("RUST_BACKTRACE", "0").stdout(Stdio::piped());
    let cannot = |error| Failed(format!("cannot run `{text}`: {error}"));
    let mut running = step.spawn().map_err(cannot)?;
    let mut failures = Failures::default();
    let output = running.stdout.take().expect("the output is piped");
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line.map_err(cannot)?).into_owned();
        println!("{line}");
        failures.see(line);
    }
    let status = running.wait().map_err(cannot)?;
    if status.success() {
        return Ok(());
    }
    for line in &failures.seen {
        println!("{line}");
    }
    Err(Failed(format!("`{text}` failed ({status})")))
}

/// What the test binaries said of the tests that failed.
#[derive(Default)]
struct Failures {
    seen: Vec<String>,
    telling: bool,
}

impl Failures {
    /// Takes the next line that was printed, and keeps it if it tells of a failure.
    fn see(&mut self, line: String) {
        self.telling |= line == "failures:";
        if self.telling {
            self.telling = !line.starts_with("test result:");
            self.seen.push(line);
        }
    }
}

/// Runs that one alone.
pub(crate) fn deny(options: &[&str]) -> Result<(), Failed> {
    run(cargo().args(DENY.split_whitespace()).args(options))
}

fn steps() -> Vec<Command> {
    let mut steps = Vec::new();
    let step = |args: &str| {
        let mut step = cargo();
        step.args(args.split_whitespace());
        step
    };
    steps.extend(WHOLE.map(step));
    for version in OTHERS {
        for mut step in OTHER_VERSIONS.map(step) {
            step.env("POSTRIDER_TEST_POSTGRES", version.url());
            steps.push(step);
        }
    }
    for (package, features) in ALONE {
        for feature in features {
            let mut step = cargo();
            step.args(["clippy", "--package", package, "--no-default-features"]);
            if !feature.is_empty() {
                step.args(["--features", feature]);
            }
            step.args(["--", "-D", "warnings"]);
            steps.push(step);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_kept_and_nothing_else() {
        let printed = "running 2 tests\ntest one ... ok\ntest two ... FAILED\n\nfailures:\n\n\
                       ---- two ----\ntwo is not one\n\nfailures:\n    two\n\n\
                       test result: FAILED. 1 passed; 1 failed\n\nrunning 1 test\ntest three ... ok\n\n\
                       test result: ok. 1 passed";
        let mut failures = Failures::default();
        for line in printed.lines() {
            failures.see(line.to_owned());
        }
        assert_eq!(failures.seen.first().map(String::as_str), Some("failures:"));
        assert!(failures.seen.iter().any(|line| line == "two is not one"), "{:?}", failures.seen);
        assert_eq!(
            failures.seen.last().map(String::as_str),
            Some("test result: FAILED. 1 passed; 1 failed")
        );
    }
}
