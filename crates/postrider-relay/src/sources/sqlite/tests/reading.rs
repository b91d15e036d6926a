//! Reading beside writers, cancelling, cursors.

use futures_util::FutureExt;

use super::*;
use crate::source::SourceErrorKind;

#[tokio::test]
async fn everything_that_others_commit_meanwhile_is_read_once_and_in_order() {
    const EVENTS: usize = 600;
    for progress in Progress::ALL {
        let database = Database::new();
        let source = database.start(progress).await;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut conn = database.conn();
                for n in 0..EVENTS {
                    let event = Event::builder("Order", (n % 7).to_string(), format!("{n:04}"));
                    let mut tx = conn.transaction().unwrap();
                    Outbox::new().publish(&mut tx, &event.build().unwrap()).unwrap();
                    tx.commit().unwrap();
                    let ghost = Event::builder("Order", "0", "ghost").build().unwrap();
                    let mut tx = conn.transaction().unwrap();
                    Outbox::new().publish(&mut tx, &ghost).unwrap();
                    tx.rollback().unwrap();
                }
            });
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let seen = runtime.unwrap().block_on(async {
                    let mut seen = Vec::new();
                    while seen.len() < EVENTS {
                        let records = wait(&source).await;
                        assert!(!records.is_empty(), "{} of {EVENTS} came", seen.len());
                        seen.extend(types(&records).iter().map(|name| (*name).to_owned()));
                        settle_all(&source, &records, &Verdict::Delivered).await;
                    }
                    seen
                });
                assert!(seen.is_sorted(), "{progress}");
                assert_eq!(seen.len(), EVENTS);
            });
        });
        assert!(read(&source).await.is_empty());
        assert!(!source.pending().await.unwrap());
        let left: u32 = database.one("SELECT count(*) FROM outbox WHERE published_at IS NULL");
        assert_eq!(
            left,
            if progress == Progress::Cursor { EVENTS as u32 } else { 0 },
            "{progress}"
        );
    }
}

#[tokio::test]
async fn a_read_that_is_given_up_loses_nothing() {
    let database = Database::new();
    database.write(&["a:1", "a:2", "a:3"]);
    let source = database.start(Progress::Mark).await;
    let mut arrived = Vec::new();
    for _ in 0..3 {
        // Polled once, which sends the command, and dropped unless the answer is there already.
        if let Some(batch) = source.next_batch(limit(1)).now_or_never() {
            arrived.extend(batch.unwrap());
        }
    }
    while arrived.len() < 3 {
        arrived.extend(source.next_batch(limit(1)).await.unwrap());
    }
    assert_eq!(types(&arrived), ["1", "2", "3"]);
    assert!(read(&source).await.is_empty());
}

#[tokio::test]
async fn released_rows_come_again_in_order_and_settling_twice_changes_nothing() {
    for progress in Progress::ALL {
        let database = Database::new();
        database.write(&["a:1", "a:2", "b:3", "a:4"]);
        let source = database.start(progress).await;
        let first = source.next_batch(limit(3)).await.unwrap();
        settle(&source, &[(first[2].handle, Verdict::Delivered)]).await;
        settle(
            &source,
            &[(first[1].handle, Verdict::Released), (first[0].handle, Verdict::Released)],
        )
        .await;
        let again = read(&source).await;
        assert_eq!(types(&again), ["1", "2", "4"], "{progress}");
        settle_all(&source, &first, &Verdict::Delivered).await;
        assert!(source.pending().await.unwrap(), "old handles mean nothing");
        settle_all(&source, &again, &Verdict::Delivered).await;
        settle_all(&source, &again, &Verdict::Released).await;
        assert!(read(&source).await.is_empty(), "{progress}");
        assert!(!source.pending().await.unwrap());
    }
}

#[tokio::test]
async fn a_batch_keeps_to_its_limits() {
    let database = Database::new();
    let conn = database.conn();
    for size in [10, 5000, 10, 10] {
        conn.execute(
            "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES (lower(hex(randomblob(16))), 'A', 'a', 'T', zeroblob(?1))",
            [size],
        )
        .unwrap();
    }
    let source = database.start(Progress::Mark).await;
    let small = BatchLimit { events: 10, bytes: 200, wait: Duration::ZERO };
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let batch = source.next_batch(small).await.unwrap();
        sizes.push(batch.len());
    }
    assert_eq!(sizes, [1, 1, 2]);
}

