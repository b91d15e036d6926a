//! Events live and die with their transaction.

use postrider::event::PAYLOAD_BYTES_MAX;
use postrider::{Events, WriteError, events};

use super::{End, OfSize, Subject, event};
use crate::case;
use crate::suites::Case;

pub(super) fn cases() -> Vec<Case<Subject, ()>> {
    vec![
        case!(a_commit_publishes_and_a_rollback_leaves_nothing),
        case!(a_savepoint_takes_its_events_with_it),
        case!(transact_publishes_what_the_closure_returns),
        case!(transact_rolls_back_after_an_error),
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
