//! `deny.toml`: the part of cargo-deny's format that is held to here. Another setting is a mistake, so
//! that none is passed over in silence.

use std::path::Path;

use semver::{Comparator, Op, Version, VersionReq};
use serde::{Deserialize, Deserializer, de};

use crate::text_of;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Policy {
    pub(crate) advisories: AdvisoryPolicy,
    pub(crate) bans: Bans,
    pub(crate) graph: Graph,
    pub(crate) licenses: Licenses,
    /// There is nothing to choose: the registry, or this workspace.
    #[expect(dead_code, reason = "being read is the check of it")]
    sources: Sources,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Graph {
    pub(crate) targets: Vec<String>,
    pub(crate) all_features: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "being read is the check of what can only be one value")]
pub(crate) struct AdvisoryPolicy {
    yanked: Deny,
    unmaintained: All,
    unsound: All,
    pub(crate) ignore: Vec<Ignored>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ignored {
    pub(crate) id: String,
    #[expect(dead_code, reason = "for people")]
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Licenses {
    pub(crate) allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Bans {
    #[expect(dead_code, reason = "being read is the check of what can only be one value")]
    multiple_versions: Allow,
    pub(crate) deny: Vec<Ban>,
}

/// A crate that must not be there; or not twice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Ban {
    #[serde(rename = "crate")]
    pub(crate) spec: Spec,
    #[serde(default)]
    pub(crate) deny_multiple_versions: bool,
    pub(crate) reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[expect(dead_code, reason = "being read is the check of what can only be one value")]
struct Sources {
    unknown_git: Deny,
    unknown_registry: Deny,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum All {
    All,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Allow {
    Allow,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Deny {
    Deny,
}

/// Versions of a crate: `name`, `name@1.2.3` or `name:<1.2`.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: String,
    versions: VersionReq,
}

impl Spec {
    fn parse(text: &str) -> Result<Self, semver::Error> {
        if let Some((name, version)) = text.split_once('@') {
            let Version { major, minor, patch, pre, .. } = version.parse()?;
            let exact =
                Comparator { op: Op::Exact, major, minor: Some(minor), patch: Some(patch), pre };
            return Ok(Self {
                name: name.into(),
                versions: VersionReq { comparators: vec![exact] },
            });
        }
        let (name, versions) = text.split_once(':').unwrap_or((text, "*"));
        Ok(Self { name: name.into(), versions: versions.parse()? })
    }

    pub(crate) fn matches(&self, name: &str, version: &Version) -> bool {
        self.name == name && self.versions.matches(version)
    }
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(from)?).map_err(de::Error::custom)
    }
}

impl Policy {
    pub(crate) fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        Self::parse(&text_of(path)?).map_err(|it| format!("{}: {it}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_cargo_deny_does() {
        let matches = |spec, version: &str| {
            Spec::parse(spec).unwrap().matches("sqlx", &version.parse().unwrap())
        };
        for (spec, version, expected) in [
            ("sqlx", "0.9.0", true),
            ("sqlx:<0.8.1", "0.8.0", true),
            ("sqlx:<0.8.1", "0.8.1", false),
            ("sqlx@0.8.1", "0.8.1", true),
            ("sqlx@0.8.1", "0.8.2", false),
            ("sqlx-core", "0.9.0", false),
        ] {
            assert_eq!(matches(spec, version), expected, "{spec} {version}");
        }
        assert!(Spec::parse("sqlx:new").is_err());
    }

    #[test]
    fn a_setting_that_is_not_held_to_is_refused() {
        let text = include_str!("../../../deny.toml");
        Policy::parse(text).unwrap();
        for (held, not_held) in [
            ("unknown-git = \"deny\"", "unknown-git = \"warn\""),
            ("yanked = \"deny\"", "yanked = \"allow\""),
            ("[licenses]", "[licenses]\nconfidence-threshold = 0.9"),
        ] {
            assert!(Policy::parse(&text.replace(held, not_held)).is_err(), "{not_held}");
        }
    }
}
