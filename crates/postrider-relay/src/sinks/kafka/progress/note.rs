//! The form of a note: what one transaction writes to the topic of progress.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | the number of the note; each has a higher one than those before it |
//! | 8 | the *floor*: whatever stands in a note with a lower number, and in none from here on, is settled |
//! | 4 | how many of the ids are of events that were set aside; they are the first ones |
//! | 4 | how many of the ids are carried on from earlier notes; they are the first ones as well |
//! | 4 | the largest window since nothing was in doubt |
//! | 4 | the version, 2 |
//! | 16 each | ids |
//!
//! The first version had the number and ids of the transaction only. Its notes are read: of those,
//! nothing is known to be settled.

use uuid::Uuid;

use crate::sinks::kafka::CALL_EVENTS_MAX;

/// What a batch takes besides the key and the value of its only record, and a bit more.
const BATCH_OVERHEAD: usize = 128;
/// The longest number of a place, with a slash.
pub(super) const PLACE_BYTES: usize = 11;
const HEADER_BYTES: usize = 32;
const VERSION: u32 = 2;
/// So many ids may be carried on beside a few that are sent.
pub(super) const CARRIED_MIN: usize = 64;

/// The largest value: a call full of events, and as many that are carried on.
pub(super) const VALUE_BYTES_MAX: usize = HEADER_BYTES + 16 * 2 * CALL_EVENTS_MAX;

/// A record to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Note {
    pub(in super::super) key: String,
    pub(in super::super) value: Vec<u8>,
}

impl Note {
    /// How large the batch of a note is at most, if a transaction sends so many events: it carries
    /// on as many others.
    pub(in super::super) fn batch_bytes_max(name: &str, sent: usize) -> usize {
        let ids = sent + sent.max(CARRIED_MIN);
        BATCH_OVERHEAD + name.len() + PLACE_BYTES + HEADER_BYTES + 16 * ids
    }
}

/// What a note says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) number: u64,
    pub(super) floor: u64,
    pub(super) aside: usize,
    pub(super) carried: usize,
    /// Of the first version, of which it is not known: what the note has.
    pub(super) window: usize,
    pub(super) ids: Vec<Uuid>,
}

impl Content {
    /// How many of the ids were sent with it.
    pub(super) fn sent(&self) -> usize {
        self.ids.len() - self.carried
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let count = |ids: usize| u32::try_from(ids).unwrap_or(u32::MAX).to_be_bytes();
        let mut value = Vec::with_capacity(HEADER_BYTES + 16 * self.ids.len());
        value.extend_from_slice(&self.number.to_be_bytes());
        value.extend_from_slice(&self.floor.to_be_bytes());
        value.extend_from_slice(&count(self.aside));
        value.extend_from_slice(&count(self.carried));
        value.extend_from_slice(&count(self.window));
        value.extend_from_slice(&VERSION.to_be_bytes());
        self.ids.iter().for_each(|id| value.extend_from_slice(id.as_bytes()));
        value
    }

    /// `None` if it is no note.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let (number, rest) = value.split_first_chunk::<8>()?;
        let number = u64::from_be_bytes(*number);
        if let (ids, []) = rest.as_chunks::<16>() {
            let (window, ids) = (ids.len(), to_ids(ids));
            return Some(Self { number, floor: 0, aside: 0, carried: 0, window, ids });
        }
        let (floor, rest) = rest.split_first_chunk::<8>()?;
        let (aside, rest) = rest.split_first_chunk::<4>()?;
        let (carried, rest) = rest.split_first_chunk::<4>()?;
        let (window, rest) = rest.split_first_chunk::<4>()?;
        let (version, rest) = rest.split_first_chunk::<4>()?;
        let (ids, []) = rest.as_chunks::<16>() else { return None };
        let floor = u64::from_be_bytes(*floor);
        let count = |bytes: &[u8; 4]| u32::from_be_bytes(*bytes) as usize;
        let [aside, carried, window] = [aside, carried, window].map(count);
        let is_note = u32::from_be_bytes(*version) == VERSION
            && floor <= number
            && aside <= carried
            && carried <= ids.len();
        is_note.then(|| Self { number, floor, aside, carried, window, ids: to_ids(ids) })
    }
}

fn to_ids(ids: &[[u8; 16]]) -> Vec<Uuid> {
    ids.iter().map(|id| Uuid::from_bytes(*id)).collect()
}
