//! Events that a consumer keeps: stored or dead.

use std::time::{Duration, SystemTime};

use postrider::{Claim, Event};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{KeptRow, claim_count, event, in_transaction, on_thread};
use crate::case;
use crate::suites::Case;
use crate::suites::waiting::{until, within};
use crate::suites::writer::{Capabilities, End, Subject};

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(an_event_is_stored_once_per_consumer),
        case!(an_event_is_kept_as_it_is),
        case!(an_event_that_was_claimed_is_not_stored),
        case!(an_event_that_is_being_handled_is_not_stored_again),
        case!(a_buried_event_is_a_duplicate),
        case!(a_stored_event_is_buried_where_it_is),
        case!(burying_rolls_back_with_its_transaction),
        case!(a_revived_event_is_due_and_unclaimed),
        case!(all_dead_events_of_a_consumer_are_revived),
        case!(an_event_is_revived_by_one_at_a_time),
    ]
}

/// That a time is of this minute, more or less.
fn is_now(time: SystemTime) -> bool {
    let minute = Duration::from_secs(60);
    let now = SystemTime::now();
    (now - minute..now + minute).contains(&time)
}

async fn ids(database: &Subject) -> Vec<String> {
    database.kept().await.into_iter().map(|row| row.id).collect()
}

async fn only(database: &Subject) -> KeptRow {
    let mut kept = database.kept().await;
    assert_eq!(kept.len(), 1, "{kept:?}");
    kept.remove(0)
}

/// G-08.
async fn an_event_is_stored_once_per_consumer(database: Subject) {
    let mut client = database.client().await;
    let (one, two) = (event(1), event(2));
    for (consumer, event, end, expected) in [
        ("billing", &one, End::Rollback, Claim::First),
        ("billing", &two, End::Commit, Claim::First),
        ("billing", &one, End::Commit, Claim::First),
        ("billing", &two, End::Commit, Claim::Duplicate),
        ("shipping", &two, End::Commit, Claim::First),
    ] {
        assert_eq!(in_transaction!(client, end, store(consumer, event)), expected, "{consumer}");
    }
    // In the order in which they came.
    let expected = [two.id(), one.id(), two.id()].map(|id| id.to_string());
    assert_eq!(ids(&database).await, expected);
    assert_eq!(claim_count(&database).await, 0, "it is claimed when it is handled");
}

/// G-04.
async fn an_event_is_kept_as_it_is(database: Subject) {
    let mut client = database.client().await;
    let occurred_at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_767_323_045_123_456);
    let full = Event::builder("Order", "42", "OrderPaid")
        .id(Uuid::from_u128(7))
        .version(u32::MAX)
        .payload(vec![0, 255, b'\\', b'x'], "application/octet-stream")
        .header("a", "b\"")
        .header("Größe", "ä")
        .topic("orders")
        .occurred_at(occurred_at)
        .build()
        .expect("the event is valid");
    let expected = KeptRow {
        consumer: "billing".to_owned(),
        id: "00000000-0000-0000-0000-000000000007".to_owned(),
        aggregate_type: "Order".to_owned(),
        aggregate_id: "42".to_owned(),
        event_type: "OrderPaid".to_owned(),
        event_version: u32::MAX,
        payload: vec![0, 255, b'\\', b'x'],
        content_type: "application/octet-stream".to_owned(),
        headers: r#"{"Größe":"ä","a":"b\""}"#.to_owned(),
        topic: Some("orders".to_owned()),
        occurred_at,
        stored_at: occurred_at,
        due_at: occurred_at,
        attempts: 0,
        error: None,
        dead: false,
    };
    let stored = in_transaction!(client, End::Commit, store("billing", &full));
    assert_eq!(stored, Claim::First);
    let row = only(&database).await;
    assert!(is_now(row.stored_at) && is_now(row.due_at), "{row:?}");
    let times = |row: KeptRow| KeptRow { stored_at: occurred_at, due_at: occurred_at, ..row };
    assert_eq!(times(row), expected);

    database.run("DELETE FROM inbox_messages").await;
    in_transaction!(client, End::Commit, bury("billing", &full, "no\0 stock", u32::MAX >> 1));
    let row = times(only(&database).await);
    let error = row.error.clone().unwrap_or_default().replace('\0', "");
    assert_eq!(error, "no stock");
    let expected =
        KeptRow { attempts: u32::MAX >> 1, dead: true, error: row.error.clone(), ..expected };
    assert_eq!(row, expected);
}

