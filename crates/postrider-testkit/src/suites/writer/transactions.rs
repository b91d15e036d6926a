//! Events live and die with their transaction.

use postrider::event::PAYLOAD_BYTES_MAX;
use postrider::{Events, LostCommit, Outcome, WriteError, events};

use super::{BoxError, Capabilities, End, Lost, OfSize, Subject, event};
use crate::case;
use crate::suites::Case;
use crate::suites::waiting::{turns, within};

const NO_LOSS: &str = "it has no connection that could be lost, or commits itself";

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(a_commit_publishes_and_a_rollback_leaves_nothing),
        case!(a_savepoint_takes_its_events_with_it),
        case!(transact_publishes_what_the_closure_returns),
        case!(transact_rolls_back_after_an_error),
        case!(a_commit_that_arrived_was_written).needing(|client| client.loses_commits, NO_LOSS),
        case!(a_commit_that_failed_was_not_written).needing(|client| client.loses_commits, NO_LOSS),
    ]
}

/// G-02.
async fn a_commit_publishes_and_a_rollback_leaves_nothing(database: Subject) {
    let mut client = database.client().await;
    let rolled_back = client.publish(&event("RolledBack"), End::Rollback).await;
    rolled_back.expect("the write itself works");
    let committed = client.publish(&event("Committed"), End::Commit).await;
    assert_eq!(database.ids().await, [committed.expect("the event is written")]);
}

/// G-02.
async fn a_savepoint_takes_its_events_with_it(database: Subject) {
    let mut client = database.client().await;
    let (outer, inner) = (event("Outer"), event("Inner"));
    client.publish_nested(&outer, &inner, End::Rollback).await;
    assert_eq!(database.ids().await, [outer.id()]);
    let (outer2, inner2) = (event("Outer"), event("Inner"));
    client.publish_nested(&outer2, &inner2, End::Commit).await;
    assert_eq!(database.ids().await, [outer.id(), outer2.id(), inner2.id()]);
}

async fn transact_publishes_what_the_closure_returns(database: Subject) {
    let mut client = database.client().await;
    let (paid, shipped) = (event("OrderPaid"), event("OrderShipped"));
    let done = client.transact(Ok(events![paid, shipped])).await;
    done.expect("the order is added");
    let done = client.transact(Ok(Events::none())).await;
    done.expect("the order is added");
    assert_eq!(database.ids().await, [paid.id(), shipped.id()]);
    assert_eq!(database.orders().await, 2);
}

/// G-02.
async fn transact_rolls_back_after_an_error(database: Subject) {
    let mut client = database.client().await;
    let error = client.transact(Err("no stock".into())).await;
    assert_eq!(error.expect_err("the closure failed").to_string(), "no stock");
    let invalid = events![event("E"), OfSize(PAYLOAD_BYTES_MAX + 1)];
    let error = client.transact(Ok(invalid)).await;
    let error = error.expect_err("an event is too large");
    assert!(error.is::<WriteError>(), "{error}");
    assert!(database.ids().await.is_empty());
    assert_eq!(database.orders().await, 0);
}

/// F47: the answer to COMMIT is lost. Trying again would do the work twice.
async fn a_commit_that_arrived_was_written(database: Subject) {
    let paid = event("OrderPaid");
    for (events, ids) in [(events![paid], vec![paid.id()]), (Events::none(), vec![])] {
        let mut client = database.client_losing_commit(Lost::After).await;
        let commit = lost_commit(client.transact(Ok(events)).await);
        assert_eq!(commit.event_ids(), ids);
        let outcome = database.client().await.was_written(&commit).await;
        assert_eq!(outcome.expect("the database can be asked"), Outcome::Written);
    }
    assert_eq!(database.ids().await, [paid.id()]);
    assert_eq!(database.orders().await, 2);
}

/// F47: the server goes away while it commits. Giving up would lose the work.
async fn a_commit_that_failed_was_not_written(database: Subject) {
    for events in [events![event("OrderPaid")], Events::none()] {
        let mut client = database.client_losing_commit(Lost::Before).await;
        let commit = lost_commit(client.transact(Ok(events)).await);
        let mut asking = database.client().await;
        // The server may not have noticed yet that the connection is gone.
        within("the server ends the transaction", async {
            loop {
                match asking.was_written(&commit).await.expect("the database can be asked") {
                    Outcome::Undecided => turns(1).await,
                    outcome => break assert_eq!(outcome, Outcome::NotWritten),
                }
            }
        })
        .await;
    }
    assert!(database.ids().await.is_empty());
    assert_eq!(database.orders().await, 0);
}

fn lost_commit(done: Result<(), BoxError>) -> LostCommit {
    let error = done.expect_err("the connection was lost");
    let error = error.downcast::<WriteError>().expect("it is the outbox's error");
    match *error {
        WriteError::Unknown { commit, .. } => commit,
        other => panic!("{other:?} says that nothing was written"),
    }
}