#[tokio::test]
async fn an_idle_source_wakes_for_a_commit_and_for_what_comes_due() {
    let database = Database::new();
    database.write(&["a:1"]);
    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    settle_all(&source, &records, &deferred(Duration::from_millis(50))).await;
    assert!(read(&source).await.is_empty());
    let back = wait(&source).await;
    assert_eq!(types(&back), ["1"]);
    assert_eq!((back[0].returned, back[0].attempts), (true, 1));
    settle_all(&source, &back, &Verdict::Delivered).await;
    assert!(read(&source).await.is_empty());
    database.write(&["a:2"]);
    assert_eq!(types(&wait(&source).await), ["2"]);
}

#[tokio::test]
async fn a_row_that_is_unpublished_by_hand_is_found() {
    let database = Database::new();
    database.write(&["a:1", "a:2"]);
    let source = database.start(Progress::Mark).await;
    assert_eq!(drain(&source).await, ["1", "2"]);
    database.execute("UPDATE outbox SET published_at = NULL WHERE event_type = '1'");
    assert_eq!(drain(&source).await, ["1"]);
}

#[tokio::test]
async fn only_matching_events_are_read() {
    for progress in Progress::ALL {
        let database = Database::new();
        database.write(&["a:1", "a:2", "a:3", "a:4"]);
        database
            .execute("UPDATE outbox SET aggregate_type = 'User' WHERE event_type IN ('1', '4')");
        let matching = Some(vec!["Order".to_owned(), "Cart".to_owned()]);
        let options = SqliteOptions { matching, ..database.options(progress) };
        let source = options.connect().await.unwrap();
        source.resume().await.unwrap();
        assert_eq!(drain(&source).await, ["2", "3"], "{progress}");
        assert!(!source.pending().await.unwrap());
        Box::new(source).close().await.unwrap();
        let left: i64 = database.one(
            "SELECT count(*) FROM outbox WHERE aggregate_type = 'User' AND published_at IS NULL",
        );
        assert_eq!(left, 2, "what does not match is left alone");
        let position: i64 = database.one("SELECT position FROM outbox_checkpoints");
        assert_eq!(position, if progress == Progress::Cursor { 4 } else { 0 });
    }
}

#[tokio::test]
async fn starts_that_end_badly_are_counted() {
    let database = Database::new();
    let crashes = async |source: &SqliteSource| source.resume().await.unwrap().crashes;
    for expected in 0..3 {
        let source = database.options(Progress::Mark).connect().await.unwrap();
        assert_eq!(crashes(&source).await, expected);
    }
    let source = database.options(Progress::Mark).connect().await.unwrap();
    assert_eq!(crashes(&source).await, 3);
    source.survived().await.unwrap();
    drop(source);
    let source = database.options(Progress::Mark).connect().await.unwrap();
    assert_eq!(crashes(&source).await, 0);
    Box::new(source).close().await.unwrap();
    let source = database.options(Progress::Mark).connect().await.unwrap();
    assert_eq!(crashes(&source).await, 0);
}

#[tokio::test]
async fn a_cursor_goes_on_before_the_first_unsettled_row() {
    let database = Database::new();
    database.write(&["a:1", "b:2", "c:3", "d:4"]);
    let source = database.start(Progress::Cursor).await;
    let records = read(&source).await;
    settle(
        &source,
        &[
            (handle(&records, "1"), Verdict::Delivered),
            (handle(&records, "3"), parked(true)),
            (handle(&records, "4"), Verdict::Delivered),
        ],
    )
    .await;
    drop(source);
    let source = database.start(Progress::Cursor).await;
    let again = read(&source).await;
    assert_eq!(types(&again), ["2"], "what was settled or set aside beyond it is not read again");
    settle_all(&source, &again, &Verdict::Delivered).await;
    Box::new(source).close().await.unwrap();
    let source = database.start(Progress::Cursor).await;
    assert!(read(&source).await.is_empty());
}

