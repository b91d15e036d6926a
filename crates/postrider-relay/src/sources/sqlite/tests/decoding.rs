//! Rows that are not events.

use super::*;

/// The outbox as somebody might have made it by hand: anything goes in.
const LOOSE_OUTBOX: &str = "DROP TABLE outbox;
    CREATE TABLE outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, aggregate_type TEXT,
    aggregate_id TEXT, event_type TEXT, event_version INTEGER, payload BLOB, content_type TEXT,
    headers TEXT, topic TEXT, occurred_at TEXT, created_at TEXT, deliver_after TEXT,
    published_at TEXT);";

const COLUMNS: &str = "id, aggregate_type, aggregate_id, event_type, event_version, payload,
    content_type, headers, topic, occurred_at, created_at, deliver_after";

fn insert(conn: &Connection, column: &str, value: &str) {
    let values = COLUMNS.split(',').map(|name| match name.trim() {
        name if name == column => value.to_owned(),
        "id" => "lower(hex(randomblob(16)))".to_owned(),
        "event_version" => "1".to_owned(),
        "payload" => "x'00ff'".to_owned(),
        "headers" => "'{\"a\":\"b\"}'".to_owned(),
        "topic" | "deliver_after" => "NULL".to_owned(),
        "occurred_at" | "created_at" => "'2026-01-31T23:59:59.123456Z'".to_owned(),
        name => format!("'{name}'"),
    });
    let values: Vec<String> = values.collect();
    let sql = format!("INSERT INTO outbox ({COLUMNS}) VALUES ({})", values.join(", "));
    conn.execute_batch(&sql).unwrap();
}

/// Column, value, and what is said about it.
const BAD: [(&str, &str, &str); 37] = [
    ("id", "NULL", "id is NULL"),
    ("id", "'not a uuid'", "id is not a UUID"),
    ("id", "x'00112233445566778899aabbccddeeff'", "id is not text"),
    ("id", "printf('%.100c', 'x')", "id has 100 bytes, which is too long"),
    ("aggregate_type", "NULL", "aggregate_type is NULL"),
    ("aggregate_type", "''", "aggregate_type is empty"),
    ("aggregate_type", "printf('%.256c', 'x')", "aggregate_type has 256 bytes, the limit is 255"),
    ("aggregate_id", "x'01'", "aggregate_id is not text"),
    ("aggregate_id", "CAST(x'fffe' AS TEXT)", "aggregate_id is not UTF-8"),
    ("aggregate_id", "'a' || char(0) || 'b'", "control character U+0000"),
    (
        "aggregate_id",
        "printf('%.1048576c', 'x')",
        "aggregate_id has 1048576 bytes, the limit is 1024",
    ),
    ("event_type", "NULL", "event_type is NULL"),
    ("event_type", "''", "event_type is empty"),
    ("event_type", "'a' || char(10)", "control character U+000A"),
    ("event_version", "0", "event_version is not a whole number from 1"),
    ("event_version", "-1", "event_version is not"),
    ("event_version", "4294967296", "event_version is not"),
    ("event_version", "'one'", "event_version is not"),
    ("event_version", "1.5", "event_version is not"),
    ("event_version", "NULL", "event_version is not"),
    ("payload", "NULL", "payload is NULL"),
    ("payload", "17", "payload is a number"),
    ("payload", "zeroblob(1048577)", "payload has 1048577 bytes, the limit is 1048576"),
    ("payload", "zeroblob(9000000)", "payload has 9000000 bytes"),
    ("content_type", "NULL", "content_type is NULL"),
    ("content_type", "''", "content_type is empty"),
    ("headers", "NULL", "headers is NULL"),
    ("headers", "'canary'", "headers is not a JSON object of strings, at column 1"),
    ("headers", "'[]'", "headers is not a JSON object"),
    ("headers", "'{\"a\":\"canary\",\"b\":42}'", "headers is not a JSON object"),
    ("headers", "'{\"a\":null}'", "headers is not a JSON object"),
    ("headers", "'{\"a\":\"x\\r\\ny\"}'", "control character U+000D"),
    ("headers", "'{\"a\":\"' || printf('%.20000c', 'x') || '\"}'", "headers has 20001 bytes"),
    ("topic", "''", "topic is empty"),
    ("occurred_at", "'yesterday'", "occurred_at is not an RFC 3339 time"),
    ("occurred_at", "'+294276-01-01T00:00:00Z'", "occurred_at is not an RFC 3339 time"),
    ("deliver_after", "'infinity'", "deliver_after is not an RFC 3339 time"),
];

