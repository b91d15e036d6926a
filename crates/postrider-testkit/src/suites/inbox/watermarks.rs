//! The highest version of each key.

use postrider::inbox::VERSION_MAX;
use postrider::{Key, Sequence};
use tokio::sync::oneshot;

use super::{in_transaction, on_thread};
use crate::case;
use crate::suites::Case;
use crate::suites::waiting::{until, within};
use crate::suites::writer::{Capabilities, End, Subject};

pub(super) fn cases() -> Vec<Case<Subject, Capabilities>> {
    vec![
        case!(a_version_is_next_or_leaves_a_gap_or_is_stale),
        case!(each_consumer_and_key_has_a_watermark),
        case!(a_watermark_rolls_back_with_its_transaction),
        case!(the_highest_version_is_kept),
        case!(a_watermark_is_moved_by_one_at_a_time),
    ]
}

fn key(aggregate_type: &str, aggregate_id: &str) -> Key {
    Key { aggregate_type: aggregate_type.to_owned(), aggregate_id: aggregate_id.to_owned() }
}

/// G-08.
async fn a_version_is_next_or_leaves_a_gap_or_is_stale(database: Subject) {
    let mut client = database.client().await;
    let order = key("Order", "42");
    for (version, expected) in [
        (3, Sequence::Gap { last: 0 }),
        (4, Sequence::Next),
        (4, Sequence::Stale { last: 4 }),
        (1, Sequence::Stale { last: 4 }),
        (9, Sequence::Gap { last: 4 }),
        (5, Sequence::Stale { last: 9 }),
        (10, Sequence::Next),
        (12, Sequence::Gap { last: 10 }),
    ] {
        let sequence = in_transaction!(client, End::Commit, advance("billing", &order, version));
        assert_eq!(sequence, expected, "{version}");
    }
}

async fn each_consumer_and_key_has_a_watermark(database: Subject) {
    let mut client = database.client().await;
    let order = key("Order", "42");
    assert_eq!(
        in_transaction!(client, End::Commit, advance("billing", &order, 7)),
        Sequence::Gap { last: 0 }
    );
    for (consumer, key) in [
        ("shipping", order.clone()),
        ("billing", key("Order", "43")),
        ("billing", key("Invoice", "42")),
    ] {
        for (version, expected) in [(1, Sequence::Next), (3, Sequence::Gap { last: 1 })] {
            let sequence = in_transaction!(client, End::Commit, advance(consumer, &key, version));
            assert_eq!(sequence, expected, "{consumer} {key}");
        }
    }
    let stale = in_transaction!(client, End::Commit, advance("billing", &order, 7));
    assert_eq!(stale, Sequence::Stale { last: 7 });
}

/// G-08: what was refused counts as not seen.
async fn a_watermark_rolls_back_with_its_transaction(database: Subject) {
    let mut client = database.client().await;
    let order = key("Order", "42");
    for (version, end, expected) in [
        (1, End::Rollback, Sequence::Next),
        (2, End::Commit, Sequence::Gap { last: 0 }),
        (5, End::Rollback, Sequence::Gap { last: 2 }),
        (3, End::Commit, Sequence::Next),
        (5, End::Commit, Sequence::Gap { last: 3 }),
    ] {
        let sequence = in_transaction!(client, end, advance("billing", &order, version));
        assert_eq!(sequence, expected, "{version}");
    }
    let mut inbox = client.begin().await;
    for (version, expected) in [(6, Sequence::Next), (6, Sequence::Stale { last: 6 })] {
        let sequence = inbox.advance("billing", &order, version).await;
        assert_eq!(sequence.expect("the watermark can be moved"), expected);
    }
    inbox.end(End::Commit).await;
}

async fn the_highest_version_is_kept(database: Subject) {
    let mut client = database.client().await;
    let order = key("Order", "42");
    for (version, expected) in [
        (0, Sequence::Next),
        (VERSION_MAX - 1, Sequence::Gap { last: 0 }),
        (VERSION_MAX, Sequence::Next),
        (VERSION_MAX, Sequence::Stale { last: VERSION_MAX }),
    ] {
        let sequence = in_transaction!(client, End::Commit, advance("billing", &order, version));
        assert_eq!(sequence, expected, "{version}");
    }
}

/// G-08: the second waits, and learns of the first.
async fn a_watermark_is_moved_by_one_at_a_time(database: Subject) {
    let order = key("Order", "42");
    for (known, version, end, expected) in [
        (None, 1, End::Commit, Sequence::Stale { last: 1 }),
        (Some(1), 2, End::Rollback, Sequence::Next),
        (Some(2), 3, End::Commit, Sequence::Stale { last: 3 }),
    ] {
        let mut client = database.client().await;
        let mut first = client.begin().await;
        let sequence = first.advance("billing", &order, version).await;
        let sequence = sequence.expect("the watermark can be moved");
        assert_eq!(sequence, Sequence::of(known, version));
        let (begun, has_begun) = oneshot::channel();
        let same = order.clone();
        let second = on_thread(&database, async move |connect| {
            let mut client = connect().await;
            let mut inbox = client.begin().await;
            begun.send(()).expect("the case waits for it");
            let sequence = inbox.advance("billing", &same, version).await;
            inbox.end(End::Commit).await;
            sequence.expect("the watermark can be moved")
        });
        within("the second has begun", has_begun).await.expect("it has not failed");
        until("the second waits", || database.someone_waits()).await;
        first.end(end).await;
        let sequence = within("the second is done", second).await.expect("it has not failed");
        assert_eq!(sequence, expected, "{version}");
    }
}
