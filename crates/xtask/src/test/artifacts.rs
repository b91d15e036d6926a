//! Builds the tests, and finds their binaries in what cargo says about it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::commands::{Failed, cargo, text};

const BUILD: &str =
    "test --workspace --all-features --no-run --message-format=json-render-diagnostics";

/// A test binary that was built.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TestBinary {
    /// The name of its target: that of the file for an integration test, that of the crate otherwise.
    pub(super) name: String,
    /// The folder of its package, in which it runs.
    package: PathBuf,
    program: PathBuf,
}

impl TestBinary {
    /// Its package and its name.
    pub(super) fn title(&self) -> String {
        let package = self.package.file_name().unwrap_or_default().to_string_lossy();
        format!("{package}: {}", self.name)
    }

    /// Runs all of its cases as `cargo test` would.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        // Some cases panic on purpose, and their traces would bury the others' messages.
        command.env("RUST_BACKTRACE", "0");
        command
    }
}

/// Builds all tests with all features.
pub(super) fn build_tests() -> Result<Vec<TestBinary>, Failed> {
    let mut build = cargo();
    build.args(BUILD.split_whitespace()).stdout(Stdio::piped());
    let text = text(&build);
    let cannot = |error: std::io::Error| Failed(format!("cannot run `{text}`: {error}"));
    let mut running = build.spawn().map_err(cannot)?;
    let output = running.stdout.take().expect("the output is piped");
    let mut binaries = Vec::new();
    for line in BufReader::new(output).lines() {
        binaries.extend(test_binary(&line.map_err(cannot)?));
    }
    let status = running.wait().map_err(cannot)?;
    if !status.success() {
        return Err(Failed(format!("`{text}` failed ({status})")));
    }
    if binaries.is_empty() {
        return Err(Failed(format!("`{text}` named no test binary")));
    }
    Ok(binaries)
}

/// The test binary that a line of cargo's JSON tells of, if it tells of one.
fn test_binary(line: &str) -> Option<TestBinary> {
    let is_test = line.contains(r#""reason":"compiler-artifact""#) && {
        let (_, profile) = line.split_once(r#""profile":{"#)?;
        profile.split_once('}')?.0.contains(r#""test":true"#)
    };
    let program = PathBuf::from(string_after(line, r#""executable":""#).filter(|_| is_test)?);
    let manifest = string_after(line, r#""manifest_path":""#)?;
    let package = Path::new(&manifest).parent()?.to_owned();
    let (_, target) = line.split_once(r#""target":{"#)?;
    let name = string_after(target, r#""name":""#)?;
    Some(TestBinary { name, package, program })
}

/// The string that begins after a mark. Only quotes and backslashes are escaped in a path.
fn string_after(text: &str, mark: &str) -> Option<String> {
    let (_, rest) = text.split_once(mark)?;
    let mut string = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(string),
            '\\' => string.push(chars.next()?),
            char => string.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_binaries_are_found_and_nothing_else() {
        let line = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/a \"b\"/x/Cargo.toml","target":{{"kind":["test"],"name":"sources","test":true}},"profile":{{"opt_level":"0","test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = test_binary(&line(true, r#""/t/sources-1""#)).unwrap();
        assert_eq!(found.name, "sources");
        assert_eq!(found.package, Path::new("/a \"b\"/x"));
        assert_eq!(found.program, Path::new("/t/sources-1"));
        assert_eq!(found.title(), "x: sources");
        assert_eq!(test_binary(&line(false, r#""/t/postrider""#)), None, "an example or a program");
        assert_eq!(test_binary(&line(true, "null")), None, "a library");
        assert_eq!(test_binary(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