/// G-08.
async fn an_event_that_was_claimed_is_not_stored(database: Subject) {
    let mut client = database.client().await;
    let paid = event(1);
    let claim = in_transaction!(client, End::Commit, once("billing", paid.id()));
    assert_eq!(claim, Claim::First);
    let stored = in_transaction!(client, End::Commit, store("billing", &paid));
    assert_eq!(stored, Claim::Duplicate);
    assert!(database.kept().await.is_empty());
    let other = in_transaction!(client, End::Commit, store("shipping", &paid));
    assert_eq!(other, Claim::First);
}

/// G-08: whoever handles a stored event claims it and removes it. A redelivery in that moment
/// waits for the end.
async fn an_event_that_is_being_handled_is_not_stored_again(database: Subject) {
    let mut client = database.client().await;
    let paid = event(1);
    let stored = in_transaction!(client, End::Commit, store("billing", &paid));
    assert_eq!(stored, Claim::First);
    let mut handling = client.begin().await;
    let claim = handling.once("billing", paid.id()).await;
    assert_eq!(claim.expect("the claim can be made"), Claim::First);
    handling.execute("DELETE FROM inbox_messages").await;
    let (begun, has_begun) = oneshot::channel();
    let again = on_thread(&database, async move |connect| {
        let mut client = connect().await;
        let mut inbox = client.begin().await;
        begun.send(()).expect("the case waits for it");
        let stored = inbox.store("billing", &paid).await;
        inbox.end(End::Commit).await;
        stored.expect("the event can be stored")
    });
    within("the redelivery has begun", has_begun).await.expect("it has not failed");
    until("the redelivery waits", || database.someone_waits()).await;
    handling.end(End::Commit).await;
    let stored = within("the redelivery is done", again).await.expect("it has not failed");
    assert_eq!(stored, Claim::Duplicate);
    assert!(database.kept().await.is_empty());
}

/// G-08.
async fn a_buried_event_is_a_duplicate(database: Subject) {
    let mut client = database.client().await;
    let paid = event(1);
    in_transaction!(client, End::Commit, bury("billing", &paid, "no stock", 3));
    let claim = in_transaction!(client, End::Commit, once("billing", paid.id()));
    assert_eq!(claim, Claim::Duplicate);
    let stored = in_transaction!(client, End::Commit, store("billing", &paid));
    assert_eq!(stored, Claim::Duplicate);
    let row = only(&database).await;
    assert_eq!((row.dead, row.attempts, row.error.as_deref()), (true, 3, Some("no stock")));
    let other = in_transaction!(client, End::Commit, once("shipping", paid.id()));
    assert_eq!(other, Claim::First);
}

/// Also in the transaction that has claimed it: that is how one makes sure that nobody else has.
async fn a_stored_event_is_buried_where_it_is(database: Subject) {
    let mut client = database.client().await;
    let (one, two) = (event(1), event(2));
    for event in [&one, &two] {
        let stored = in_transaction!(client, End::Commit, store("billing", event));
        assert_eq!(stored, Claim::First);
    }
    let mut inbox = client.begin().await;
    let claim = inbox.once("billing", one.id()).await;
    assert_eq!(claim.expect("the claim can be made"), Claim::First);
    inbox.bury("billing", &one, "no stock", 3).await.expect("it can be buried");
    inbox.end(End::Commit).await;
    // Once more says why now.
    in_transaction!(client, End::Commit, bury("billing", &one, "no money", 4));
    let kept = database.kept().await;
    assert_eq!(ids(&database).await, [one.id(), two.id()].map(|id| id.to_string()));
    assert_eq!((kept[0].dead, kept[0].attempts), (true, 4));
    assert_eq!(kept[0].error.as_deref(), Some("no money"));
    assert_eq!((kept[1].dead, kept[1].error.as_deref()), (false, None));
}

