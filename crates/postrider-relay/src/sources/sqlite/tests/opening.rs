//! What can be wrong with a database.

use std::fs;

use super::*;
use crate::source::{SourceError, SourceErrorKind};

async fn refusal(path: impl Into<std::path::PathBuf>) -> SourceError {
    let options = SqliteOptions {
        busy_timeout: Duration::from_millis(20),
        ..SqliteOptions::new(Location::new(path))
    };
    options.connect().await.unwrap_err()
}

fn hint(error: &SourceError) -> &str {
    error.hint.as_deref().unwrap_or_default()
}

#[tokio::test]
async fn a_missing_database_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing.db");
    let error = refusal(&path).await;
    assert_eq!(error.kind, SourceErrorKind::Misconfigured);
    assert!(error.to_string().ends_with("missing.db does not exist"), "{error}");
    let fix = format!("run `postrider migrate --from sqlite://{}`", path.display());
    assert_eq!(hint(&error), fix);
    assert!(!path.exists());

    let location = Location::new(&path);
    let migrated = super::super::migrate(location.clone(), TableName::default()).await.unwrap();
    assert!(!migrated.is_empty());
    assert!(super::super::migrate(location, TableName::default()).await.unwrap().is_empty());
    SqliteOptions::new(Location::new(&path)).connect().await.unwrap();
}

#[tokio::test]
async fn what_is_not_a_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let error = refusal(dir.path()).await;
    assert_eq!(error.kind, SourceErrorKind::Misconfigured);
    assert!(error.to_string().ends_with("is a directory"), "{error}");

    let text = dir.path().join("text.db");
    fs::write(&text, "this is a text of more than sixteen bytes\n".repeat(100)).unwrap();
    let error = refusal(&text).await;
    assert_eq!(error.kind, SourceErrorKind::Unsafe);
    assert_eq!(hint(&error), "the file is not a SQLite database, or it is encrypted");

    let error = refusal(dir.path().join("missing/dir/app.db")).await;
    assert_eq!(error.kind, SourceErrorKind::Misconfigured);
}

#[tokio::test]
async fn a_damaged_database_is_refused() {
    let database = Database::new();
    let mut bytes = fs::read(database.path()).unwrap();
    // The header stays; the tables behind it are overwritten.
    bytes[100..4000].fill(0xaa);
    fs::write(database.path(), bytes).unwrap();
    let error = refusal(database.path()).await;
    assert_eq!(error.kind, SourceErrorKind::Unsafe, "{error:?}");
    assert!(hint(&error).contains("integrity_check"), "{error:?}");
}

#[tokio::test]
async fn missing_tables_and_columns_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty.db");
    fs::write(&empty, "").unwrap();
    let error = refusal(&empty).await;
    assert_eq!(error.kind, SourceErrorKind::Misconfigured);
    assert!(error.to_string().ends_with("has no table outbox"), "{error}");
    assert!(hint(&error).starts_with("run `postrider migrate --from "));

    let database = Database::new();
    database
        .execute("ALTER TABLE outbox DROP COLUMN topic; ALTER TABLE outbox DROP COLUMN headers");
    let error = refusal(database.path()).await;
    assert_eq!(error.kind, SourceErrorKind::Misconfigured);
    assert!(error.to_string().ends_with("lacks the columns headers, topic"), "{error}");
}

#[tokio::test]
async fn a_column_that_goes_away_while_running_is_a_misconfiguration() {
    let database = Database::new();
    database.write(&["a:1"]);
    let source = database.start(Progress::Mark).await;
    database.execute("ALTER TABLE outbox DROP COLUMN topic");
    let error = source.next_batch(limit(1)).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Misconfigured, "{error:?}");
}

#[tokio::test]
async fn a_locked_database_is_unavailable_and_nothing_is_lost_by_it() {
    let database = Database::new();
    database.write(&["a:1", "a:2"]);
    let options = SqliteOptions {
        busy_timeout: Duration::from_millis(20),
        ..database.options(Progress::Cursor)
    };
    let source = options.clone().connect().await.unwrap();
    source.resume().await.unwrap();

    let writer = database.conn();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = SqliteOptions { pipeline: "other".to_owned(), ..options }.connect().await;
    let error = error.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unavailable);
    assert!(hint(&error).contains("write transaction"), "{error:?}");

    let records = read(&source).await;
    assert_eq!(types(&records), ["1", "2"], "a writer does not keep the relay from reading");
    let settlements: Vec<Settlement> = records
        .iter()
        .map(|record| Settlement { handle: record.handle, verdict: Verdict::Delivered })
        .collect();
    let error = source.settle(&settlements).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unavailable);

    writer.execute_batch("ROLLBACK").unwrap();
    source.settle(&settlements).await.unwrap();
    assert_eq!(database.one::<i64>("SELECT position FROM outbox_checkpoints"), 2);
    assert!(read(&source).await.is_empty());
}

#[tokio::test]
async fn a_second_relay_stands_by_and_takes_over() {
    let database = Database::new();
    database.write(&["a:1"]);
    let first = database.start(Progress::Mark).await;
    assert_eq!(types(&read(&first).await), ["1"]);

    let error = database.options(Progress::Mark).connect().await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Held);
    assert_eq!(error.to_string(), "another relay runs pipeline \"default\" on this database");

    drop(first);
    let second = database.options(Progress::Mark).connect().await.unwrap();
    assert_eq!(second.resume().await.unwrap().crashes, 1);
    assert_eq!(drain(&second).await, ["1"]);
}

#[tokio::test]
async fn options_are_checked_without_a_database() {
    let options = SqliteOptions {
        pipeline: "\n".repeat(300),
        matching: Some(Vec::new()),
        ..SqliteOptions::new(Location::new("nowhere.db"))
    };
    let problems = options.problems();
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert_eq!(options.connect().await.unwrap_err().kind, SourceErrorKind::Misconfigured);
}
