//! What the topic of progress holds for one producer, before it is looked at.
//!
//! Whoever may write to the topic can write anything, so what is kept is bounded first: only
//! records of this producer's name are kept, each no larger than a relay writes it, and all of
//! them together no more than [`BYTES_MAX`].

use std::collections::HashMap;

use super::note::VALUE_BYTES_MAX;
use super::{ForeignNote, PLACES_MAX};

/// The notes of a producer take less: it is room for 60 million ids.
const BYTES_MAX: usize = 1 << 30;
/// So many records that no relay writes are remembered, until they are removed.
const FOREIGN_MAX: usize = 16;

/// The last value of each key of a producer.
#[derive(Debug)]
pub(in super::super) struct FoundNotes {
    name: String,
    notes: HashMap<u32, Vec<u8>>,
    bytes: usize,
    foreign: Vec<String>,
}

impl FoundNotes {
    /// Nothing yet, of the producer of this name.
    pub(in super::super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), notes: HashMap::new(), bytes: 0, foreign: Vec::new() }
    }

    /// Takes in a record; without a value, somebody has removed it.
    pub(in super::super) fn take(&mut self, key: &[u8], value: Option<&[u8]>) {
        let Some((key, place)) = self.place(key) else { return };
        self.foreign.retain(|foreign| foreign != key);
        self.bytes -= self.notes.remove(&place).map_or(0, |before| before.len());
        let Some(value) = value else { return };
        let is_note = place < PLACES_MAX
            && value.len() <= VALUE_BYTES_MAX
            && self.bytes + value.len() <= BYTES_MAX;
        if is_note {
            self.bytes += value.len();
            self.notes.insert(place, value.to_vec());
        } else if self.foreign.len() < FOREIGN_MAX {
            self.foreign.push(key.to_owned());
        }
    }

    /// The notes, by their keys.
    ///
    /// # Errors
    ///
    /// There is a record that no relay writes.
    pub(in super::super) fn into_notes(self) -> Result<Vec<(String, Vec<u8>)>, ForeignNote> {
        if let Some(key) = self.foreign.into_iter().next() {
            return Err(ForeignNote(key));
        }
        let key = |place| format!("{}/{place}", self.name);
        Ok(self.notes.into_iter().map(|(place, value)| (key(place), value)).collect())
    }

    /// The place that a key of this producer names, as a relay writes it.
    fn place<'k>(&self, key: &'k [u8]) -> Option<(&'k str, u32)> {
        let key = std::str::from_utf8(key).ok()?;
        let text = key.strip_prefix(self.name.as_str())?.strip_prefix('/')?;
        let place: u32 = text.parse().ok()?;
        (place.to_string() == text).then_some((key, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(records: &[(&str, Option<&[u8]>)]) -> Result<Vec<(String, Vec<u8>)>, ForeignNote> {
        let mut found = FoundNotes::new("orders/3");
        for (key, value) in records {
            found.take(key.as_bytes(), *value);
        }
        found.into_notes()
    }

    #[test]
    fn a_name_does_not_begin_another() {
        let own = [("orders/3/17".to_owned(), vec![1])];
        assert_eq!(found(&[("orders/3/17", Some(&[1]))]), Ok(own.to_vec()));
        for other in ["orders/31/17", "orders/3", "3/17", "xorders/3/17", "orders/3/1/7"] {
            assert_eq!(found(&[(other, Some(&[1]))]), Ok(vec![]), "{other}");
        }
    }

    #[test]
    fn a_place_has_one_key() {
        for other in ["orders/3/017", "orders/3/+17", "orders/3/", "orders/3/x"] {
            assert_eq!(found(&[(other, Some(&[1]))]), Ok(vec![]), "{other}");
        }
    }

    #[test]
    fn the_last_value_counts_and_a_removed_one_does_not() {
        let (first, last): (&[u8], &[u8]) = (&[1], &[2, 2]);
        let kept = Ok(vec![("orders/3/1".to_owned(), last.to_vec())]);
        assert_eq!(found(&[("orders/3/1", Some(first)), ("orders/3/1", Some(last))]), kept);
        assert_eq!(found(&[("orders/3/1", Some(first)), ("orders/3/1", None)]), Ok(vec![]));
    }

    #[test]
    fn what_is_larger_than_any_note_is_refused_until_it_is_removed() {
        let large = vec![0; VALUE_BYTES_MAX + 1];
        let (ours, theirs) = ("orders/3/1", "orders/3/4294967294");
        for (key, value) in [(ours, &large[..]), (theirs, &[0; 8])] {
            assert_eq!(found(&[(key, Some(value))]), Err(ForeignNote(key.to_owned())));
            assert_eq!(found(&[(key, Some(value)), (key, None)]), Ok(vec![]));
        }
        let mut found = FoundNotes::new("orders/3");
        found.take(ours.as_bytes(), Some(&large));
        assert_eq!((found.bytes, found.notes.len()), (0, 0), "nothing is kept of it");
    }
}
