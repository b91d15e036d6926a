//! A transaction in memory does what a real one does.

use std::fmt::Debug;
use std::time::Duration;

use postrider::testing::{MemoryDatabase, published};
use postrider::{Claim, Inbox, InvalidEvent, Key, Outbox, Sequence, WriteError};
use uuid::Uuid;

use crate::{OrderPaid, migrated, placed, publish};

fn key() -> Key {
    Key { aggregate_type: "Order".to_owned(), aggregate_id: "42".to_owned() }
}

#[test]
fn nothing_is_visible_until_the_commit() {
    let database = MemoryDatabase::new();
    let event = placed("42");
    let mut tx = database.clone().begin();
    assert_eq!(Outbox::new().publish(&mut tx, &event).unwrap(), event.id());
    assert_eq!(Inbox::new().once(&mut tx, "billing", event.id()).unwrap(), Claim::First);
    assert_eq!(Inbox::new().once(&mut tx, "billing", event.id()).unwrap(), Claim::Duplicate);
    assert_eq!(Inbox::new().advance(&mut tx, "billing", &key(), 1).unwrap(), Sequence::Next);
    assert_eq!(Inbox::new().store(&mut tx, "search", &event).unwrap(), Claim::First);

    assert!(published(&database).is_empty());
    assert!(!database.is_claimed("billing", event.id()));
    assert_eq!(database.watermark("billing", &key()), None);
    assert!(database.stored("search").is_empty());

    tx.commit().unwrap();
    assert_eq!(published(&database), std::slice::from_ref(&event));
    assert!(database.is_claimed("billing", event.id()));
    assert!(!database.is_claimed("search", event.id()));
    assert_eq!(database.watermark("billing", &key()), Some(1));
    assert_eq!(database.stored("search"), [event]);
}

#[test]
fn all_is_gone_with_a_transaction_that_is_dropped() {
    let database = MemoryDatabase::new();
    let event = placed("42");
    for explicit in [true, false] {
        let mut tx = database.begin();
        Outbox::new().publish(&mut tx, &event).unwrap();
        assert_eq!(Inbox::new().once(&mut tx, "billing", event.id()).unwrap(), Claim::First);
        assert_eq!(
            Inbox::new().advance(&mut tx, "billing", &key(), 7).unwrap(),
            Sequence::Gap { last: 0 }
        );
        Inbox::new().bury(&mut tx, "search", &event, "broken", 3).unwrap();
        if explicit {
            tx.rollback().unwrap()
        } else {
            drop(tx)
        }

        assert!(published(&database).is_empty());
        assert!(!database.is_claimed("billing", event.id()));
        assert_eq!(database.watermark("billing", &key()), None);
        assert!(database.dead("search").is_empty());
    }
    // What was rolled back is in nobody's way.
    publish(&database, &[event]);
}

#[test]
fn what_a_real_outbox_refuses_is_refused() {
    let database = MemoryDatabase::new();
    let (known, new) = (placed("1"), placed("2"));
    publish(&database, std::slice::from_ref(&known));

    let mut tx = database.begin();
    let error = Outbox::new().publish(&mut tx, &known).unwrap_err();
    assert!(matches!(error, WriteError::Duplicate { id } if id == known.id()), "{error:?}");
    // All or none, also if the transaction goes on.
    let error = Outbox::new().publish_all(&mut tx, [&new, &known]).unwrap_err();
    assert!(matches!(error, WriteError::Duplicate { id } if id == known.id()), "{error:?}");
    let error = Outbox::new().publish_all(&mut tx, [&new, &new]).unwrap_err();
    assert!(matches!(error, WriteError::Duplicate { id } if id == new.id()), "{error:?}");
    struct Broken;
    impl postrider::ToEvent for Broken {
        fn to_event(&self) -> Result<postrider::Event, InvalidEvent> {
            postrider::Event::builder("Order", "", "OrderPaid").build()
        }
    }
    let error = Outbox::new().publish(&mut tx, &Broken).unwrap_err();
    assert!(matches!(error, WriteError::Invalid(InvalidEvent::Empty { .. })), "{error:?}");
    let error = Inbox::new().once(&mut tx, "", known.id()).unwrap_err();
    assert!(matches!(error, WriteError::Invalid(InvalidEvent::Empty { .. })), "{error:?}");
    tx.commit().unwrap();
    assert_eq!(published(&database), [known]);
}

#[test]
fn each_table_is_an_outbox_of_its_own() {
    let database = MemoryDatabase::new();
    let audit = Outbox::in_table("audit").unwrap();
    let event = placed("42");
    let mut tx = database.begin();
    audit.publish(&mut tx, &event).unwrap();
    Outbox::new().publish(&mut tx, &OrderPaid { order_id: 42, cents: 999 }).unwrap();
    tx.commit().unwrap();
    assert_eq!(database.events(&audit), [event]);
    assert_eq!(published(&database)[0].event_type(), "OrderPaid");
}

