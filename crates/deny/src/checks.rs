//! What must not be: each check answers a line for each thing that is wrong.

use std::collections::BTreeMap;

use semver::Version;
use spdx::{Expression, Licensee, ParseMode};

use crate::advisories::Advisories;
use crate::crates::{Crate, Licensed};
use crate::policy::Policy;

/// How lock files begin the name of a registry.
const REGISTRY: &str = "registry+";

/// Crates that come neither from this workspace nor from the one registry that most come from.
pub(crate) fn sources(crates: &[Crate]) -> Vec<String> {
    let mut registries: BTreeMap<&str, usize> = BTreeMap::new();
    let sources = crates.iter().filter_map(|it| it.source.as_deref());
    for registry in sources.filter(|source| source.starts_with(REGISTRY)) {
        *registries.entry(registry).or_default() += 1;
    }
    let usual = registries.into_iter().max_by_key(|(_, count)| *count).map(|(name, _)| name);
    let foreign = crates.iter().filter_map(|it| match it.source.as_deref() {
        None => None,
        source if source == usual => None,
        Some(source) => Some(format!("source: {} {} comes from {source}", it.name, it.version)),
    });
    foreign.collect()
}

/// Crates whose licence does not let us use them, and licences that are allowed for nothing.
pub(crate) fn licences(policy: &Policy, crates: &[Licensed]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut allowed = Vec::new();
    for name in &policy.licenses.allow {
        match Licensee::parse(name) {
            Ok(licence) => allowed.push((licence, false)),
            Err(error) => problems.push(format!("licence: {name} in deny.toml: {}", error.reason)),
        }
    }
    for Licensed { name, version, license } in crates {
        let Some(text) = license else {
            problems.push(format!("licence: {name} {version} declares none"));
            continue;
        };
        // Older ones write MIT/Apache-2.0.
        let expression = match Expression::parse_mode(text, ParseMode::LAX) {
            Ok(expression) => expression,
            Err(error) => {
                problems.push(format!("licence: {name} {version}: {text:?}: {}", error.reason));
                continue;
            }
        };
        let may = expression.evaluate(|wanted| {
            let found = allowed.iter_mut().find(|(licence, _)| licence.satisfies(wanted));
            found.map(|(_, is_used)| *is_used = true).is_some()
        });
        if !may {
            problems.push(format!("licence: {name} {version} is under {text}"));
        }
    }
    let unused = allowed.iter().filter(|(_, is_used)| !is_used);
    problems.extend(unused.map(|(licence, _)| {
        format!("licence: nothing is under {licence}: take it out of deny.toml")
    }));
    problems
}

/// Crates that deny.toml bans.
pub(crate) fn bans(policy: &Policy, crates: &[Crate]) -> Vec<String> {
    let mut problems = Vec::new();
    for ban in &policy.bans.deny {
        let is_banned = |it: &&Crate| ban.spec.matches(&it.name, &it.version);
        let found: Vec<&Version> = crates.iter().filter(is_banned).map(|it| &it.version).collect();
        if found.is_empty() || (ban.deny_multiple_versions && found.len() == 1) {
            continue;
        }
        let versions: Vec<String> = found.iter().map(ToString::to_string).collect();
        let (name, versions) = (&ban.spec.name, versions.join(" and "));
        problems.push(format!("banned: {name} {versions}: {}", ban.reason));
    }
    problems
}

/// Crates with a known fault, and faults that are ignored without being there.
pub(crate) fn advisories(
    policy: &Policy,
    advisories: &Advisories,
    crates: &[Crate],
) -> Vec<String> {
    let ignored = policy.advisories.ignore.iter().map(|it| (it.id.as_str(), false));
    let mut ignored: BTreeMap<&str, bool> = ignored.collect();
    let mut problems = Vec::new();
    for advisory in &advisories.list {
        let is_hit = |it: &&Crate| it.name == advisory.name && advisory.is_about(&it.version);
        for it in crates.iter().filter(is_hit) {
            if let Some(is_used) = ignored.get_mut(advisory.id.as_str()) {
                *is_used = true;
                continue;
            }
            let (id, name, version) = (&advisory.id, &it.name, &it.version);
            problems
                .push(format!("advisory: {name} {version}: https://rustsec.org/advisories/{id}"));
        }
    }
    let unused = ignored.iter().filter(|(_, is_used)| !**is_used);
    problems.extend(
        unused.map(|(id, _)| {
            format!("advisory: {id} concerns nothing here: take it out of deny.toml")
        }),
    );
    problems
}

