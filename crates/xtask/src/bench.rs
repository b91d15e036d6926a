//! Measures against the numbers that the project has set itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::commands::{Failed, cargo, root, run, text};
use crate::services;

/// From a fresh clone to the demo's table.
const DEMO_MAX: Duration = Duration::from_secs(240);
/// What runs the demo in the clone: the README's first command, with a last line to check.
const DEMO_ARGS: [&str; 4] = ["demo", "--json", "--seed", "7"];

/// Which benchmarks to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    Brokers,
    Consumer,
    Demo,
    Memory,
    Postgres,
    Sqlite,
}

impl Which {
    pub(crate) fn parse(args: &[&str]) -> Option<Self> {
        match args {
            [] | ["all"] => Some(Self::All),
            ["brokers"] => Some(Self::Brokers),
            ["consumer"] => Some(Self::Consumer),
            ["demo"] => Some(Self::Demo),
            ["memory"] => Some(Self::Memory),
            ["postgres"] => Some(Self::Postgres),
            ["sqlite"] => Some(Self::Sqlite),
            _ => None,
        }
    }
}

/// Runs benchmarks, all that were asked for even if one misses its target.
pub(crate) fn run_benches(which: Which) -> Result<(), Failed> {
    let mut missed = Vec::new();
    for (name, its) in [
        ("memory", Which::Memory),
        ("sqlite", Which::Sqlite),
        ("postgres", Which::Postgres),
        ("brokers", Which::Brokers),
        ("consumer", Which::Consumer),
    ] {
        if which != its && which != Which::All {
            continue;
        }
        if matches!(its, Which::Brokers | Which::Consumer) {
            services::up()?;
        }
        missed.extend(program(name).err());
    }
    if which == Which::Demo || which == Which::All {
        missed.extend(demo().err());
    }
    let missed: Vec<String> = missed.into_iter().map(|Failed(message)| message).collect();
    if missed.is_empty() { Ok(()) } else { Err(Failed(missed.join("\n       "))) }
}

fn program(name: &str) -> Result<(), Failed> {
    run(cargo().args(["run", "--quiet", "--release", "-p", "postrider-bench", "--", name]))
}

/// A folder that is gone when this is.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Failed> {
        let path = std::env::temp_dir().join(format!("postrider-bench-{}", std::process::id()));
        fs::create_dir(&path)
            .map_err(|error| Failed(format!("cannot make {}: {error}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// Clones the last commit, builds the demo from nothing and runs it.
fn demo() -> Result<(), Failed> {
    let folder = Folder::new()?;
    let clone = folder.0.join("postrider");
    println!("\nfrom a fresh clone of the last commit to the demo's table, build included");
    let started = Instant::now();
    run(Command::new("git").args(["clone", "--quiet"]).arg(root()).arg(&clone))?;
    let last_line = run_demo(&clone)?;
    let (seconds, target) = (started.elapsed().as_secs_f64(), DEMO_MAX.as_secs());
    println!("{last_line}");
    let ratio = seconds / DEMO_MAX.as_secs_f64();
    let verdict = if ratio < 1.0 { "reached" } else { "MISSED" };
    println!("  {seconds:.0} s, target < {target} s: {verdict} ({ratio:.2} of it)");
    if ratio < 1.0 {
        return Ok(());
    }
    Err(Failed(format!("the demo took {seconds:.0} s from a fresh clone")))
}

/// Runs the demo in a checkout; answers its last line. It fails if Postrider's column is not
/// clean.
fn run_demo(checkout: &Path) -> Result<String, Failed> {
    let mut command = cargo();
    // Nothing that is built already may be used, wherever this user keeps it.
    command.current_dir(checkout).env("CARGO_TARGET_DIR", checkout.join("target"));
    command.args(DEMO_ARGS).stderr(Stdio::inherit());
    let text = text(&command);
    let output =
        command.output().map_err(|error| Failed(format!("cannot run `{text}`: {error}")))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(Failed(format!("`{text}` failed ({}): {}", output.status, stdout.trim())));
    }
    let is_table = |line: &&str| line.contains("\"naive\":") && line.contains("\"postrider\":");
    let last_line = stdout.lines().last().filter(is_table);
    last_line
        .map(ToOwned::to_owned)
        .ok_or_else(|| Failed(format!("`{text}` did not end with its table as JSON")))
}
