//! A SQLite file, looked at without the client under test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use postrider::schema::{self, TableName};
use postrider::timestamp;
use rusqlite::{Connection, Row};
use tempfile::TempDir;
use uuid::Uuid;

use crate::suites::inbox::{Connector, KeptRow};
use crate::suites::writer::{Capabilities, Subject, TestClient, TestDatabase, Why, WrittenRow};
use crate::suites::{Backend, Clock, Doing};

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE orders (id INTEGER PRIMARY KEY);
    CREATE TABLE ledger (consumer TEXT NOT NULL, amount INTEGER NOT NULL);
";

const UNMIGRATE: &str = "
    DROP TABLE outbox;
    DROP TABLE inbox;
    DROP TABLE inbox_versions;
    DROP TABLE inbox_messages;
";

const CAPABILITIES: Capabilities = Capabilities {
    refuses_known_ids: true,
    one_statement_per_batch: false,
    has_clock: false,
    has_log: false,
    loses_commits: false,
};

/// How long a client waits for another one to end its transaction.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(120);

/// A client of SQLite.
pub(super) fn backend(name: &str, open: Open) -> Backend<Subject, Capabilities> {
    Backend::new(name, CAPABILITIES, Clock::Real, move || async move { database(open) })
}

/// Connects a client.
pub(super) type Open = fn(&Path) -> Doing<Box<dyn TestClient>>;

/// A fresh database for a client.
fn database(open: Open) -> Subject {
    let folder = tempfile::tempdir().expect("a test can have a folder");
    let database = Sqlite { path: folder.path().join("app.db"), _folder: folder, open };
    let mut connection = database.connection();
    connection.execute_batch(TABLES).expect("an empty database takes a table");
    schema::sqlite::migrate(&mut connection, &TableName::default())
        .expect("an empty database can be migrated");
    Box::new(database)
}

struct Sqlite {
    path: PathBuf,
    _folder: TempDir,
    open: Open,
}

impl Sqlite {
    fn connection(&self) -> Connection {
        Connection::open(&self.path).expect("the database can be opened")
    }
}

#[async_trait(?Send)]
impl TestDatabase for Sqlite {
    fn connector(&self) -> Connector {
        let (open, path) = (self.open, self.path.clone());
        Arc::new(move || open(&path))
    }

    async fn run(&self, sql: &str) {
        let done = self.connection().execute_batch(sql);
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn number(&self, sql: &str) -> i64 {
        let number = self.connection().query_one(sql, [], |row| row.get(0));
        number.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    async fn kept(&self) -> Vec<KeptRow> {
        let connection = self.connection();
        let statement = connection.prepare("SELECT * FROM inbox_messages ORDER BY position");
        let mut statement = statement.expect("there is an inbox");
        let rows = statement.query_map([], kept_row).expect("the inbox can be read");
        rows.map(|row| row.expect("a row is as it should be")).collect()
    }

    async fn ids(&self) -> Vec<Uuid> {
        let connection = self.connection();
        let mut statement =
            connection.prepare("SELECT id FROM outbox ORDER BY seq").expect("there is an outbox");
        let ids = statement.query_map([], |row| row.get::<_, String>(0));
        let parsed = |id: rusqlite::Result<String>| {
            let id = id.expect("an id is text");
            id.parse().expect("an id is a UUID")
        };
        ids.expect("the outbox can be read").map(parsed).collect()
    }

    async fn only_row(&self) -> WrittenRow {
        let connection = self.connection();
        let found = connection.query_one("SELECT * FROM outbox", [], row);
        found.expect("the outbox has one row, as it should be")
    }

    async fn orders(&self) -> u32 {
        let connection = self.connection();
        let count = connection.query_one("SELECT count(*) FROM orders", [], |row| row.get(0));
        count.expect("orders can be counted")
    }

    async fn unmigrate(&self) {
        let dropped = self.connection().execute_batch(UNMIGRATE);
        dropped.expect("the tables were there");
    }

    async fn refuse_events(&self, why: Why) {
        // It is not particular about values: json() is.
        let refusal = match why {
            Why::Constraint => "SELECT RAISE(ABORT, 'outbox_none')",
            Why::Value => "SELECT json(new.aggregate_id)",
        };
        let trigger = format!(
            "DROP TRIGGER IF EXISTS refuse;
             CREATE TRIGGER refuse BEFORE INSERT ON outbox BEGIN {refusal}; END"
        );
        self.connection().execute_batch(&trigger).expect("the table takes a trigger");
    }
}

fn time(text: String) -> SystemTime {
    let is_whole = text.ends_with('Z') && text.len() == "2026-01-02T03:04:05.123456Z".len();
    assert!(is_whole, "{text} does not compare as text");
    timestamp::from_text(&text).expect("a time is in RFC 3339")
}

fn kept_row(row: &Row<'_>) -> rusqlite::Result<KeptRow> {
    Ok(KeptRow {
        consumer: row.get("consumer")?,
        id: row.get("event_id")?,
        aggregate_type: row.get("aggregate_type")?,
        aggregate_id: row.get("aggregate_id")?,
        event_type: row.get("event_type")?,
        event_version: row.get("event_version")?,
        payload: row.get("payload")?,
        content_type: row.get("content_type")?,
        headers: row.get("headers")?,
        topic: row.get("topic")?,
        occurred_at: time(row.get("occurred_at")?),
        stored_at: time(row.get("stored_at")?),
        due_at: time(row.get("due_at")?),
        attempts: row.get("attempts")?,
        error: row.get("error")?,
        dead: row.get("dead")?,
    })
}

fn row(row: &Row<'_>) -> rusqlite::Result<WrittenRow> {
    Ok(WrittenRow {
        id: row.get("id")?,
        aggregate_type: row.get("aggregate_type")?,
        aggregate_id: row.get("aggregate_id")?,
        event_type: row.get("event_type")?,
        event_version: row.get("event_version")?,
        payload: row.get("payload")?,
        content_type: row.get("content_type")?,
        headers: row.get("headers")?,
        topic: row.get("topic")?,
        occurred_at: time(row.get("occurred_at")?),
        created_at: time(row.get("created_at")?),
        deliver_after: row.get::<_, Option<String>>("deliver_after")?.map(time),
        published: row.get::<_, Option<String>>("published_at")?.is_some(),
    })
}