/// A version that its author has withdrawn.
pub(crate) fn is_yanked(it: &Crate) -> String {
    let Crate { name, version, .. } = it;
    format!("yanked: {name} {version}: its author withdrew it: cargo update --package {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(change: impl Fn(&str) -> String) -> Policy {
        Policy::parse(&change(include_str!("../../../deny.toml"))).unwrap()
    }

    /// The project's own, without the check that each licence in it is used.
    fn judged(license: Option<&str>) -> Vec<String> {
        let license = license.map(str::to_owned);
        let it = Licensed { name: "it".into(), version: Version::new(1, 0, 0), license };
        let problems = licences(&policy(str::to_owned), &[it]);
        problems.into_iter().filter(|problem| !problem.contains("nothing is under")).collect()
    }

    fn crates(names: &[(&str, &str)]) -> Vec<Crate> {
        let one = |(name, version): &(&str, &str)| Crate {
            name: (*name).to_owned(),
            version: version.parse().unwrap(),
            source: Some(REGISTRY.to_owned()),
        };
        names.iter().map(one).collect()
    }

    #[test]
    fn an_expression_is_satisfied_by_what_is_allowed() {
        for allowed in [
            "MIT",
            "GPL-3.0-only OR MIT",
            "MIT/Apache-2.0",
            "Apache-2.0 / MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ] {
            assert!(judged(Some(allowed)).is_empty(), "{:?}", judged(Some(allowed)));
        }
    }

    #[test]
    fn a_licence_that_is_not_allowed_is_found() {
        for (forbidden, expected) in [
            (Some("GPL-3.0-only"), "licence: it 1.0.0 is under GPL-3.0-only"),
            (Some("MIT AND GPL-2.0-or-later"), "is under MIT AND GPL-2.0-or-later"),
            (Some("(MIT OR ISC) AND AGPL-3.0"), "is under"),
            // With an exception it is another one.
            (Some("Apache-2.0 WITH LLVM-exception"), "is under"),
            (Some("as you like"), "\"as you like\""),
            (None, "declares none"),
        ] {
            let found = judged(forbidden);
            assert!(found.len() == 1 && found[0].contains(expected), "{forbidden:?}: {found:?}");
        }
    }

    #[test]
    fn a_licence_that_nothing_needs_is_found() {
        let found = licences(&policy(str::to_owned), &[]);
        assert!(found.iter().any(|it| it.contains("nothing is under Zlib")), "{found:?}");
    }

    #[test]
    fn only_the_registry_and_this_workspace_are_sources() {
        let mut crates = crates(&[
            ("serde", "1.0.0"),
            ("mine", "0.1.0"),
            ("theirs", "1.0.0"),
            ("toml", "1.0.0"),
        ]);
        crates[1].source = None;
        assert!(sources(&crates).is_empty());
        for source in
            ["git+https://example.com/theirs?branch=main#1f0", "registry+https://example.com"]
        {
            crates[2].source = Some(source.to_owned());
            assert_eq!(sources(&crates), [format!("source: theirs 1.0.0 comes from {source}")]);
        }
    }

    #[test]
    fn a_banned_version_is_found_with_the_reason() {
        let policy = policy(str::to_owned);
        let found = bans(&policy, &crates(&[("sqlx", "0.8.0"), ("openssl-src", "300.0.0")]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("banned: openssl-src 300.0.0: the system's OpenSSL"));
        assert!(found[1].starts_with("banned: sqlx 0.8.0") && found[1].contains("2024-0363"));
        assert!(bans(&policy, &crates(&[("sqlx", "0.8.1")])).is_empty());
    }

    #[test]
    fn what_is_heavy_is_there_once() {
        let policy = policy(str::to_owned);
        assert!(bans(&policy, &crates(&[("tokio", "1.54.0"), ("base64", "0.22.1")])).is_empty());
        let found = bans(&policy, &crates(&[("tokio", "0.2.1"), ("tokio", "1.54.0")]));
        assert_eq!(found, ["banned: tokio 0.2.1 and 1.54.0: one runtime does not find the other"]);
    }

    #[test]
    fn an_advisory_hits_the_versions_it_names_unless_it_is_ignored() {
        let known = Advisories::parse(include_str!("../advisories.toml")).unwrap();
        let plain = policy(str::to_owned);
        let old = crates(&[("sqlx", "0.8.0")]);
        let found = advisories(&plain, &known, &old);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("sqlx 0.8.0: https://rustsec.org/advisories/RUSTSEC-2024-0363"));
        assert!(advisories(&plain, &known, &crates(&[("sqlx", "0.8.1")])).is_empty());

        let entry = "ignore = [{ id = \"RUSTSEC-2024-0363\", reason = \"nothing is that large\" }]";
        let ignoring = policy(|text| text.replace("ignore = []", entry));
        assert!(advisories(&ignoring, &known, &old).is_empty());
        let found = advisories(&ignoring, &known, &crates(&[("sqlx", "0.8.1")]));
        assert!(found[0].contains("RUSTSEC-2024-0363 concerns nothing here"), "{found:?}");
    }
}
