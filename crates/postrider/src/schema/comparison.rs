//! Compares what a database has with what the migrations make, listed as objects with their
//! definitions.

use std::collections::BTreeMap;
use std::fmt;

use super::Migration;
use super::drift::{Difference, Drift};

/// Something that can differ.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Object {
    pub(super) kind: Kind,
    /// The table or function to which it belongs, or which it is.
    pub(super) container: String,
    pub(super) name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Table,
    Column,
    Index,
    Constraint,
    Trigger,
    Rule,
    Function,
    Body,
}

impl Kind {
    pub(super) const ALL: [(&'static str, Self); 8] = [
        ("table", Self::Table),
        ("column", Self::Column),
        ("index", Self::Index),
        ("constraint", Self::Constraint),
        ("trigger", Self::Trigger),
        ("rule", Self::Rule),
        ("function", Self::Function),
        ("body", Self::Body),
    ];
}

impl Object {
    /// What it is a part of.
    fn whole(&self) -> Option<Object> {
        let (kind, name) = match self.kind {
            Kind::Table | Kind::Function => return None,
            Kind::Column | Kind::Index | Kind::Constraint | Kind::Trigger | Kind::Rule => {
                (Kind::Table, &self.container)
            }
            Kind::Body => (Kind::Function, &self.name),
        };
        Some(Object { kind, container: self.container.clone(), name: name.clone() })
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, container, name } = self;
        match kind {
            Kind::Table => write!(f, "table {name}"),
            Kind::Column => write!(f, "column {container}.{name}"),
            Kind::Index => write!(f, "index {name}"),
            Kind::Constraint => write!(f, "constraint {name} of {container}"),
            Kind::Trigger => write!(f, "trigger {name} of {container}"),
            Kind::Rule => write!(f, "rule {name} of {container}"),
            Kind::Function => write!(f, "function {name}"),
            Kind::Body => write!(f, "the body of function {name}"),
        }
    }
}

/// Every difference between what the migrations make and what was found.
pub(super) fn compare(
    expected: &BTreeMap<Object, String>,
    found: &BTreeMap<Object, String>,
) -> Vec<Difference> {
    let lost = expected.iter().filter_map(|(object, wanted)| match found.get(object) {
        Some(found) if found == wanted => None,
        Some(found) => Some((object, Drift::Changed, Some(wanted), Some(found))),
        None => Some((object, Drift::Missing, Some(wanted), None)),
    });
    let extra = found.iter().filter(|(object, _)| !expected.contains_key(object));
    let extra = extra.map(|(object, found)| (object, Drift::Extra, None, Some(found)));
    // What is missing with the whole of it goes without saying.
    let is_there = |object: &Object| match object.whole() {
        Some(whole) => found.contains_key(&whole) && expected.contains_key(&whole),
        None => true,
    };
    let differences = lost.chain(extra).filter(|(object, ..)| is_there(object));
    differences
        .map(|(object, drift, expected, found)| {
            // Nobody can compare hashes.
            let shown = |text: Option<&String>| text.filter(|_| object.kind != Kind::Body).cloned();
            let (expected, found) = (shown(expected), shown(found));
            Difference { drift, object: object.to_string(), expected, found }
        })
        .collect()
}

/// A migration that was not applied.
pub(super) fn pending(migration: &Migration) -> Difference {
    let object = format!("migration {} {}", migration.version, migration.name);
    Difference { drift: Drift::Pending, object, expected: None, found: None }
}
