//! What an operator sees and does.

use postrider::Key;

use super::*;
use crate::admin::{Admin, Selection};

fn key(id: &str) -> Key {
    Key { aggregate_type: "Order".to_owned(), aggregate_id: id.to_owned() }
}

fn of(id: &str) -> Selection {
    Selection { key: Some(key(id)), ..Selection::default() }
}

#[tokio::test]
async fn an_outbox_that_was_never_read_has_one_pipeline() {
    let database = Database::new();
    database.write(&["a:1", "a:2"]);
    let status = database.admin().await.status().await.unwrap();
    assert_eq!((status.database, status.table.as_str()), ("sqlite", "outbox"));
    assert_eq!(status.pipelines.len(), 1);
    let pipeline = &status.pipelines[0];
    assert_eq!((pipeline.name.as_str(), pipeline.progress.as_deref()), ("default", None));
    assert_eq!(pipeline.unpublished, 2);
    assert!(pipeline.oldest_unpublished_age.unwrap() < Duration::from_secs(60));
}

/// Parks 1 (key a) with 2 and 3 behind it, and 4 (key b); leaves 5.
async fn with_dead_letters(progress: Progress) -> (Database, SqliteSource) {
    let database = Database::new();
    database.write(&["a:1", "a:2", "a:3", "b:4", "c:5"]);
    let source = database.start(progress).await;
    let records = source.next_batch(limit(4)).await.unwrap();
    settle(
        &source,
        &[
            (handle(&records, "1"), parked(true)),
            (handle(&records, "2"), Verdict::Queued),
            (handle(&records, "3"), Verdict::Queued),
            (handle(&records, "4"), parked(true)),
        ],
    )
    .await;
    (database, source)
}

#[tokio::test]
async fn dead_letters_are_counted_listed_and_shown() {
    for progress in Progress::ALL {
        let (database, _source) = with_dead_letters(progress).await;
        let admin = database.admin().await;
        let status = admin.status().await.unwrap().pipelines.remove(0);
        assert_eq!(status.progress.as_deref(), Some(progress.as_str()));
        let counts = (status.unpublished, status.parked, status.queued, status.deferred);
        assert_eq!(counts, (1, 2, 2, 0), "{progress}");
        assert_eq!(status.blocked_keys, 2);
        assert_eq!(status.last_settled_at, None, "nothing was delivered");

        let all = Selection::default();
        let letters = admin.dead_letters(&all, None, 10).await.unwrap();
        assert_eq!(letters.len(), 2);
        assert_eq!((&letters[0].key, letters[0].queued_behind), (&key("a"), 2));
        assert_eq!((letters[0].kind.as_str(), letters[0].error.as_str()), ("failed", "no luck"));
        assert_eq!(letters[0].attempts, 3);
        let rest = admin.dead_letters(&all, Some(letters[0].cursor), 1).await.unwrap();
        assert_eq!(rest, letters[1..]);
        let other = Selection { pipeline: Some("other".to_owned()), ..all };
        assert!(admin.dead_letters(&other, None, 10).await.unwrap().is_empty());

        let detail = admin.dead_letter(&letters[1].event_id).await.unwrap().unwrap();
        assert_eq!(detail.letter, letters[1]);
        assert_eq!(
            (detail.content_type.as_str(), detail.headers.as_str()),
            ("application/json", "{}")
        );
        assert!(admin.dead_letter("nothing").await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_retry_replays_the_key_and_a_discard_frees_it() {
    for progress in Progress::ALL {
        let (database, source) = with_dead_letters(progress).await;
        let admin = database.admin().await;
        assert_eq!(admin.discard(&of("a")).await.unwrap(), 1);
        assert_eq!(admin.discard(&of("a")).await.unwrap(), 0, "queued ones are no dead letters");
        let letter = &admin.dead_letters(&of("b"), None, 1).await.unwrap()[0];
        let by_id = Selection { event_ids: vec![letter.event_id.clone()], ..Selection::default() };
        assert_eq!(admin.retry(&by_id).await.unwrap(), 1);

        let records = read(&source).await;
        let mut found = types(&records);
        assert_eq!(found.pop(), Some("5"), "fresh ones come last");
        found.sort_unstable();
        assert_eq!(found, ["2", "3", "4"], "{progress}");
        assert_eq!(records.iter().map(|record| record.attempts).max(), Some(0));
        let mut settled = settle_all(&source, &records, &Verdict::Delivered).await;
        settled.unblocked.sort_unstable();
        assert_eq!(settled.unblocked, [key("a"), key("b")]);
        assert!(!source.pending().await.unwrap());
        let left = "SELECT group_concat(state || coalesce(payload, '')) FROM outbox_failures";
        assert_eq!(database.one::<String>(left), "discarded", "without its contents");
    }
}

#[tokio::test]
async fn more_dead_letters_than_a_page_are_changed() {
    const EVENTS: usize = 1234;
    let database = Database::new();
    let events: Vec<String> = (0..EVENTS).map(|n| format!("k{n}:T")).collect();
    database.write(&events.iter().map(String::as_str).collect::<Vec<_>>());
    let source = database.start(Progress::Mark).await;
    let records = source.next_batch(limit(EVENTS)).await.unwrap();
    settle_all(&source, &records, &parked(true)).await;
    let admin = database.admin().await;
    assert_eq!(admin.retry(&Selection::default()).await.unwrap(), EVENTS as u64);
    let records = source.next_batch(limit(EVENTS)).await.unwrap();
    assert_eq!(records.len(), EVENTS);
    settle_all(&source, &records, &parked(false)).await;
    assert_eq!(admin.discard(&Selection::default()).await.unwrap(), EVENTS as u64);
}

#[tokio::test]
async fn an_event_id_that_is_a_blob_is_named_by_its_digits() {
    let database = Database::new();
    database.write(&["a:1"]);
    database.execute("UPDATE outbox SET id = x'00112233445566778899aabbccddeeff'");
    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    settle_all(&source, &records, &parked(true)).await;
    let admin = database.admin().await;
    let letter = admin.dead_letters(&Selection::default(), None, 1).await.unwrap().remove(0);
    assert_eq!(letter.event_id, "00112233445566778899aabbccddeeff");
    assert!(admin.dead_letter(&letter.event_id).await.unwrap().is_some());
    let by_id = Selection { event_ids: vec![letter.event_id], ..Selection::default() };
    assert_eq!(admin.discard(&by_id).await.unwrap(), 1);
}
