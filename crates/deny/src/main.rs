//! `cargo xtask deny`: may this project depend on what it depends on?
//!
//! It holds `Cargo.lock` and the licences that crates declare against `deny.toml`, whose format is
//! cargo-deny's, and against `advisories.toml`, which is kept by hand. So it needs neither another
//! program nor a network; a checkout of RustSec's whole database is looked through on request.
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a command talks to its user")]

mod advisories;
mod checks;
mod crates;
mod policy;
mod yanked;

use std::path::Path;
use std::process::ExitCode;

use advisories::Advisories;
use crates::{licences, locked};
use policy::Policy;

const USAGE: &str = "\
usage: cargo xtask deny [--database FOLDER]

  --database FOLDER  look through a checkout of RustSec's advisory-db, too";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let from = match args.as_slice() {
        [] => None,
        ["--database", folder] => Some(Path::new(*folder)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(from) {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in &problems {
                eprintln!("{problem}");
            }
            eprintln!("\nerror: {} found; deny.toml says what is allowed", count(problems.len()));
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Makes all checks, says what was looked at, and answers what is wrong.
fn run(database: Option<&Path>) -> Result<Vec<String>, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).expect("this is crates/deny");
    let policy = Policy::read(&root.join("deny.toml"))?;
    let mut advisories = Advisories::read(&here.join("advisories.toml"))?;
    if let Some(folder) = database {
        advisories.add_checkout(folder)?;
    }
    let locked = locked(&root.join("Cargo.lock"))?;
    let licences = licences(root, &policy)?;

    let mut problems = checks::sources(&locked);
    problems.extend(checks::licences(&policy, &licences));
    problems.extend(checks::bans(&policy, &locked));
    problems.extend(checks::advisories(&policy, &advisories, &locked));
    println!("{} crates are locked, {} of them are built here", locked.len(), licences.len());
    println!("{} advisories of RustSec are known here", advisories.list.len());
    match yanked::yanked(&locked) {
        Some(yanked) => problems.extend(yanked.iter().map(|it| checks::is_yanked(it))),
        None => println!("not run: versions that were withdrawn: cargo has no index here"),
    }
    Ok(problems)
}

/// A file of the repository.
fn text_of(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|it| format!("cannot read {}: {it}", path.display()))
}

fn count(problems: usize) -> String {
    format!("{problems} {}", if problems == 1 { "problem" } else { "problems" })
}
