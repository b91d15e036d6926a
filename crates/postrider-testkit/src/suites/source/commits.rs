//! Only what was committed, and all of it.

use super::reader::Reader;
use super::{OutboxCapabilities, Subject};
use crate::case;
use crate::suites::Case;
use crate::suites::numbered::{event, events, numbers};
use crate::suites::waiting::{turns, within};

pub(super) fn cases() -> Vec<Case<Subject, OutboxCapabilities>> {
    let several = |can: &OutboxCapabilities| can.concurrent_transactions;
    let one = |can: &OutboxCapabilities| !can.concurrent_transactions;
    vec![
        case!(rolled_back_events_are_never_read),
        case!(uncommitted_events_come_with_their_commit),
        case!(a_late_commit_is_not_lost).needing(several, "the database has one writer at a time"),
        case!(a_late_commit_is_not_lost_over_a_restart)
            .needing(several, "the database has one writer at a time"),
        case!(a_writer_that_holds_the_lock_delays_and_loses_nothing)
            .needing(one, "writers of this database do not lock each other out"),
    ]
}

/// G-02.
async fn rolled_back_events_are_never_read(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    outbox.write(&[event("a", 1)]).await;
    let mut transaction = outbox.begin().await;
    transaction.publish(&event("a", 2)).await;
    reader.read(1).await;
    transaction.rollback().await;
    reader.expect_nothing("event 2 was rolled back").await;
    outbox.write(&[event("a", 3)]).await;
    assert_eq!(numbers(&reader.read(1).await), [3]);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    assert_eq!(reader.drain().await, [1, 3]);
}

/// G-02.
async fn uncommitted_events_come_with_their_commit(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    let mut transaction = outbox.begin().await;
    transaction.publish(&event("a", 1)).await;
    transaction.publish(&event("a", 2)).await;
    reader.expect_nothing("nothing is committed").await;
    assert!(!reader.pending().await);
    transaction.commit().await;
    assert_eq!(numbers(&reader.read(2).await), [1, 2]);
}

/// G-01: a transaction that began first and commits last.
async fn a_late_commit_is_not_lost(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    let mut late = outbox.begin().await;
    late.publish(&event("late", 1)).await;
    let mut early = outbox.begin().await;
    early.publish(&event("early", 2)).await;
    early.commit().await;
    let read = reader.read(1).await;
    assert_eq!(numbers(&read), [2]);
    reader.deliver(&read).await;
    late.publish(&event("late", 3)).await;
    late.commit().await;
    assert_eq!(reader.drain().await, [1, 3]);
}

/// G-01: the same when the progress is read back in between.
async fn a_late_commit_is_not_lost_over_a_restart(outbox: Subject) {
    let reader = Reader::start(&*outbox).await;
    let mut late = outbox.begin().await;
    late.publish(&event("late", 1)).await;
    outbox.write(&[event("early", 2)]).await;
    assert_eq!(reader.drain().await, [2]);
    reader.close().await;
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("one is delivered, one not committed").await;
    late.commit().await;
    assert_eq!(reader.drain().await, [1]);
}

/// G-01: whoever has to wait for the lock waits, be it the relay or another writer.
async fn a_writer_that_holds_the_lock_delays_and_loses_nothing(outbox: Subject) {
    outbox.write(&events("a", 1..4)).await;
    let reader = Reader::start(&*outbox).await;
    let mut holder = outbox.begin().await;
    holder.publish(&event("a", 4)).await;
    let read = reader.read(3).await;
    assert_eq!(numbers(&read), [1, 2, 3], "reading does not wait");
    let last = [event("a", 5)];
    let (_, (), ()) = tokio::join!(
        within("settling behind the lock", reader.deliver(&read)),
        within("writing behind the lock", outbox.write(&last)),
        async {
            turns(50).await;
            holder.commit().await;
        }
    );
    assert_eq!(reader.drain().await, [4, 5]);
    reader.kill();
    let reader = Reader::start(&*outbox).await;
    reader.expect_nothing("everything is delivered").await;
}
