//! Changing the way of progress, and pipelines beside each other.

use super::*;
use crate::source::SourceErrorKind;

/// A pipeline that has delivered 1 and 3, parked 4 and queued 5 (key d), and left 2 and 6.
async fn half_done(progress: Progress) -> Database {
    let database = Database::new();
    database.write(&["a:1", "b:2", "c:3", "d:4", "d:5", "e:6"]);
    let source = database.start(progress).await;
    let records = read(&source).await;
    settle(
        &source,
        &[
            (handle(&records, "1"), Verdict::Delivered),
            (handle(&records, "3"), Verdict::Delivered),
            (handle(&records, "4"), parked(true)),
            (handle(&records, "5"), Verdict::Queued),
        ],
    )
    .await;
    database
}

#[tokio::test]
async fn every_change_of_progress_keeps_what_is_left() {
    for before in Progress::ALL {
        for after in Progress::ALL {
            let database = half_done(before).await;
            let source = database.start(after).await;
            assert!(source.pending().await.unwrap());
            assert_eq!(drain(&source).await, ["2", "6"], "{before} to {after}");
            database.write(&["f:7"]);
            assert_eq!(drain(&source).await, ["7"], "{before} to {after}");
            assert!(!source.pending().await.unwrap());
            let recorded: String = database.one("SELECT progress FROM outbox_checkpoints");
            assert_eq!(recorded, after.as_str());

            // And back again, without anything being repeated.
            Box::new(source).close().await.unwrap();
            let source = database.start(before).await;
            assert!(drain(&source).await.is_empty(), "{before} to {after} and back");
            database.write(&["g:8"]);
            assert_eq!(drain(&source).await, ["8"]);
            let set_aside: i64 = database.one("SELECT count(*) FROM outbox_failures");
            assert_eq!(set_aside, 2);
        }
    }
}

#[tokio::test]
async fn a_change_to_a_cursor_that_is_broken_off_starts_over() {
    let database = half_done(Progress::Mark).await;
    let source = database.start(Progress::Cursor).await;
    let records = read(&source).await;
    assert_eq!(types(&records), ["2", "6"]);
    database.write(&["f:7"]);
    assert!(read(&source).await.is_empty(), "a new event waits until the old ones are done");
    settle(&source, &[(handle(&records, "6"), Verdict::Delivered)]).await;
    let recorded: String = database.one("SELECT progress FROM outbox_checkpoints");
    assert_eq!(recorded, "mark", "another pipeline must not mark yet");
    drop(source);

    let source = database.start(Progress::Cursor).await;
    assert_eq!(drain(&source).await, ["2", "7"]);
    let recorded: String = database.one("SELECT progress || position FROM outbox_checkpoints");
    assert_eq!(recorded, "cursor7");
}

#[tokio::test]
async fn a_change_from_a_cursor_that_is_broken_off_goes_on() {
    for after in Progress::ALL {
        let database = half_done(Progress::Cursor).await;
        // The new way is written down, and nothing is marked yet.
        database.execute("UPDATE outbox_checkpoints SET progress = 'mark'");
        let source = database.start(after).await;
        assert_eq!(drain(&source).await, ["2", "6"], "{after}");
    }
}

#[tokio::test]
async fn a_first_cursor_reads_everything_whoever_published_it() {
    let database = half_done(Progress::Mark).await;
    let options =
        SqliteOptions { pipeline: "second".to_owned(), ..database.options(Progress::Cursor) };
    let source = options.connect().await.unwrap();
    source.resume().await.unwrap();
    assert_eq!(drain(&source).await, ["1", "2", "3", "4", "5", "6"]);
}

#[tokio::test]
async fn a_cursor_with_a_long_way_behind_it_marks_all_of_it() {
    let database = Database::new();
    let sql = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 25000)
        INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT lower(hex(randomblob(16))), 'A', n, 'T', x'' FROM n";
    database.execute(sql);
    drop(database.start(Progress::Cursor).await);
    database.execute("UPDATE outbox_checkpoints SET position = 24999");
    let source = database.start(Progress::Mark).await;
    assert_eq!(read(&source).await.len(), 1);
    let left: i64 = database.one("SELECT count(*) FROM outbox WHERE published_at IS NULL");
    assert_eq!(left, 1);
}

#[tokio::test]
async fn pipelines_that_would_take_each_others_events_are_refused() {
    use Progress::{Cursor, Delete, Mark};
    let allowed = [(Cursor, Cursor), (Cursor, Mark), (Mark, Cursor)];
    for first in Progress::ALL {
        for second in Progress::ALL {
            let database = Database::new();
            drop(database.start(first).await);
            let options =
                SqliteOptions { pipeline: "second".to_owned(), ..database.options(second) };
            let connected = options.connect().await;
            if allowed.contains(&(first, second)) {
                connected.unwrap();
                continue;
            }
            let error = connected.unwrap_err();
            assert_eq!(error.kind, SourceErrorKind::Misconfigured);
            let expected = format!(
                "pipeline \"second\" cannot keep its progress by {second}: \
                 pipeline \"default\" reads outbox by {first}"
            );
            assert_eq!(error.to_string(), expected);
            assert!(error.hint.unwrap().contains("progress = \"cursor\""));
            assert!([first, second].contains(&Delete) || (first, second) == (Mark, Mark));
        }
    }
}
