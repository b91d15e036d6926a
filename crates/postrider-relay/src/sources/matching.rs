//! What a pipeline matches, and what it matched before.
//!
//! A cursor passes events of types that its pipeline does not match, without publishing them. So
//! that nobody takes them for published, the types stand in the checkpoint beside the position:
//!
//! - Of the types that it matches, everything behind the position is published or set aside. When a
//!   type is added, what is behind the position of it is set aside first, to be handed out in the
//!   order of its key, and only then the type is written down.
//! - Of a type that it matches no more, everything up to a place is: that of the cursor when the type
//!   was left out ([`Matching::formerly`]). When the type is added again, it goes on from there.

use std::collections::{BTreeMap, BTreeSet};

/// Everything that is not matched by name.
const EVERYTHING: &str = "";

/// What a pipeline matches and matched, as its checkpoint says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Matching {
    /// Empty means all.
    pub(super) types: BTreeSet<String>,
    /// The place of the cursor when a type was left out; under an empty name, that of all types.
    pub(super) formerly: BTreeMap<String, String>,
}

impl Matching {
    /// As it is written down; what cannot be read was never matched.
    pub(super) fn new(types: impl IntoIterator<Item = String>, formerly: &str) -> Self {
        let formerly = serde_json::from_str(formerly).unwrap_or_default();
        Self { types: types.into_iter().collect(), formerly }
    }

    /// What a pipeline matches that never matched anything else.
    pub(super) fn of(types: &[String]) -> Self {
        Self::new(types.iter().cloned(), "{}")
    }

    /// Whether a type would be matched that is not.
    pub(super) fn lacks(&self, wanted: &BTreeSet<String>) -> bool {
        !self.types.is_empty() && (wanted.is_empty() || !wanted.is_subset(&self.types))
    }

    /// What is to be written down once everything behind the cursor is published or set aside of
    /// the types that are wanted. `place` is where the cursor is; `None` where it begins.
    pub(super) fn change(mut self, wanted: BTreeSet<String>, place: Option<&str>) -> Self {
        if wanted == self.types {
            return self;
        }
        if wanted.is_empty() {
            self.formerly.clear();
        } else if self.types.is_empty() {
            self.formerly = left_at([EVERYTHING.to_owned()], place).collect();
        } else {
            let left = self.types.difference(&wanted).filter(|name| *name != EVERYTHING).cloned();
            self.formerly.extend(left_at(left, place));
            self.formerly.retain(|name, _| !wanted.contains(name));
        }
        Self { types: wanted, ..self }
    }

    /// The places, as JSON.
    pub(super) fn formerly_text(&self) -> String {
        serde_json::to_string(&self.formerly).expect("texts are JSON")
    }
}

fn left_at(
    names: impl IntoIterator<Item = String>,
    place: Option<&str>,
) -> impl Iterator<Item = (String, String)> {
    names.into_iter().filter_map(move |name| Some((name, place?.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn formerly(matching: &Matching) -> Vec<(&str, &str)> {
        matching.formerly.iter().map(|(name, place)| (name.as_str(), place.as_str())).collect()
    }

    #[test]
    fn it_lacks_what_is_added() {
        let orders = Matching::new(["Order".to_owned()], "{}");
        let cases = [
            (types(&["Order"]), false),
            (types(&["Invoice", "Order"]), true),
            (types(&["Invoice"]), true),
            (types(&[]), true),
        ];
        for (wanted, expected) in cases {
            assert_eq!(orders.lacks(&wanted), expected, "{wanted:?}");
            assert!(!Matching::default().lacks(&wanted), "{wanted:?}");
        }
    }

    #[test]
    fn the_place_is_known_where_a_type_was_left_out() {
        let all = Matching::default();
        let orders = all.change(types(&["Order"]), Some("7"));
        assert_eq!(formerly(&orders), [("", "7")]);
        let invoices = orders.clone().change(types(&["Invoice"]), Some("9"));
        assert_eq!(formerly(&invoices), [("", "7"), ("Order", "9")]);
        let again = invoices.clone().change(types(&["Order"]), Some("11"));
        assert_eq!(formerly(&again), [("", "7"), ("Invoice", "11")]);
        assert_eq!(formerly(&again.change(types(&[]), Some("12"))), []);
        let text = invoices.formerly_text();
        assert_eq!(Matching::new(["Invoice".to_owned()], &text), invoices);
        assert_eq!(formerly(&Matching::default().change(types(&["Order"]), None)), []);
    }
}
