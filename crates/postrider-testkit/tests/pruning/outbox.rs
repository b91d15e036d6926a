//! An outbox of any backend, with rows as old as a test needs them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use postrider::schema::postgres::Layout;
use postrider::schema::{self, TableName};
use postrider_relay::prune::{Prune, PruneOptions, Pruned};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sources::{self, Progress};
use postrider_testkit::servers::postgres::Database;
use serde_json::Value;
use tempfile::TempDir;
use tokio_postgres::Client;

pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// How long ago a row was written and published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    pub(crate) written: Duration,
    pub(crate) published: Option<Duration>,
}

impl Age {
    /// Written so many days ago and not published.
    pub(crate) fn written(days: u32) -> Self {
        Self { written: DAY * days, published: None }
    }

    /// Written and published so many days ago.
    pub(crate) fn published(days: u32) -> Self {
        Self { written: DAY * days, published: Some(DAY * days) }
    }
}

/// Keeps events for so many days.
pub(crate) fn options(days: u32) -> PruneOptions {
    PruneOptions { keep: DAY * days, archive: None, unmatched: false, dry_run: false, from: None }
}

/// Every line of an archive.
pub(crate) fn lines(folder: &Path) -> Vec<Value> {
    let mut lines = Vec::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        assert!(path.to_str().unwrap().ends_with(".jsonl.gz"), "{path:?}");
        let mut text = String::new();
        let file = File::open(path).unwrap();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        lines.extend(text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()));
    }
    lines
}

pub(crate) struct Outbox {
    backend: Backend,
}

enum Backend {
    Postgres { client: Box<Client>, database: Database },
    Sqlite { folder: TempDir },
}

impl Outbox {
    pub(crate) async fn postgres() -> Self {
        Self::laid_out(Layout::Plain).await
    }

