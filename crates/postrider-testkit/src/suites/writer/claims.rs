//! The inbox: an event's effect happens once.

use postrider::Claim;
use uuid::Uuid;

use super::{Capabilities, End, Subject};
use crate::case;
use crate::suites::Case;

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(an_event_is_claimed_once_per_consumer),
        case!(a_claim_rolled_back_is_first_again),
        case!(a_claim_is_seen_by_other_connections),
    ]
}

async fn claim(database: &Subject, consumer: &str, id: Uuid, end: End) -> Claim {
    let claimed = database.client().await.once(consumer, id, end).await;
    claimed.expect("the claim can be made")
}

/// G-08.
async fn an_event_is_claimed_once_per_consumer(database: Subject) {
    let mut client = database.client().await;
    let id = Uuid::now_v7();
    let claims =
        [("billing", Claim::First), ("billing", Claim::Duplicate), ("shipping", Claim::First)];
    for (consumer, expected) in claims {
        let claimed = client.once(consumer, id, End::Commit).await;
        assert_eq!(claimed.expect("the claim can be made"), expected, "{consumer}");
    }
    let another = client.once("billing", Uuid::now_v7(), End::Commit).await;
    assert_eq!(another.expect("the claim can be made"), Claim::First);
}

/// G-08.
async fn a_claim_rolled_back_is_first_again(database: Subject) {
    let id = Uuid::now_v7();
    assert_eq!(claim(&database, "billing", id, End::Rollback).await, Claim::First);
    assert_eq!(claim(&database, "billing", id, End::Commit).await, Claim::First);
    assert_eq!(claim(&database, "billing", id, End::Rollback).await, Claim::Duplicate);
    assert_eq!(claim(&database, "billing", id, End::Commit).await, Claim::Duplicate);
}

/// G-08.
async fn a_claim_is_seen_by_other_connections(database: Subject) {
    let id = Uuid::now_v7();
    for expected in [Claim::First, Claim::Duplicate, Claim::Duplicate] {
        assert_eq!(claim(&database, "billing", id, End::Commit).await, expected);
    }
}
