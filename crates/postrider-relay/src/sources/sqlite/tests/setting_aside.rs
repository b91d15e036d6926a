//! Events set aside, and whose turn it is.

use postrider::Key;

use super::*;
use crate::source::SourceErrorKind;

fn key(id: &str) -> Key {
    Key { aggregate_type: "Order".to_owned(), aggregate_id: id.to_owned() }
}

/// Seq, state, blocks and whether it is due at some time, of each row set aside.
fn aside(database: &Database) -> Vec<(i64, String, bool, bool)> {
    let conn = database.conn();
    let sql = "SELECT seq, state, blocks, due_at IS NOT NULL FROM outbox_failures ORDER BY seq";
    let mut statement = conn.prepare(sql).unwrap();
    statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

fn row(seq: i64, state: &str, blocks: bool, due: bool) -> (i64, String, bool, bool) {
    (seq, state.to_owned(), blocks, due)
}

const NOW: Duration = Duration::ZERO;
const LATER: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_parked_event_holds_its_key_and_a_retry_replays_it_in_order() {
    for progress in Progress::ALL {
        let database = Database::new();
        database.write(&["a:1", "b:2", "a:3", "a:4"]);
        let source = database.start(progress).await;
        let records = read(&source).await;
        let settled = settle(
            &source,
            &[
                (handle(&records, "1"), parked(true)),
                (handle(&records, "2"), Verdict::Delivered),
                (handle(&records, "3"), Verdict::Queued),
                (handle(&records, "4"), Verdict::Queued),
            ],
        )
        .await;
        assert!(settled.unblocked.is_empty());
        assert_eq!(
            aside(&database),
            [
                row(1, "parked", true, false),
                row(3, "queued", true, false),
                row(4, "queued", true, false)
            ]
        );
        assert!(read(&source).await.is_empty());
        assert!(!source.pending().await.unwrap());
        drop(source);

        let source = database.options(progress).connect().await.unwrap();
        assert_eq!(source.resume().await.unwrap().blocked_keys, [key("a")]);
        database.execute("UPDATE outbox_failures SET state = 'deferred', attempts = 0, due_at = '2000-01-01T00:00:00.000000Z' WHERE seq = 1");
        assert!(source.pending().await.unwrap());
        database.write(&["b:5"]);
        let records = read(&source).await;
        assert_eq!(types(&records), ["1", "3", "4", "5"], "{progress}: due ones come first");
        let attempts: Vec<u32> = records.iter().map(|record| record.attempts).collect();
        assert_eq!(attempts, [0; 4]);

        let settled = settle(
            &source,
            &[
                (handle(&records, "1"), Verdict::Delivered),
                (handle(&records, "3"), Verdict::Released),
            ],
        )
        .await;
        assert!(settled.unblocked.is_empty());
        assert_eq!(aside(&database)[0], row(3, "queued", true, true), "the next one is due");
        let again = read(&source).await;
        assert_eq!(types(&again), ["3"], "4 is still under way");
        let settled = settle(
            &source,
            &[
                (handle(&records, "4"), Verdict::Delivered),
                (handle(&again, "3"), Verdict::Delivered),
                (handle(&records, "5"), Verdict::Delivered),
            ],
        )
        .await;
        assert_eq!(settled.unblocked, [key("a")]);
        assert!(aside(&database).is_empty());
        assert!(!source.pending().await.unwrap());
    }
}

#[tokio::test]
async fn an_event_that_queues_behind_nothing_is_due_at_once() {
    let database = Database::new();
    database.write(&["a:1"]);
    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    settle_all(&source, &records, &Verdict::Queued).await;
    assert_eq!(aside(&database), [row(1, "queued", true, true)]);
    let back = read(&source).await;
    assert_eq!(types(&back), ["1"]);
    assert!(back[0].returned);
    let settled = settle_all(&source, &back, &Verdict::Delivered).await;
    assert_eq!(settled.unblocked, [key("a")]);
}

#[tokio::test]
async fn what_does_not_block_wakes_what_waits_behind_it() {
    let database = Database::new();
    database.write(&["a:1", "a:2", "b:3"]);
    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    let settled = settle(
        &source,
        &[
            (handle(&records, "1"), deferred(NOW)),
            (handle(&records, "2"), Verdict::Queued),
            (handle(&records, "3"), parked(false)),
        ],
    )
    .await;
    assert!(settled.unblocked.is_empty(), "b was never blocked");
    let back = read(&source).await;
    assert_eq!(types(&back), ["1", "2"]);
    let verdicts = [(handle(&back, "1"), parked(false)), (handle(&back, "2"), Verdict::Queued)];
    assert!(settle(&source, &verdicts).await.unblocked.is_empty());
    assert_eq!(
        aside(&database),
        [
            row(1, "parked", false, false),
            row(2, "queued", true, true),
            row(3, "parked", false, false)
        ]
    );
    let back = read(&source).await;
    assert_eq!(types(&back), ["2"]);
    assert_eq!(settle_all(&source, &back, &parked(false)).await.unblocked, [key("a")]);
}

#[tokio::test]
async fn a_later_event_of_a_key_never_overtakes_an_earlier_one() {
    let database = Database::new();
    database.write(&["a:1", "a:2", "a:3", "a:4"]);
    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    // Due in the wrong order, with a parked one between them.
    let verdicts = [
        (handle(&records, "1"), deferred(Duration::from_millis(100))),
        (handle(&records, "2"), deferred(NOW)),
        (handle(&records, "3"), parked(true)),
        (handle(&records, "4"), deferred(NOW)),
    ];
    settle(&source, &verdicts).await;
    assert!(read(&source).await.is_empty(), "2 and 4 are due, but 1 comes first");
    let back = wait(&source).await;
    assert_eq!(types(&back), ["1", "2"], "3 is parked and 4 stands behind it");
    settle_all(&source, &back, &Verdict::Delivered).await;
    assert!(read(&source).await.is_empty());
    assert!(!source.pending().await.unwrap());
    assert_eq!(aside(&database)[0], row(3, "parked", true, false));
}

#[tokio::test]
async fn a_row_that_is_gone_or_published_changes_nothing() {
    for progress in Progress::ALL {
        let database = Database::new();
        database.write(&["a:1", "a:2"]);
        let source = database.start(progress).await;
        let records = read(&source).await;
        database.execute("DELETE FROM outbox");
        let verdicts =
            [(handle(&records, "1"), parked(true)), (handle(&records, "2"), Verdict::Released)];
        assert!(settle(&source, &verdicts).await.unblocked.is_empty());
        assert!(aside(&database).is_empty());
        assert!(read(&source).await.is_empty(), "{progress}");
        assert!(!source.pending().await.unwrap(), "{progress}");
    }
}

#[tokio::test]
async fn an_event_waits_long_and_keeps_its_attempts() {
    let database = Database::new();
    database.write(&["a:1"]);
    let source = database.start(Progress::Delete).await;
    let records = read(&source).await;
    settle_all(&source, &records, &deferred(Duration::MAX)).await;
    assert!(read(&source).await.is_empty());
    assert!(source.pending().await.unwrap(), "it will be tried again by itself");
    assert_eq!(database.one::<i64>("SELECT count(*) FROM outbox"), 0);
    database.execute("UPDATE outbox_failures SET due_at = '2000-01-01T00:00:00.000000Z'");
    let back = read(&source).await;
    assert_eq!(back[0].attempts, 1);
    let later = Verdict::Deferred { delay: LATER, failure: None, blocks: true };
    settle_all(&source, &back, &later).await;
    let kept: String = database.one("SELECT attempts || kind || error FROM outbox_failures");
    assert_eq!(kept, "1failedno luck");
}

#[tokio::test]
async fn a_dead_letter_is_never_overwritten_after_the_numbering_was_reset() {
    let database = Database::new();
    database.write(&["a:1"]);
    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    settle_all(&source, &records, &parked(true)).await;
    database.execute("DELETE FROM outbox; DELETE FROM sqlite_sequence");
    database.write(&["b:new"]);
    let records = read(&source).await;
    assert_eq!(types(&records), ["new"]);
    let settlement = Settlement { handle: records[0].handle, verdict: parked(true) };
    let error = source.settle(std::slice::from_ref(&settlement)).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unsafe);
    assert!(error.to_string().contains("the numbering of outbox was reset"), "{error}");
    assert_eq!(database.one::<String>("SELECT event_type FROM outbox_failures"), "1");
}

