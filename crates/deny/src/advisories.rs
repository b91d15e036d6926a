//! Advisories of RustSec: those that are kept by hand in `advisories.toml`, since the database itself
//! can be had from a git host alone, and those of a checkout of it.

use std::fs;
use std::path::{Path, PathBuf};

use semver::{Version, VersionReq};
use serde::{Deserialize, Deserializer, de};

use crate::text_of;

/// What is known.
#[derive(Debug, Deserialize)]
pub(crate) struct Advisories {
    #[serde(rename = "advisory")]
    pub(crate) list: Vec<Advisory>,
}

/// A fault in some versions of a crate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Advisory {
    pub(crate) id: String,
    #[serde(rename = "crate")]
    pub(crate) name: String,
    /// Versions without it; all others have it.
    #[serde(deserialize_with = "requirements")]
    safe: Vec<VersionReq>,
}

impl Advisory {
    /// Whether this version has the fault.
    pub(crate) fn is_about(&self, version: &Version) -> bool {
        // A release candidate is as safe as its release, but by semver it matches no requirement.
        let released = Version::new(version.major, version.minor, version.patch);
        !self.safe.iter().any(|safe| safe.matches(&released))
    }
}

fn requirements<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<VersionReq>, D::Error> {
    let texts = Vec::<String>::deserialize(from)?;
    texts.iter().map(|text| text.parse().map_err(de::Error::custom)).collect()
}

/// The head of a page of RustSec.
#[derive(Deserialize)]
struct Page {
    advisory: PageAdvisory,
    versions: PageVersions,
}

#[derive(Deserialize)]
struct PageAdvisory {
    id: String,
    package: String,
    withdrawn: Option<String>,
}

#[derive(Deserialize)]
struct PageVersions {
    #[serde(default)]
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

impl Advisories {
    pub(crate) fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        Self::parse(&text_of(path)?).map_err(|it| format!("{}: {it}", path.display()))
    }
}

impl Advisories {
    /// Adds what a checkout of RustSec's database says.
    pub(crate) fn add_checkout(&mut self, folder: &Path) -> Result<(), String> {
        let known = self.list.len();
        for of_crate in entries(&folder.join("crates"))? {
            for path in entries(&of_crate)? {
                let shown = |it: String| format!("{}: {it}", path.display());
                let page = head(&text_of(&path)?).map_err(shown)?;
                self.list.extend(page.into_advisory().map_err(shown)?);
            }
        }
        match self.list.len() > known {
            true => Ok(()),
            false => Err(format!("there is no advisory in {}/crates", folder.display())),
        }
    }
}

impl Page {
    /// Nothing, if it was taken back.
    fn into_advisory(self) -> Result<Option<Advisory>, String> {
        let Self { advisory, versions } = self;
        if advisory.withdrawn.is_some() {
            return Ok(None);
        }
        let safe = versions.patched.iter().chain(&versions.unaffected);
        let safe = safe.map(|text| text.parse().map_err(|it| format!("{text}: {it}")));
        let safe = safe.collect::<Result<_, String>>()?;
        Ok(Some(Advisory { id: advisory.id, name: advisory.package, safe }))
    }
}

/// A page begins with its data: a block of TOML.
fn head(page: &str) -> Result<Page, String> {
    let block = page.strip_prefix("```toml\n").and_then(|rest| rest.split_once("\n```"));
    let (data, _) = block.ok_or("it does not begin with a block of TOML")?;
    toml::from_str(data).map_err(|it| it.to_string())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |it| format!("cannot read {}: {it}", folder.display());
    let found = fs::read_dir(folder).map_err(failed)?;
    found.map(|entry| entry.map(|it| it.path()).map_err(failed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "```toml\n[advisory]\nid = \"RUSTSEC-2020-0001\"\npackage = \"it\"\n\
        date = \"2020-01-02\"\n\n[versions]\npatched = [\">= 1.2.3\"]\n\
        unaffected = [\"< 1.0.0\"]\n```\n\n# It breaks\n";

    #[test]
    fn a_checkout_is_looked_through() {
        let folder = std::env::temp_dir().join(format!("advisories-{}", std::process::id()));
        let of_crate = folder.join("crates/it");
        fs::create_dir_all(&of_crate).unwrap();
        let mut advisories = Advisories { list: Vec::new() };
        assert!(advisories.add_checkout(&folder).is_err());
        fs::write(of_crate.join("RUSTSEC-2020-0001.md"), PAGE).unwrap();
        let withdrawn = PAGE.replace("date =", "withdrawn = \"2020-02-01\"\ndate =");
        fs::write(of_crate.join("RUSTSEC-2020-0002.md"), withdrawn).unwrap();
        let added = advisories.add_checkout(&folder);
        fs::remove_dir_all(&folder).unwrap();
        added.unwrap();
        let [advisory] = &advisories.list[..] else { panic!("{:?}", advisories.list) };
        assert_eq!((advisory.id.as_str(), advisory.name.as_str()), ("RUSTSEC-2020-0001", "it"));
        for (version, is_hit) in [
            ("0.9.0", false),
            ("1.0.0", true),
            ("1.2.2", true),
            ("1.2.3", false),
            ("2.0.0-rc.1", false),
        ] {
            assert_eq!(advisory.is_about(&version.parse().unwrap()), is_hit, "{version}");
        }
    }

    #[test]
    fn a_page_that_is_not_understood_is_an_error() {
        assert!(head("# no data").is_err());
        assert!(head("```toml\n[advisory]\n```").is_err());
    }
}
