//! The crates that this project is made of, as cargo knows them.

use std::path::Path;
use std::process::Command;

use semver::Version;
use serde::{Deserialize, Deserializer, de};

use crate::policy::Policy;
use crate::text_of;

/// One version of a crate.
#[derive(Clone, Debug)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: Version,
    /// Where it comes from; `None` is this workspace.
    pub(crate) source: Option<String>,
}

/// A crate that is built, and the licence it declares.
#[derive(Debug, Deserialize)]
pub(crate) struct Licensed {
    pub(crate) name: String,
    #[serde(deserialize_with = "version")]
    pub(crate) version: Version,
    pub(crate) license: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    #[serde(deserialize_with = "version")]
    version: Version,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Licensed>,
}

fn version<'de, D: Deserializer<'de>>(from: D) -> Result<Version, D::Error> {
    String::deserialize(from)?.parse().map_err(de::Error::custom)
}

/// All that a lock file names, for every platform.
pub(crate) fn locked(path: &Path) -> Result<Vec<Crate>, String> {
    let lock: Lock =
        toml::from_str(&text_of(path)?).map_err(|it| format!("{}: {it}", path.display()))?;
    let crates = lock.package.into_iter();
    Ok(crates
        .map(|LockedPackage { name, version, source }| Crate { name, version, source })
        .collect())
}

/// What is built for the platforms of the policy, with the licences.
pub(crate) fn licences(root: &Path, policy: &Policy) -> Result<Vec<Licensed>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["metadata", "--format-version", "1", "--locked"]);
    if policy.graph.all_features {
        command.arg("--all-features");
    }
    for target in &policy.graph.targets {
        command.args(["--filter-platform", target]);
    }
    let output = command.output().map_err(|it| format!("cannot run cargo: {it}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`cargo metadata` failed:\n{said}"));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout)
        .map_err(|it| format!("cannot understand what `cargo metadata` says: {it}"))?;
    Ok(metadata.packages)
}