#[tokio::test]
async fn a_row_that_is_not_an_event_is_handed_out_and_the_rest_flows() {
    let database = Database::new();
    database.execute(LOOSE_OUTBOX);
    let conn = database.conn();
    for (column, value, _) in &BAD {
        insert(&conn, column, value);
    }
    insert(&conn, "payload", "'text'");

    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    assert_eq!(records.len(), BAD.len() + 1);
    for ((column, value, expected), record) in BAD.iter().zip(&records) {
        let undecodable = record.event.as_ref().unwrap_err();
        let reason = &undecodable.reason;
        assert!(reason.contains(expected), "{column} = {value}: {reason:?}");
        assert!(!reason.contains("canary"), "{reason:?}");
        let has_key = !column.starts_with("aggregate") || reason.contains("control character");
        assert_eq!(undecodable.key.is_some(), has_key, "{column} = {value}");
    }
    let good = records.last().unwrap().event.as_ref().unwrap();
    assert_eq!(&good.payload()[..], b"text");
    assert_eq!(good.headers()["a"], "b");

    settle_all(&source, &records, &parked(true)).await;
    let changed: i64 = database.one(
        "SELECT count(*) FROM outbox o LEFT JOIN outbox_failures f ON f.seq = o.seq
         WHERE f.seq IS NULL OR o.id IS NOT f.id OR o.aggregate_id IS NOT f.aggregate_id
         OR o.aggregate_type IS NOT f.aggregate_type OR o.event_type IS NOT f.event_type
         OR o.event_version IS NOT f.event_version
         OR f.payload IS NOT iif(octet_length(o.payload) > 1048576, NULL, o.payload)
         OR o.headers IS NOT f.headers OR o.topic IS NOT f.topic
         OR o.occurred_at IS NOT f.occurred_at OR o.deliver_after IS NOT f.deliver_after
         OR typeof(o.event_version) <> typeof(f.event_version)",
    );
    assert_eq!(changed, 0, "rows are set aside as they stand, but for what is heavy");
    let blocking: i64 =
        database.one("SELECT count(*) FROM outbox_failures WHERE blocks AND aggregate_id = x'01'");
    assert_eq!(blocking, 0, "what has no key blocks nothing");
    assert!(read(&source).await.is_empty());
    assert!(!source.pending().await.unwrap());

    // And it comes back as it was, if an operator asks for it.
    let admin = database.admin().await;
    let all = crate::admin::Selection::default();
    let letters = crate::admin::Admin::dead_letters(&admin, &all, None, 100).await.unwrap();
    assert_eq!(letters.len(), BAD.len() + 1);
    assert_eq!(crate::admin::Admin::retry(&admin, &all).await.unwrap(), letters.len() as u64);
    let again = wait(&source).await;
    assert!(again.iter().all(|record| record.returned));
    settle_all(&source, &again, &Verdict::Delivered).await;
    drain(&source).await;
    assert_eq!(database.one::<i64>("SELECT count(*) FROM outbox_failures"), 0);
}

#[tokio::test]
async fn a_lone_surrogate_is_not_text() {
    let database = Database::new();
    database.execute(LOOSE_OUTBOX);
    insert(&database.conn(), "event_type", "CAST(x'61eda080' AS TEXT)");
    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    assert_eq!(records[0].event.as_ref().unwrap_err().reason, "event_type is not UTF-8");
}

#[tokio::test]
async fn times_are_read_with_any_offset_and_a_delay_counts_from_the_database_clock() {
    let database = Database::new();
    let conn = database.conn();
    insert(&conn, "deliver_after", "strftime('%Y-%m-%dT%H:%M:%SZ', 'now', '+1 hour')");
    insert(&conn, "deliver_after", "'2001-09-09T03:46:40+02:00'");
    let source = database.start(Progress::Mark).await;
    let records = read(&source).await;
    let delay = records[0].delay.unwrap();
    assert!(delay > Duration::from_secs(3500) && delay <= Duration::from_secs(3600), "{delay:?}");
    assert_eq!(records[1].delay, None);
    settle(&source, &[(records[1].handle, Verdict::Delivered)]).await;
    assert!(!source.pending().await.unwrap(), "what is not due yet does not count");
}
