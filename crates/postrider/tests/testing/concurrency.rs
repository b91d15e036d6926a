//! Transactions that want the same row wait for each other.

use std::error::Error as _;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use postrider::testing::{HeldByAnother, MemoryDatabase};
use postrider::{Claim, Inbox, Outbox, WriteError};
use uuid::Uuid;

use crate::placed;

/// What a second transaction gets, that claims an event while the first one has it.
fn second_claim(commit: bool) -> Claim {
    // Longer than any machine takes, so that nothing depends on it.
    let database = MemoryDatabase::new().with_wait_max(Duration::from_secs(120));
    let event_id = Uuid::now_v7();
    let mut first = database.begin();
    assert_eq!(Inbox::new().once(&mut first, "billing", event_id).unwrap(), Claim::First);

    let (begun, wait_until_begun) = mpsc::channel();
    let second = thread::spawn(move || {
        let mut tx = database.begin();
        begun.send(()).unwrap();
        let claim = Inbox::new().once(&mut tx, "billing", event_id).unwrap();
        tx.commit().unwrap();
        claim
    });
    wait_until_begun.recv().unwrap();
    if commit {
        first.commit().unwrap()
    } else {
        drop(first)
    }
    second.join().unwrap()
}

#[test]
fn a_second_claim_waits_for_the_first() {
    assert_eq!(second_claim(true), Claim::Duplicate);
    assert_eq!(second_claim(false), Claim::First);
}

#[test]
fn of_many_consumers_at_once_one_applies() {
    let database = MemoryDatabase::new();
    let event_id = Uuid::now_v7();
    let handle = |database: &MemoryDatabase| {
        let mut tx = database.begin();
        let claim = Inbox::new().once(&mut tx, "billing", event_id).unwrap();
        tx.commit().unwrap();
        claim
    };
    let firsts = thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| handle(&database))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(firsts.iter().filter(|claim| **claim == Claim::First).count(), 1);
}

#[test]
fn what_nobody_ends_fails_and_says_what_to_do() {
    let database = MemoryDatabase::new().with_wait_max(Duration::from_millis(1));
    let event = placed("42");
    let mut first = database.begin();
    assert_eq!(Inbox::new().once(&mut first, "billing", event.id()).unwrap(), Claim::First);
    Outbox::new().publish(&mut first, &event).unwrap();

    let mut second = database.begin();
    let error = Inbox::new().once(&mut second, "billing", event.id()).unwrap_err();
    assert!(matches!(error, WriteError::Database { .. }), "{error:?}");
    let said = error.source().unwrap();
    assert!(said.is::<HeldByAnother>());
    let expected = format!(
        "the claim of billing on {} was written by another open transaction, which did not end \
         within 1ms; commit or drop that one first, or let it end in another thread",
        event.id()
    );
    assert_eq!(said.to_string(), expected);
    let error = Outbox::new().publish(&mut second, &event).unwrap_err();
    assert!(error.source().unwrap().to_string().contains("of outbox was written by another"));

    // Others are not in the way, and neither is the first once it has ended.
    assert_eq!(Inbox::new().once(&mut second, "search", event.id()).unwrap(), Claim::First);
    drop(first);
    assert_eq!(Inbox::new().once(&mut second, "billing", event.id()).unwrap(), Claim::First);
}

#[test]
fn a_committed_claim_holds_nobody_up() {
    let database = MemoryDatabase::new().with_wait_max(Duration::from_millis(1));
    let event_id = Uuid::now_v7();
    let mut tx = database.begin();
    assert_eq!(Inbox::new().once(&mut tx, "billing", event_id).unwrap(), Claim::First);
    tx.commit().unwrap();
    let (mut one, mut two) = (database.begin(), database.begin());
    for tx in [&mut one, &mut two] {
        assert_eq!(Inbox::new().once(tx, "billing", event_id).unwrap(), Claim::Duplicate);
    }
}
