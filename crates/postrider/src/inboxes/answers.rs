//! What a database answers, and what that means.

use std::collections::HashSet;

use uuid::Uuid;

use crate::inbox::{Claim, Sequence};

/// Of an insert that does nothing if the row is there.
pub(super) fn claim_if(inserted: bool) -> Claim {
    if inserted { Claim::First } else { Claim::Duplicate }
}

/// Of the ids that were inserted.
pub(super) fn claims_of(given: &[Uuid], inserted: impl IntoIterator<Item = Uuid>) -> Vec<Claim> {
    let mut inserted: HashSet<Uuid> = inserted.into_iter().collect();
    given.iter().map(|id| claim_if(inserted.remove(id))).collect()
}

/// Of the watermark that was there before.
pub(super) fn sequence_of(last: Option<i64>, version: u64) -> Sequence {
    Sequence::of(last.map(i64::cast_unsigned), version)
}

/// A version as databases have it.
pub(super) fn version_of(version: u64) -> i64 {
    i64::try_from(version).expect("`Inbox` refuses higher ones")
}