#[tokio::test]
async fn nothing_is_settled_without_a_checkpoint() {
    for progress in Progress::ALL {
        let database = Database::new();
        database.write(&["a:1"]);
        let source = database.start(progress).await;
        let records = read(&source).await;
        database.execute("DELETE FROM outbox_checkpoints");
        let settlement = Settlement { handle: records[0].handle, verdict: parked(true) };
        let error = source.settle(std::slice::from_ref(&settlement)).await.unwrap_err();
        assert_eq!(error.kind, SourceErrorKind::Unsafe);
        assert!(aside(&database).is_empty());
        drop(source);
        let source = database.start(progress).await;
        assert_eq!(drain(&source).await, ["1"]);
    }
}

/// What a relay with a lower limit has set aside.
#[tokio::test]
async fn a_row_that_was_left_in_the_outbox_is_read_there_when_it_is_retried() {
    for progress in Progress::ALL {
        let database = Database::new();
        database.write(&["a:1", "a:2"]);
        let source = database.start(progress).await;
        let records = read(&source).await;
        let verdicts =
            [(handle(&records, "1"), parked(true)), (handle(&records, "2"), Verdict::Queued)];
        settle(&source, &verdicts).await;
        drop(source);
        database.execute(
            "INSERT OR IGNORE INTO outbox (seq, id, aggregate_type, aggregate_id, event_type, payload)
               SELECT seq, id, aggregate_type, aggregate_id, event_type, payload
               FROM outbox_failures WHERE seq = 1;
             UPDATE outbox SET published_at = NULL WHERE seq = 1;
             UPDATE outbox_failures SET payload = NULL, due_at = '2000-01-01' WHERE seq = 1",
        );
        let source = database.start(progress).await;
        let records = wait(&source).await;
        assert_eq!(types(&records), ["1", "2"], "{progress}");
        settle_all(&source, &records, &Verdict::Delivered).await;
        assert!(aside(&database).is_empty());
        let left = match progress {
            Progress::Cursor => 2,
            Progress::Mark => database
                .one("SELECT count(*) FROM outbox WHERE published_at IS NOT NULL AND seq <= 2"),
            Progress::Delete => 2 + database.one::<i64>("SELECT count(*) FROM outbox"),
        };
        assert_eq!(left, 2, "{progress}");
    }
}