    pub(crate) async fn laid_out(layout: Layout) -> Self {
        let database = Database::fresh().await;
        let mut client = Box::new(database.connect().await);
        let migrated =
            schema::postgres::migrate(&mut client, &TableName::default(), Some(layout)).await;
        migrated.unwrap();
        Self { backend: Backend::Postgres { client, database } }
    }

    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let outbox = Self { backend: Backend::Sqlite { folder } };
        schema::sqlite::migrate(&mut outbox.open(), &TableName::default()).unwrap();
        outbox
    }

    fn open(&self) -> rusqlite::Connection {
        let Backend::Sqlite { folder } = &self.backend else { panic!("it is not SQLite") };
        let database = rusqlite::Connection::open(folder.path().join("app.db")).unwrap();
        database.busy_timeout(Duration::from_secs(10)).unwrap();
        database
    }

    /// A connection of its own.
    pub(crate) async fn client(&self) -> Client {
        let Backend::Postgres { database, .. } = &self.backend else { panic!("it is SQLite") };
        database.connect().await
    }

    pub(crate) fn url(&self) -> String {
        match &self.backend {
            Backend::Postgres { database, .. } => database.url(),
            Backend::Sqlite { folder } => {
                format!("sqlite://{}", folder.path().join("app.db").display())
            }
        }
    }

    /// Runs a statement that both understand.
    pub(crate) async fn run(&self, sql: &str) {
        match &self.backend {
            Backend::Postgres { client, .. } => client.batch_execute(sql).await.unwrap(),
            Backend::Sqlite { .. } => self.open().execute_batch(sql).unwrap(),
        }
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        match &self.backend {
            Backend::Postgres { client, .. } => client.query_one(sql, &[]).await.unwrap().get(0),
            Backend::Sqlite { .. } => self.open().query_row(sql, [], |row| row.get(0)).unwrap(),
        }
    }

    pub(crate) async fn count(&self) -> i64 {
        self.number("SELECT count(*) FROM outbox").await
    }

    /// Writes rows in one transaction. They are numbered on, and payload and key tell which it
    /// is.
    pub(crate) async fn insert(&self, count: u32, age: Age) {
        let first = 1 + self.number("SELECT coalesce(max(seq), 0) FROM outbox").await;
        let last = first + i64::from(count) - 1;
        let postgres = |ago: Duration| format!("now() - interval '{} seconds'", ago.as_secs());
        let sqlite = |ago: Duration| {
            format!("strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-{} seconds')", ago.as_secs())
        };
        let sql = match &self.backend {
            Backend::Postgres { .. } => format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers,
                   created_at, published_at)
                 SELECT 'Order', n::text, 'OrderPaid', convert_to('{{\"n\":' || n || '}}', 'UTF8'),
                   '{{\"tenant\": \"acme\"}}', {}, {}
                 FROM generate_series({first}, {last}) AS n",
                postgres(age.written),
                age.published.map_or("NULL".to_owned(), postgres)
            ),
            Backend::Sqlite { .. } => format!(
                "WITH RECURSIVE rows (n) AS
                   (VALUES ({first}) UNION ALL SELECT n + 1 FROM rows WHERE n < {last})
                 INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers,
                   created_at, published_at)
                 SELECT printf('01900000-0000-7000-8000-%012d', n), 'Order', n, 'OrderPaid',
                   '{{\"n\":' || n || '}}', '{{\"tenant\": \"acme\"}}', {}, {} FROM rows",
                sqlite(age.written),
                age.published.map_or("NULL".to_owned(), sqlite)
            ),
        };
        self.run(&sql).await;
    }

    /// A pipeline that, if it is a cursor, has everything behind it that there is now.
    pub(crate) async fn pipeline(&self, name: &str, progress: Progress) {
        let is_cursor = progress == Progress::Cursor;
        let sql = match &self.backend {
            Backend::Postgres { .. } => {
                let now = if is_cursor { "pg_current_snapshot()" } else { "NULL" };
                format!(
                    "INSERT INTO outbox_checkpoints (pipeline, progress, base, tick, aggregate_types)
                     VALUES ('{name}', '{progress}', {now}, {now}, '{{}}')
                     ON CONFLICT (pipeline, shard) DO UPDATE SET base = excluded.base,
                     tick = excluded.tick"
                )
            }
            Backend::Sqlite { .. } => {
                let now =
                    if is_cursor { "(SELECT coalesce(max(seq), 0) FROM outbox)" } else { "0" };
                format!(
                    "INSERT OR REPLACE INTO outbox_checkpoints (pipeline, progress, position,
                     updated_at, aggregate_types)
                     VALUES ('{name}', '{progress}', {now}, '2026-01-01T00:00:00Z', '[]')"
                )
            }
        };
        self.run(&sql).await;
    }

    /// Takes a pipeline back to where it has read nothing.
    pub(crate) async fn forget_position(&self, name: &str) {
        let nothing = match &self.backend {
            Backend::Postgres { .. } => "base = NULL, tick = NULL",
            Backend::Sqlite { .. } => "position = 0",
        };
        let sql = format!("UPDATE outbox_checkpoints SET {nothing} WHERE pipeline = '{name}'");
        self.run(&sql).await;
    }

    /// Copies every row to the dead letters.
    pub(crate) async fn park_all(&self) {
        self.run(
            "INSERT INTO outbox_failures (pipeline, seq, id, aggregate_type, aggregate_id,
             payload, state, blocks, attempts, set_aside_at)
             SELECT 'default', seq, CAST(id AS text), aggregate_type, aggregate_id, payload, 'parked',
             true, 1, created_at FROM outbox",
        )
        .await;
    }

    pub(crate) async fn pruner(&self) -> Box<dyn Prune> {
        let pruner =
            sources::connect_prune(&self.url(), &TableName::default(), &BTreeMap::new()).await;
        pruner.unwrap()
    }

    pub(crate) async fn prune(&self, options: &PruneOptions) -> Pruned {
        let (_stop, token) = shutdown();
        self.pruner().await.prune(options, &token).await.unwrap()
    }
}
