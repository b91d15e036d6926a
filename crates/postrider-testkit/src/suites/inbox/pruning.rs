//! Old claims go.

use std::time::{Duration, SystemTime};

use postrider::Claim;
use uuid::Uuid;

use super::{claim_count, in_transaction};
use crate::case;
use crate::suites::Case;
use crate::suites::writer::{Capabilities, End, Subject};

const HOUR: Duration = Duration::from_secs(60 * 60);

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![case!(only_older_claims_are_pruned), case!(pruning_rolls_back_with_its_transaction)]
}

/// Claims so many events, as if it had been long ago.
async fn claim_long_ago(database: &Subject, count: usize) -> Vec<Uuid> {
    let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
    let mut client = database.client().await;
    let _ = in_transaction!(client, End::Commit, once_all("billing", &ids));
    database.run("UPDATE inbox SET processed_at = '2001-02-03T04:05:06.000000Z'").await;
    ids
}

/// At most so many at a time, so that nobody waits long for whoever prunes.
async fn only_older_claims_are_pruned(database: Subject) {
    let old = claim_long_ago(&database, 7).await;
    let recent: Vec<Uuid> = (0..5).map(|_| Uuid::now_v7()).collect();
    let mut client = database.client().await;
    let _ = in_transaction!(client, End::Commit, once_all("shipping", &recent));
    let (hour_ago, ages_ago) =
        (SystemTime::now() - HOUR, SystemTime::UNIX_EPOCH + Duration::from_secs(900_000_000));
    for (older_than, limit, expected) in [
        (ages_ago, 100, 0),
        (hour_ago, 0, 0),
        (hour_ago, 3, 3),
        (hour_ago, 100, 4),
        (hour_ago, 100, 0),
    ] {
        assert_eq!(
            in_transaction!(client, End::Commit, prune("billing", older_than, limit)),
            expected
        );
    }
    assert_eq!(claim_count(&database).await, 5);
    let again = in_transaction!(client, End::Commit, once_all("shipping", &recent));
    assert_eq!(again, [Claim::Duplicate; 5]);
    let forgotten = in_transaction!(client, End::Commit, once_all("billing", &old));
    assert_eq!(forgotten, [Claim::First; 7]);
    // Whoever's clock is ahead prunes what is there, and nothing of others.
    let ahead = SystemTime::now() + HOUR;
    assert_eq!(in_transaction!(client, End::Commit, prune("billing", ahead, u32::MAX)), 7);
    assert_eq!(claim_count(&database).await, 5);
    assert_eq!(in_transaction!(client, End::Commit, prune("shipping", ahead, u32::MAX)), 5);
}

async fn pruning_rolls_back_with_its_transaction(database: Subject) {
    let old = claim_long_ago(&database, 2).await;
    let mut client = database.client().await;
    let hour_ago = SystemTime::now() - HOUR;
    assert_eq!(in_transaction!(client, End::Rollback, prune("billing", hour_ago, 10)), 2);
    let again = in_transaction!(client, End::Commit, once_all("billing", &old));
    assert_eq!(again, [Claim::Duplicate; 2]);
}