#[tokio::test]
async fn a_cursor_beyond_the_outbox_is_refused() {
    let database = Database::new();
    database.write(&["a:1", "a:2", "a:3"]);
    let source = database.start(Progress::Cursor).await;
    drain(&source).await;
    database.execute("DELETE FROM outbox; UPDATE sqlite_sequence SET seq = 1");
    let error = source.next_batch(limit(1)).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unsafe);
    assert!(error.to_string().contains("only ever had 1"), "{error}");
    drop(source);
    let source = database.options(Progress::Cursor).connect().await.unwrap();
    assert_eq!(source.resume().await.unwrap_err().kind, SourceErrorKind::Unsafe);
}

#[tokio::test]
async fn unpublished_rows_are_found_by_their_index() {
    let database = Database::new();
    let sql = super::super::queries::Queries::new(&TableName::default(), false);
    for (statement, index) in [
        (&sql.unpublished, "outbox_unpublished"),
        (&sql.due, "outbox_failures_due"),
        (&sql.next_due, "outbox_failures_due"),
        (&sql.behind, "outbox_failures_key"),
        (&sql.first_blocking, "outbox_failures_key"),
    ] {
        let conn = database.conn();
        let mut plan = conn.prepare(&format!("EXPLAIN QUERY PLAN {statement}")).unwrap();
        let mut rows = plan.raw_query();
        let mut steps = String::new();
        while let Some(row) = rows.next().unwrap() {
            steps.push_str(&row.get::<_, String>(3).unwrap());
        }
        assert!(steps.contains(index), "{steps}");
        assert!(!steps.contains("SCAN outbox"), "{steps}");
    }
}

/// Prints how fast a backlog is read and settled: `cargo test --release -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn reading_is_fast() {
    const EVENTS: usize = 200_000;
    for progress in Progress::ALL {
        let database = Database::new();
        let sql = format!(
            "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {EVENTS})
             INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
             SELECT printf('01900000-0000-7000-8000-%012x', n), 'A', n % 10000, 'T', zeroblob(200)
             FROM n"
        );
        database.execute(&sql);
        let source = database.start(progress).await;
        let started = std::time::Instant::now();
        let (mut events, mut reading) = (0, Duration::ZERO);
        while events < EVENTS {
            let look = std::time::Instant::now();
            let records = source.next_batch(limit(2000)).await.unwrap();
            reading += look.elapsed();
            events += records.len();
            settle_all(&source, &records, &Verdict::Delivered).await;
        }
        let rate = |took: Duration| EVENTS as f64 / took.as_secs_f64();
        let took = started.elapsed();
        println!("{progress}: {:.0} events/s, reading alone {:.0}", rate(took), rate(reading));
    }
    let database = Database::new();
    let events: Vec<String> = (0..5000).map(|n| format!("{n}:T")).collect();
    database.write(&events.iter().map(String::as_str).collect::<Vec<_>>());
    let conn = database.conn();
    conn.execute_batch("PRAGMA synchronous = NORMAL").unwrap();
    let started = std::time::Instant::now();
    for _ in 0..events.len() {
        let sql = "SELECT seq, payload FROM outbox WHERE published_at IS NULL ORDER BY seq LIMIT 1";
        let seq: i64 = conn.prepare_cached(sql).unwrap().query_row([], |row| row.get(0)).unwrap();
        let sql = "UPDATE outbox SET published_at = datetime('now') WHERE seq = ?1";
        conn.prepare_cached(sql).unwrap().execute([seq]).unwrap();
    }
    println!(
        "one at a time: {:.0} events/s",
        events.len() as f64 / started.elapsed().as_secs_f64()
    );
}

#[tokio::test(start_paused = true)]
async fn a_hint_ends_the_pause() {
    let database = Database::new();
    let source = database.start(Progress::Mark).await;
    let hint = source.hint.clone();
    // The clock stands still while this thread is busy, so that no pause ends by itself.
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let mut busy = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(50));
        database.write(&["1:a"]);
        hint.give();
        let _ = is_done.recv_timeout(Duration::from_secs(10));
    });
    tokio::select! {
        records = wait(&source) => assert_eq!(types(&records), ["a"]),
        _ = &mut busy => panic!("the hint was not noticed"),
    }
    drop(done);
    busy.await.unwrap();
}
