//! Everything that must pass.
//!
//! Format and lints come first, in order, up to the first that fails. Then everything is built with
//! all features, once, and the test binaries run side by side: most of them wait for servers more than
//! they compute. The lints of other sets of features build some dependencies anew; they run beside the
//! tests, one after another. The servers come before all of it; tests find them by the environment that
//! `.cargo/config.toml` gives them.

mod artifacts;
mod jobs;

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::commands::{Failed, cargo, run, text};
use crate::service::Service as _;
use crate::services::{self, postgres::OTHERS};
use artifacts::TestBinary;
use jobs::Job;

const FORMAT: &str = "fmt --all --check";
const LINTS: &str = "clippy --workspace --all-targets --all-features -- -D warnings";
const DOCTESTS: &str = "test --workspace --all-features --no-fail-fast --doc";

/// Test binaries that take long, the longest first: what begins last must not take long.
const LONGEST: [&str; 10] = [
    "pipelines",
    "brokers",
    "kafka",
    "redis",
    "postgres_log",
    "postgres_relays",
    "postgres_faults",
    "compile_fail",
    "chaos",
    "consumers",
];

/// What runs against other versions of PostgreSQL, too: a test binary, and the cases of it. A case that
/// starts a server of its own starts Debian's there as well.
const OTHER_VERSIONS: [(&str, &[&str]); 3] = [
    (
        "postgres_log",
        &["contents", "log_only", "modes", "outboxes", "replicated", "slots", "synced", "tables"],
    ),
    ("sources", &["postgres_cdc"]),
    ("audit", &["findings", "leftovers", "tables"]),
];

/// What `cargo demo` builds.
const DEMO: &str =
    "clippy --package postrider-cli --no-default-features --features demo -- -D warnings";

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

/// Runs everything.
pub(crate) fn run_steps() -> Result<(), Failed> {
    let started = Instant::now();
    let mut spent = Vec::new();
    let mut step = |name: &str, run: &mut dyn FnMut() -> Result<(), Failed>| {
        println!("\n{name}");
        let began = Instant::now();
        let done = run();
        spent.push((name.to_owned(), began.elapsed()));
        done
    };
    step("servers", &mut services::up)?;
    step("format", &mut || run(&mut cargo_step(FORMAT)))?;
    step("lints", &mut || run(&mut cargo_step(LINTS)))?;
    let mut binaries = Vec::new();
    step("build", &mut || {
        binaries = artifacts::build_tests()?;
        Ok(())
    })?;
    let tests = test_jobs(&binaries)?;
    let (tests_count, began) = (tests.len(), Instant::now());
    println!("\ntests and the lints of other features");
    let finished = jobs::run_all(tests, lints_of_other_features());
    spent.push(("tests and the lints of other features".to_owned(), began.elapsed()));
    jobs::print_summary(&spent, &finished);
    jobs::first_failure(&finished)?;
    let elapsed = started.elapsed().as_secs();
    println!(
        "\nall passed: {tests_count} test runs and {} others, in {elapsed} s",
        finished.len() - tests_count
    );
    Ok(())
}

/// The test binaries, doctests, and some of the binaries once more for each other version of PostgreSQL.
fn test_jobs(binaries: &[TestBinary]) -> Result<Vec<Job>, Failed> {
    let place = |binary: &&TestBinary| {
        LONGEST.iter().position(|name| *name == binary.name).unwrap_or(LONGEST.len())
    };
    let mut ordered: Vec<&TestBinary> = binaries.iter().collect();
    ordered.sort_by_key(place);
    let mut jobs: Vec<Job> =
        ordered.iter().map(|binary| Job::new(binary.title(), binary.command())).collect();
    for version in OTHERS {
        for (name, cases) in OTHER_VERSIONS {
            let binary = binaries.iter().find(|binary| binary.name == name);
            let binary = binary.ok_or_else(|| Failed(format!("there is no test binary {name}")))?;
            let mut command = binary.command();
            command.args(cases).env("POSTRIDER_TEST_POSTGRES", version.url());
            jobs.push(Job::new(format!("{} on {}", binary.title(), version.name()), command));
        }
    }
    jobs.push(Job::new("doctests".to_owned(), cargo_step(DOCTESTS)));
    Ok(jobs)
}

/// They need cargo's lock on what is built, so they run one after another.
fn lints_of_other_features() -> Vec<Job> {
    let mut steps = vec![cargo_step(DEMO)];
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
    steps.into_iter().map(|step| Job::new(text(&step), step)).collect()
}

/// Holds what we depend on against `deny.toml`, by cargo-deny.
pub(crate) fn deny() -> Result<(), Failed> {
    let is_there =
        cargo_step("deny --version").stderr(Stdio::null()).stdout(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        let message = "cargo-deny is not installed; run `cargo install cargo-deny --locked`";
        return Err(Failed(message.to_owned()));
    }
    run(&mut cargo_step("deny --all-features check"))
}

fn cargo_step(args: &str) -> Command {
    let mut step = cargo();
    step.args(args.split_whitespace());
    step
}