async fn burying_rolls_back_with_its_transaction(database: Subject) {
    let mut client = database.client().await;
    let paid = event(1);
    in_transaction!(client, End::Rollback, bury("billing", &paid, "no stock", 3));
    assert!(database.kept().await.is_empty());
    let claim = in_transaction!(client, End::Commit, once("billing", paid.id()));
    assert_eq!(claim, Claim::First);
}

/// G-08.
async fn a_revived_event_is_due_and_unclaimed(database: Subject) {
    let mut client = database.client().await;
    let (paid, other) = (event(1), event(2));
    for event in [&paid, &other] {
        in_transaction!(client, End::Commit, bury("billing", event, "no stock", 3));
    }
    database.run("UPDATE inbox_messages SET due_at = '9000-01-01T00:00:00.000000Z'").await;
    for (consumer, id, end, expected) in [
        ("billing", Uuid::now_v7(), End::Commit, 0),
        ("shipping", paid.id(), End::Commit, 0),
        ("billing", paid.id(), End::Rollback, 1),
        ("billing", paid.id(), End::Commit, 1),
        ("billing", paid.id(), End::Commit, 0),
    ] {
        assert_eq!(
            in_transaction!(client, end, revive(consumer, Some(id))),
            expected,
            "{consumer}"
        );
    }
    let kept = database.kept().await;
    assert_eq!((kept[0].dead, kept[0].attempts), (false, 0));
    assert!(is_now(kept[0].due_at), "{kept:?}");
    assert!(kept[1].dead && !is_now(kept[1].due_at), "{kept:?}");
    let stored = in_transaction!(client, End::Commit, store("billing", &paid));
    assert_eq!(stored, Claim::Duplicate, "it is kept");
    let claim = in_transaction!(client, End::Commit, once("billing", paid.id()));
    assert_eq!(claim, Claim::First);
    let claim = in_transaction!(client, End::Commit, once("billing", other.id()));
    assert_eq!(claim, Claim::Duplicate);
}

async fn all_dead_events_of_a_consumer_are_revived(database: Subject) {
    let mut client = database.client().await;
    let (dead, stored, claimed) = ([event(1), event(2)], event(3), event(4));
    for event in &dead {
        in_transaction!(client, End::Commit, bury("billing", event, "no stock", 3));
        in_transaction!(client, End::Commit, bury("shipping", event, "no truck", 3));
    }
    let _ = in_transaction!(client, End::Commit, store("billing", &stored));
    let _ = in_transaction!(client, End::Commit, once("billing", claimed.id()));
    for expected in [2, 0] {
        assert_eq!(in_transaction!(client, End::Commit, revive("billing", None)), expected);
    }
    for row in database.kept().await {
        assert_eq!(row.dead, row.consumer == "shipping", "{row:?}");
    }
    let again = in_transaction!(client, End::Commit, once("billing", claimed.id()));
    assert_eq!(again, Claim::Duplicate, "only claims of dead events are removed");
    assert_eq!(claim_count(&database).await, 3);
}

/// G-08: the second must not remove the claim of whoever handled the event in between.
async fn an_event_is_revived_by_one_at_a_time(database: Subject) {
    let mut client = database.client().await;
    let paid = event(1);
    in_transaction!(client, End::Commit, bury("billing", &paid, "no stock", 3));
    let mut first = client.begin().await;
    let revived = first.revive("billing", None).await;
    assert_eq!(revived.expect("it can be revived"), 1);
    let claim = first.once("billing", paid.id()).await;
    assert_eq!(claim.expect("the claim can be made"), Claim::First);
    let (begun, has_begun) = oneshot::channel();
    let second = on_thread(&database, async move |connect| {
        let mut client = connect().await;
        let mut inbox = client.begin().await;
        begun.send(()).expect("the case waits for it");
        let revived = inbox.revive("billing", None).await;
        inbox.end(End::Commit).await;
        revived.expect("it can be revived")
    });
    within("the second has begun", has_begun).await.expect("it has not failed");
    until("the second waits", || database.someone_waits()).await;
    first.end(End::Commit).await;
    let revived = within("the second is done", second).await.expect("it has not failed");
    assert_eq!(revived, 0);
    assert_eq!(claim_count(&database).await, 1);
}
