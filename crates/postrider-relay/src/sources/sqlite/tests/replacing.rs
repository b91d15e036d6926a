//! Files that are moved, deleted or replaced while a relay has them open. Elsewhere than on Unix
//! the system lets nobody do that.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::admin::Admin as _;
use crate::source::{SourceError, SourceErrorKind};

const WAYS: [Progress; 3] = [Progress::Cursor, Progress::Delete, Progress::Mark];

impl Database {
    /// The file with this at the end of its name.
    fn beside(&self, suffix: &str) -> PathBuf {
        self.dir.path().join(format!("app.db{suffix}"))
    }

    fn remove_log(&self) {
        fs::remove_file(self.beside("-wal")).unwrap();
        fs::remove_file(self.beside("-shm")).unwrap();
    }

    /// Puts another database, which has these events, at the place of this one.
    fn replace(&self, events: &[&str]) {
        let other = Self::new();
        other.write(events);
        fs::rename(other.path(), self.path()).unwrap();
    }
}

async fn refused_read(source: &SqliteSource) -> SourceError {
    source.next_batch(limit(1000)).await.unwrap_err()
}

async fn try_settle(source: &SqliteSource, records: &[Record]) -> Result<Settled, SourceError> {
    let delivered =
        |record: &Record| Settlement { handle: record.handle, verdict: Verdict::Delivered };
    source.settle(&records.iter().map(delivered).collect::<Vec<_>>()).await
}

/// The lock file of the only pipeline.
fn lock_file(database: &Database) -> PathBuf {
    let files = fs::read_dir(database.dir.path()).unwrap();
    let mut paths = files.map(|file| file.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|it| it == "lock")).unwrap()
}

/// G-01, G-10: the events of the new file have the numbers of those that were read from the old.
#[tokio::test]
async fn a_file_that_was_replaced_is_neither_read_on_nor_settled() {
    for progress in WAYS {
        let database = Database::new();
        database.write(&["a:1", "a:2"]);
        let source = database.start(progress).await;
        let records = read(&source).await;
        assert_eq!(types(&records), ["1", "2"]);
        database.remove_log();
        database.replace(&["a:8", "a:9"]);
        let error = try_settle(&source, &records).await.unwrap_err();
        assert_eq!(error.kind, SourceErrorKind::Lost, "{progress}: {error:?}");
        assert!(error.to_string().contains("app.db was replaced"), "{error}");
        assert_eq!(refused_read(&source).await.kind, SourceErrorKind::Lost, "{progress}");
        drop(source);
        assert_eq!(drain(&database.start(progress).await).await, ["8", "9"], "{progress}");
    }
}

/// A relay that has nothing to do notices it as well. A link is replaced in one step.
#[tokio::test]
async fn an_idle_relay_notices_that_the_file_was_replaced() {
    let (one, two) = (Database::new(), Database::new());
    let (link, next) = (one.beside(".link"), one.beside(".next"));
    std::os::unix::fs::symlink(one.path(), &link).unwrap();
    std::os::unix::fs::symlink(two.path(), &next).unwrap();
    let source = SqliteOptions::new(Location::new(&link)).connect().await.unwrap();
    source.resume().await.unwrap();
    assert!(read(&source).await.is_empty());
    let waiting = tokio::spawn(async move {
        let limit = BatchLimit { wait: Duration::from_secs(60), ..limit(1000) };
        source.next_batch(limit).await.map(|records| records.len())
    });
    // It is asleep between two looks now, or looks.
    tokio::task::yield_now().await;
    fs::rename(next, link).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    let answer = answer.expect("it is noticed long before the wait is over").unwrap();
    assert_eq!(answer.unwrap_err().kind, SourceErrorKind::Lost);
}

