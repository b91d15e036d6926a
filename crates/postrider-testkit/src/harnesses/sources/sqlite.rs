//! An outbox in SQLite, one backend for each way of keeping progress.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use postrider::schema::{self, TableName};
use postrider::{Event, Outbox};
use postrider_relay::admin::Admin;
use postrider_relay::operator::Operator;
use postrider_relay::source::{Source, SourceError};
use postrider_relay::sources::{self, Progress, SourceSpec};
use rusqlite::Connection as Database;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Sqlite as Driver, SqlitePool};
use tempfile::TempDir;

use crate::suites::numbered::AGGREGATE_TYPE;
use crate::suites::source::{
    CANARY, Connection, OutboxCapabilities, Subject, Tampering, TestOutbox, TestTransaction,
};
use crate::suites::{Backend, Clock};

const OVERSIZE_BYTES: usize = 5_000_000;
const HUGE_BYTES: usize = 60_000_000;

/// An outbox whose progress is kept in one of the ways.
pub fn backend(progress: Progress) -> Backend<Subject, OutboxCapabilities> {
    let name = format!("sqlite_{progress}");
    Backend::new(name, capabilities(progress), Clock::Real, move || async move {
        Sqlite::fresh(progress)
    })
}

fn capabilities(progress: Progress) -> OutboxCapabilities {
    OutboxCapabilities {
        concurrent_transactions: false,
        filters: true,
        keeps_delivered: progress != Progress::Delete,
        operated: true,
        shared: progress == Progress::Cursor,
        stands_by: true,
        tamperings: &Tampering::ALL,
    }
}

struct Sqlite {
    folder: TempDir,
    progress: Progress,
    pool: SqlitePool,
}

impl Sqlite {
    fn fresh(progress: Progress) -> Subject {
        let folder = tempfile::tempdir().expect("a test can have a folder");
        let path = folder.path().join("app.db");
        let mut database = Database::open(&path).expect("a database can be made");
        database
            .execute_batch("PRAGMA journal_mode = WAL")
            .expect("write-ahead logging can be turned on");
        schema::sqlite::migrate(&mut database, &TableName::default())
            .expect("an empty database can be migrated");
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .pragma("synchronous", "OFF")
            .busy_timeout(std::time::Duration::from_secs(20));
        let pool = SqlitePoolOptions::new().max_connections(8).connect_lazy_with(options);
        Arc::new(Self { folder, progress, pool })
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("app.db")
    }
}

/// Writes a row as no application should.
fn insert_bad(path: &Path, aggregate_id: &str, tampering: Tampering) {
    let database = Database::open(path).expect("the database can be opened");
    let oversize = vec![b'x'; OVERSIZE_BYTES];
    let id = uuid::Uuid::now_v7().to_string();
    let not_utf8 = format!("CAST(x'ff{}' AS TEXT)", hex(CANARY));
    let text = |text: &str| format!("'{text}'");
    let mut columns = [
        ("id", text(&id)),
        ("aggregate_type", text(AGGREGATE_TYPE)),
        ("aggregate_id", text(aggregate_id)),
        ("event_type", text("Bad")),
        ("event_version", "1".to_owned()),
        ("payload", text(CANARY)),
        ("headers", text("{}")),
        ("occurred_at", text("2026-01-02T03:04:05Z")),
    ];
    let (column, value) = match tampering {
        Tampering::BadTime => (7, text(&format!("tomorrow {CANARY}"))),
        Tampering::BadVersion => (4, text(CANARY)),
        Tampering::BadHeaders => (6, text(&format!("{{\"a\": {CANARY}}}"))),
        Tampering::BadId => (0, text(&format!("{CANARY}{id}"))),
        Tampering::EmptyKey => (2, text("")),
        Tampering::Nul => (3, format!("'{CANARY}' || char(0) || 'x'")),
        Tampering::NotUtf8Key => (2, not_utf8),
        Tampering::NotUtf8 => (3, not_utf8),
        Tampering::Oversize => (5, "?1".to_owned()),
        Tampering::Huge => (5, format!("zeroblob({HUGE_BYTES})")),
    };
    columns[column].1 = value;
    let (names, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let (names, values) = (names.join(", "), values.join(", "));
    let statement = format!("INSERT INTO outbox ({names}) VALUES ({values})");
    let inserted = match tampering {
        Tampering::Oversize => database.execute(&statement, [oversize]),
        _ => database.execute(&statement, []),
    };
    inserted.expect("SQLite takes any value in any column");
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[async_trait]
impl TestOutbox for Sqlite {
    fn capabilities(&self) -> OutboxCapabilities {
        capabilities(self.progress)
    }

    async fn begin(&self) -> Box<dyn TestTransaction> {
        // With the write lock from the start, as `transact` has it.
        let transaction = self.pool.begin_with("BEGIN IMMEDIATE").await;
        Box::new(transaction.expect("a transaction can be begun"))
    }

    async fn tamper(&self, aggregate_id: &str, tampering: Tampering) {
        insert_bad(&self.path(), aggregate_id, tampering);
    }

    async fn connect(&self, connection: Connection<'_>) -> Result<Box<dyn Source>, SourceError> {
        let types = connection.aggregate_types.iter();
        let spec = SourceSpec {
            pipeline: connection.pipeline.to_owned(),
            progress: connection.progress.unwrap_or(self.progress),
            start: connection.start,
            aggregate_types: types.map(ToString::to_string).collect(),
            ..SourceSpec::new(self.url())
        };
        spec.connect().await
    }

    async fn admin(&self) -> Box<dyn Admin> {
        let admin =
            sources::connect_admin(&self.url(), &TableName::default(), &BTreeMap::new()).await;
        admin.expect("an operator can connect")
    }

    async fn operator(&self) -> Option<Box<dyn Operator>> {
        let (url, table) = (self.url(), TableName::default());
        let operator = sources::connect_operator(&url, &table, &BTreeMap::new()).await;
        Some(operator.expect("an operator can connect"))
    }

    async fn rows(&self) -> usize {
        let database = Database::open(self.path()).expect("the database can be opened");
        let count = database.query_row("SELECT count(*) FROM outbox", [], |row| row.get(0));
        let count: i64 = count.expect("rows can be counted");
        usize::try_from(count).expect("a count is not negative")
    }

    async fn forget(&self, pipeline: &str) {
        let database = Database::open(self.path()).expect("the database can be opened");
        let forget = "DELETE FROM outbox_checkpoints WHERE pipeline = ?1";
        database.execute(forget, [pipeline]).expect("a checkpoint can be removed");
    }
}

#[async_trait]
impl TestTransaction for sqlx::Transaction<'static, Driver> {
    async fn publish(&mut self, event: &Event) {
        let published = Outbox::new().publish(self, event).await;
        published.expect("the event can be written");
    }

    async fn commit(self: Box<Self>) {
        let committed = sqlx::Transaction::commit(*self).await;
        committed.expect("the transaction can be committed");
    }

    async fn rollback(self: Box<Self>) {
        let rolled_back = sqlx::Transaction::rollback(*self).await;
        rolled_back.expect("the transaction can be rolled back");
    }
}