fn note(seen: &mut Vec<String>, answer: Result<impl Debug, WriteError>) {
    seen.push(format!("{:?}", answer.unwrap()));
}

/// Runs the same calls on any client that blocks, and notes what they answer.
macro_rules! transcript {
    ($begin:expr) => {{
        let inbox = Inbox::new();
        let (one, two, three) = (placed("1"), placed("2"), placed("3"));
        let mut seen: Vec<String> = Vec::new();
        let mut tx = $begin;
        note(&mut seen, inbox.once_all(&mut tx, "a", &[two.id(), one.id(), two.id()]));
        note(&mut seen, inbox.once_all(&mut tx, "a", &[]));
        note(&mut seen, inbox.once(&mut tx, "b", one.id()));
        for version in [3, 4, 9, 9, 2] {
            note(&mut seen, inbox.advance(&mut tx, "a", &key(), version));
        }
        note(&mut seen, inbox.store(&mut tx, "a", &one));
        note(&mut seen, inbox.store(&mut tx, "a", &three));
        note(&mut seen, inbox.store(&mut tx, "a", &three));
        note(&mut seen, inbox.bury(&mut tx, "a", &three, "broken", 5));
        note(&mut seen, inbox.once(&mut tx, "a", three.id()));
        tx.commit().unwrap();

        let mut tx = $begin;
        note(&mut seen, inbox.advance(&mut tx, "a", &key(), 10));
        note(&mut seen, inbox.advance(&mut tx, "b", &key(), 10));
        note(&mut seen, inbox.store(&mut tx, "a", &three));
        note(&mut seen, inbox.bury(&mut tx, "b", &two, "broken", 1));
        note(&mut seen, inbox.bury(&mut tx, "b", &two, "broken again", 2));
        note(&mut seen, inbox.revive(&mut tx, "b", Some(three.id())));
        note(&mut seen, inbox.revive(&mut tx, "b", Some(two.id())));
        note(&mut seen, inbox.revive(&mut tx, "b", None));
        note(&mut seen, inbox.revive(&mut tx, "a", None));
        note(&mut seen, inbox.store(&mut tx, "a", &three));
        note(&mut seen, inbox.once(&mut tx, "a", three.id()));
        note(&mut seen, inbox.once(&mut tx, "b", Uuid::nil()));
        tx.commit().unwrap();

        let mut tx = $begin;
        note(&mut seen, inbox.prune(&mut tx, "a", Duration::from_secs(3600), 100));
        note(&mut seen, inbox.prune(&mut tx, "a", Duration::ZERO, 2));
        note(&mut seen, inbox.prune(&mut tx, "a", Duration::ZERO, 100));
        note(&mut seen, inbox.prune(&mut tx, "a", Duration::ZERO, 100));
        note(&mut seen, inbox.once(&mut tx, "a", one.id()));
        note(&mut seen, inbox.store(&mut tx, "a", &two));
        tx.commit().unwrap();
        seen
    }};
}

#[test]
fn every_call_of_the_inbox_answers_as_in_sqlite() {
    let database = MemoryDatabase::new();
    let mut conn = migrated();
    let in_memory = transcript!(database.begin());
    let in_sqlite = transcript!(conn.transaction().unwrap());
    assert_eq!(in_memory, in_sqlite);
    assert!(in_memory.contains(&"Gap { last: 4 }".to_owned()), "{in_memory:?}");
}

#[test]
fn messages_are_kept_in_order_with_what_befell_them() {
    let database = MemoryDatabase::new();
    let inbox = Inbox::new();
    let (one, two) = (placed("1"), placed("2"));
    let mut tx = database.begin();
    assert_eq!(inbox.store(&mut tx, "search", &two).unwrap(), Claim::First);
    assert_eq!(inbox.store(&mut tx, "search", &one).unwrap(), Claim::First);
    tx.commit().unwrap();
    assert_eq!(database.stored("search"), [two.clone(), one.clone()]);

    let mut tx = database.begin();
    inbox.bury(&mut tx, "search", &two, "no such index", 5).unwrap();
    tx.commit().unwrap();
    assert_eq!(database.stored("search"), std::slice::from_ref(&one));
    let dead = database.dead("search");
    assert_eq!((dead.len(), &dead[0].event, dead[0].attempts), (1, &two, 5));
    assert_eq!(dead[0].error, "no such index");
    assert!(database.is_claimed("search", two.id()));

    let mut tx = database.begin();
    assert_eq!(inbox.revive(&mut tx, "search", None).unwrap(), 1);
    tx.commit().unwrap();
    assert_eq!(database.stored("search"), [two.clone(), one]);
    assert!(!database.is_claimed("search", two.id()));
}