/// SQLite takes any log beside a file for the log of that file, and writes it into the file when
/// the last connection closes.
#[tokio::test]
async fn the_log_of_a_replaced_file_is_never_written_into_the_new_one() {
    let database = Database::new();
    let source = database.start(Progress::Mark).await;
    database.write(&["a:1", "a:2"]);
    let records = read(&source).await;
    let admin = database.admin().await;
    database.replace(&["a:8", "a:9"]);
    let replaced = fs::read(database.path()).unwrap();

    let error = admin.status().await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("the log of the file that it replaced"), "{error}");
    assert!(error.hint.as_ref().unwrap().contains("app.db-wal"), "{error:?}");
    let location = Location::new(database.path());
    let error = super::super::migrate(location.clone(), TableName::default()).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unavailable, "{error:?}");
    let other = SqliteOptions { pipeline: "b".to_owned(), ..database.options(Progress::Mark) };
    assert_eq!(other.connect().await.unwrap_err().kind, SourceErrorKind::Unavailable);
    // It waits for the operator, and sends and settles nothing.
    assert_eq!(refused_read(&source).await.kind, SourceErrorKind::Unavailable);
    let error = try_settle(&source, &records).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Unavailable);
    assert!(fs::read(database.path()).unwrap() == replaced, "the new file was changed");

    database.remove_log();
    assert_eq!(refused_read(&source).await.kind, SourceErrorKind::Lost);
    drop(source);
    assert_eq!(drain(&database.start(Progress::Mark).await).await, ["8", "9"]);
    admin.status().await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_moved_away_is_waited_for() {
    for progress in WAYS {
        let database = Database::new();
        database.write(&["a:1", "a:2"]);
        let source = database.start(progress).await;
        let records = read(&source).await;
        let admin = database.admin().await;
        for suffix in ["", "-wal"] {
            fs::rename(database.beside(suffix), database.beside(".away")).unwrap();
            let error = try_settle(&source, &records).await.unwrap_err();
            assert_eq!(error.kind, SourceErrorKind::Unavailable, "{progress}: {error:?}");
            let what = format!("app.db{suffix} is not there any more");
            assert!(error.to_string().contains(&what), "{error}");
            assert_eq!(refused_read(&source).await.kind, SourceErrorKind::Unavailable);
            if suffix == "-wal" {
                // Whoever opened the database now would make a new log.
                let error = admin.status().await.unwrap_err();
                assert_eq!(error.kind, SourceErrorKind::Unavailable, "{error:?}");
                assert!(!database.beside("-wal").exists());
            }
            fs::rename(database.beside(".away"), database.beside(suffix)).unwrap();
        }
        try_settle(&source, &records).await.unwrap();
        assert_eq!(drain(&source).await, Vec::<String>::new(), "{progress}");
    }
}

/// Nobody can tell what belongs together then.
#[tokio::test]
async fn a_log_that_was_replaced_stops_the_relay() {
    for suffix in ["-wal", "-shm"] {
        let database = Database::new();
        database.write(&["a:1"]);
        let source = database.start(Progress::Mark).await;
        let records = read(&source).await;
        fs::copy(database.beside(suffix), database.beside(".copy")).unwrap();
        fs::rename(database.beside(".copy"), database.beside(suffix)).unwrap();
        let error = try_settle(&source, &records).await.unwrap_err();
        assert_eq!(error.kind, SourceErrorKind::Unsafe, "{error:?}");
        let what = format!("app.db{suffix} was replaced");
        assert!(error.to_string().contains(&what), "{error}");
        assert_eq!(refused_read(&source).await.kind, SourceErrorKind::Unsafe);
        let location = Location::new(database.path());
        let admin = SqliteAdmin::connect(location, TableName::default()).await;
        assert_eq!(admin.unwrap_err().kind, SourceErrorKind::Unsafe);
    }
}

/// G-09: whoever locks a new file of that name is another relay.
#[tokio::test]
async fn a_relay_whose_lock_file_was_removed_stands_by() {
    let database = Database::new();
    database.write(&["a:1"]);
    let first = database.start(Progress::Mark).await;
    let records = read(&first).await;
    fs::remove_file(lock_file(&database)).unwrap();
    let second = database.start(Progress::Mark).await;
    let error = try_settle(&first, &records).await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Lost, "{error:?}");
    assert_eq!(refused_read(&first).await.kind, SourceErrorKind::Lost);
    drop(first);
    let error = database.options(Progress::Mark).connect().await.unwrap_err();
    assert_eq!(error.kind, SourceErrorKind::Held);
    assert_eq!(drain(&second).await, ["1"]);
}

/// A database that a link leads to is another one when the link leads elsewhere.
#[tokio::test]
async fn a_link_that_leads_elsewhere_is_followed() {
    let (one, two) = (Database::new(), Database::new());
    one.write(&["a:1"]);
    two.write(&["a:9"]);
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link.db");
    std::os::unix::fs::symlink(one.path(), &link).unwrap();
    let options = SqliteOptions::new(Location::new(&link));
    let source = options.clone().connect().await.unwrap();
    source.resume().await.unwrap();
    assert_eq!(drain(&source).await, ["1"]);
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(two.path(), &link).unwrap();
    assert_eq!(refused_read(&source).await.kind, SourceErrorKind::Lost);
    drop(source);
    let source = options.connect().await.unwrap();
    source.resume().await.unwrap();
    assert_eq!(drain(&source).await, ["9"]);
}
