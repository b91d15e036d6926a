//! Which rows behind a cursor its pipeline has published: see
//! [`matching`](crate::sources::matching).

use rusqlite::Row;

use crate::sources::matching::Matching;

/// What a checkpoint says of the rows behind its cursor.
#[derive(Debug)]
pub(super) struct Published {
    /// `None` until a relay has written down what it matches.
    matching: Option<Matching>,
    /// Rows up to here were there before the pipeline began.
    since: i64,
}

impl Published {
    /// From the columns `aggregate_types`, `formerly` and `since`, which begin here.
    pub(super) fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Self> {
        let (types, formerly): (Option<String>, String) = (row.get(first)?, row.get(first + 1)?);
        let types = types.and_then(|types| serde_json::from_str::<Vec<String>>(&types).ok());
        let matching = types.map(|types| Matching::new(types, &formerly));
        Ok(Self { matching, since: row.get(first + 2)? })
    }

    /// Whether the pipeline matched a row behind its cursor; `None` if that is not known.
    pub(super) fn is_known_to_match(&self, seq: i64, aggregate_type: &str) -> Option<bool> {
        if seq <= self.since {
            return Some(false);
        }
        let Matching { types, formerly } = self.matching.as_ref()?;
        let until = |name: &str| formerly.get(name).and_then(|place| place.parse::<i64>().ok());
        let was_matched = |name: &str| until(name).is_some_and(|until| seq <= until);
        let is_matched = types.is_empty() || types.contains(aggregate_type);
        Some(is_matched || was_matched(aggregate_type) || was_matched(""))
    }

    /// What it matches, if that is known; none means all.
    pub(super) fn types(&self) -> Option<impl Iterator<Item = &String>> {
        self.matching.as_ref().map(|matching| matching.types.iter())
    }
}
