//! One claim at a time.

use postrider::Claim;
use uuid::Uuid;

use super::{applied, apply, claim_count, in_transaction};
use crate::case;
use crate::suites::Case;
use crate::suites::writer::{Capabilities, End, Subject};

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(an_event_is_claimed_once_per_consumer),
        case!(a_claim_rolled_back_is_first_again),
        case!(a_claim_is_seen_by_other_connections),
        case!(a_claim_is_seen_in_its_own_transaction),
        case!(each_consumer_applies_an_event),
        case!(a_handler_that_fails_leaves_no_claim),
        case!(a_replay_changes_nothing),
    ]
}

/// G-08.
async fn an_event_is_claimed_once_per_consumer(database: Subject) {
    let mut client = database.client().await;
    let id = Uuid::now_v7();
    let claims =
        [("billing", Claim::First), ("billing", Claim::Duplicate), ("shipping", Claim::First)];
    for (consumer, expected) in claims {
        let claim = in_transaction!(client, End::Commit, once(consumer, id));
        assert_eq!(claim, expected, "{consumer}");
    }
    let another = in_transaction!(client, End::Commit, once("billing", Uuid::now_v7()));
    assert_eq!(another, Claim::First);
}

/// G-08.
async fn a_claim_rolled_back_is_first_again(database: Subject) {
    let id = Uuid::now_v7();
    let mut client = database.client().await;
    for (end, expected) in [
        (End::Rollback, Claim::First),
        (End::Commit, Claim::First),
        (End::Rollback, Claim::Duplicate),
        (End::Commit, Claim::Duplicate),
    ] {
        assert_eq!(in_transaction!(client, end, once("billing", id)), expected);
    }
}

/// G-08.
async fn a_claim_is_seen_by_other_connections(database: Subject) {
    let id = Uuid::now_v7();
    for expected in [Claim::First, Claim::Duplicate, Claim::Duplicate] {
        let mut client = database.client().await;
        assert_eq!(in_transaction!(client, End::Commit, once("billing", id)), expected);
    }
}

/// G-08: as when a broker delivers an event twice in one batch.
async fn a_claim_is_seen_in_its_own_transaction(database: Subject) {
    let id = Uuid::now_v7();
    let mut client = database.client().await;
    let mut inbox = client.begin().await;
    for expected in [Claim::First, Claim::Duplicate] {
        assert_eq!(inbox.once("billing", id).await.expect("the claim can be made"), expected);
    }
    inbox.end(End::Commit).await;
}

/// Delivers an event as a consumer's handler takes it.
async fn deliver(database: &Subject, consumer: &str, id: Uuid, amount: u32, end: End) -> Claim {
    let mut client = database.client().await;
    let mut inbox = client.begin().await;
    let claim = inbox.once(consumer, id).await.expect("the claim can be made");
    if claim == Claim::First {
        apply(&mut *inbox, consumer, amount).await;
    }
    inbox.end(end).await;
    claim
}

/// G-08: consumers of one database do not take events from each other.
async fn each_consumer_applies_an_event(database: Subject) {
    let id = Uuid::now_v7();
    for _ in 0..2 {
        for consumer in ["billing", "shipping"] {
            let _ = deliver(&database, consumer, id, 7, End::Commit).await;
        }
    }
    for consumer in ["billing", "shipping"] {
        assert_eq!(applied(&database, consumer).await, (1, 7), "{consumer}");
    }
}

/// G-08: neither a claim without the effect nor an effect without the claim.
async fn a_handler_that_fails_leaves_no_claim(database: Subject) {
    let id = Uuid::now_v7();
    assert_eq!(deliver(&database, "billing", id, 7, End::Rollback).await, Claim::First);
    assert_eq!(claim_count(&database).await, 0);
    assert_eq!(applied(&database, "billing").await, (0, 0));
    assert_eq!(deliver(&database, "billing", id, 7, End::Commit).await, Claim::First);
    assert_eq!(applied(&database, "billing").await, (1, 7));
}

/// G-08.
async fn a_replay_changes_nothing(database: Subject) {
    let ids: Vec<Uuid> = (0..100).map(|_| Uuid::now_v7()).collect();
    let mut client = database.client().await;
    for expected in [Claim::First, Claim::Duplicate, Claim::Duplicate] {
        for (id, amount) in ids.iter().zip(1..) {
            let mut inbox = client.begin().await;
            let claim = inbox.once("billing", *id).await.expect("the claim can be made");
            assert_eq!(claim, expected);
            if claim == Claim::First {
                apply(&mut *inbox, "billing", amount).await;
            }
            inbox.end(End::Commit).await;
        }
        assert_eq!(applied(&database, "billing").await, (100, 5050));
        assert_eq!(claim_count(&database).await, 100);
    }
}
