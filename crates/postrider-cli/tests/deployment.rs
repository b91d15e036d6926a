//! The files in `deploy` and the runbooks speak of what there is: alerts are tested by promtool,
//! configuration is read by the real parser, and commands and flags are those of the binary.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod support;

#[path = "deployment/alerts.rs"]
mod alerts;
#[path = "deployment/commands.rs"]
mod commands;
#[path = "deployment/places.rs"]
mod places;

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the repository.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents in a folder, by name without extension.
fn documents(folder: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    let names = entries.map(|entry| name(entry.unwrap()));
    names
        .map(|name| {
            let text = read(&format!("{folder}/{name}"));
            (name.strip_suffix(".md").unwrap().to_owned(), text)
        })
        .collect()
}
