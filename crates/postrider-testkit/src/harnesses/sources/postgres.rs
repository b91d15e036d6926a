//! An outbox in PostgreSQL, one backend for each way of reading it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use postrider::schema::{self, TableName};
use postrider::{Event, Outbox};
use postrider_relay::admin::Admin;
use postrider_relay::operator::Operator;
use postrider_relay::source::{BatchLimit, Source, SourceError};
use postrider_relay::sources::{self, Mode, Progress, SourceSpec};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Postgres as Driver};

use crate::servers::postgres::Database;
use crate::suites::numbered::AGGREGATE_TYPE;
use crate::suites::source::{
    CANARY, Connection, OutboxCapabilities, Subject, Tampering, TestOutbox, TestTransaction,
};
use crate::suites::{Backend, Clock};

const OVERSIZE_BYTES: usize = 5_000_000;
const HUGE_BYTES: usize = 60_000_000;

/// How an outbox is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// By polling.
    Polled(Progress),
    /// From the log, at first from the table.
    Logged,
    /// From the log as soon as it is connected to: it was before.
    LoggedBefore,
}

impl Reading {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Polled(Progress::Mark),
        Self::Polled(Progress::Delete),
        Self::Polled(Progress::Cursor),
        Self::Logged,
        Self::LoggedBefore,
    ];

    fn name(self) -> String {
        match self {
            Self::Polled(progress) => format!("postgres_{progress}"),
            Self::Logged => "postgres_cdc".to_owned(),
            Self::LoggedBefore => "postgres_log".to_owned(),
        }
    }

    fn progress(self) -> Progress {
        match self {
            Self::Polled(progress) => progress,
            Self::Logged | Self::LoggedBefore => Progress::Cursor,
        }
    }

    fn mode(self) -> Mode {
        match self {
            Self::Polled(_) => Mode::Poll,
            Self::Logged | Self::LoggedBefore => Mode::Cdc,
        }
    }
}

/// An outbox that is read in one of the ways.
pub fn backend(reading: Reading) -> Backend<Subject, OutboxCapabilities> {
    let capabilities = capabilities(reading.progress());
    Backend::new(reading.name(), capabilities, Clock::Real, move || Postgres::fresh(reading))
}

fn capabilities(progress: Progress) -> OutboxCapabilities {
    OutboxCapabilities {
        concurrent_transactions: true,
        filters: true,
        keeps_delivered: progress != Progress::Delete,
        operated: true,
        shared: progress == Progress::Cursor,
        stands_by: true,
        // The types of its columns keep the others out.
        tamperings: &[
            Tampering::BadTime,
            Tampering::BadVersion,
            Tampering::BadHeaders,
            Tampering::EmptyKey,
            Tampering::Oversize,
        ],
    }
}

struct Postgres {
    database: Database,
    reading: Reading,
    pool: PgPool,
    relays: AtomicU32,
}

impl Postgres {
    async fn fresh(reading: Reading) -> Subject {
        let database = Database::fresh().await;
        let mut client = database.connect().await;
        schema::postgres::migrate(&mut client, &TableName::default(), None)
            .await
            .expect("an empty database can be migrated");
        let pool = PgPoolOptions::new().max_connections(8).connect_lazy(&database.url());
        let pool = pool.expect("the URL is one");
        let outbox = Self { database, reading, pool, relays: AtomicU32::new(0) };
        if reading == Reading::LoggedBefore {
            outbox.get_to_log().await;
        }
        Arc::new(outbox)
    }

    /// Reads the empty outbox until it is read from the log.
    async fn get_to_log(&self) {
        let source = self.connect(Connection::default()).await.expect("it can be connected to");
        source.resume().await.expect("it can be resumed");
        let client = self.database.connect().await;
        let limit = BatchLimit { events: 1, bytes: 1 << 20, wait: Duration::from_millis(20) };
        let reads_log = "SELECT count(*) FROM pg_replication_slots AS s
             JOIN pg_stat_replication AS r ON r.pid = s.active_pid AND r.state = 'streaming'
             WHERE s.database = current_database()";
        loop {
            let batch = source.next_batch(limit).await.expect("it can be read");
            assert!(batch.is_empty(), "there is nothing in it");
            let row = client.query_one(reads_log, &[]).await.expect("slots can be counted");
            if row.get::<_, i64>(0) > 0 {
                break;
            }
        }
        source.close().await.expect("it can be closed");
        // Nothing was settled so far.
        let forget = "UPDATE outbox_checkpoints SET settled_at = NULL";
        client.batch_execute(forget).await.expect("the checkpoint can be changed");
    }
}

#[async_trait]
impl TestOutbox for Postgres {
    fn capabilities(&self) -> OutboxCapabilities {
        capabilities(self.reading.progress())
    }

    async fn begin(&self) -> Box<dyn TestTransaction> {
        let transaction = self.pool.begin().await;
        Box::new(transaction.expect("a transaction can be begun"))
    }

    async fn tamper(&self, aggregate_id: &str, tampering: Tampering) {
        let text = |text: &str| format!("'{text}'");
        let mut columns = [
            ("aggregate_type", text(AGGREGATE_TYPE)),
            ("aggregate_id", text(aggregate_id)),
            ("event_type", text("Bad")),
            ("event_version", "1".to_owned()),
            ("payload", format!("convert_to('{CANARY}', 'UTF8')")),
            ("headers", text("{}")),
            ("occurred_at", text("2026-01-02T03:04:05Z")),
        ];
        let (column, value) = match tampering {
            Tampering::BadTime => (6, text("infinity")),
            Tampering::BadVersion => (3, "-1".to_owned()),
            Tampering::BadHeaders => (5, format!("'{{\"a\": [\"{CANARY}\"]}}'")),
            Tampering::EmptyKey => (1, text("")),
            Tampering::Oversize => (4, format!("repeat('x', {OVERSIZE_BYTES})::bytea")),
            Tampering::Huge => (4, format!("repeat('x', {HUGE_BYTES})::bytea")),
            other => panic!("PostgreSQL holds no {other:?}"),
        };
        columns[column].1 = value;
        let (names, values): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let (names, values) = (names.join(", "), values.join(", "));
        let statement = format!("INSERT INTO outbox ({names}) VALUES ({values})");
        let client = self.database.connect().await;
        client.batch_execute(&statement).await.expect("the columns take it");
    }

    async fn connect(&self, connection: Connection<'_>) -> Result<Box<dyn Source>, SourceError> {
        let types = connection.aggregate_types.iter();
        let number = self.relays.fetch_add(1, Ordering::Relaxed);
        let spec = SourceSpec {
            pipeline: connection.pipeline.to_owned(),
            mode: connection.progress.map_or(self.reading.mode(), |_| Mode::Poll),
            progress: connection.progress.unwrap_or(self.reading.progress()),
            start: connection.start,
            aggregate_types: types.map(ToString::to_string).collect(),
            relay: format!("relay {number}"),
            ..SourceSpec::new(self.database.url())
        };
        spec.connect().await
    }

    async fn admin(&self) -> Box<dyn Admin> {
        let admin =
            sources::connect_admin(&self.database.url(), &TableName::default(), &BTreeMap::new())
                .await;
        admin.expect("an operator can connect")
    }

    async fn operator(&self) -> Option<Box<dyn Operator>> {
        let (url, table) = (self.database.url(), TableName::default());
        let operator = sources::connect_operator(&url, &table, &BTreeMap::new()).await;
        Some(operator.expect("an operator can connect"))
    }

    async fn rows(&self) -> usize {
        let client = self.database.connect().await;
        let row = client.query_one("SELECT count(*) FROM outbox", &[]).await;
        let count: i64 = row.expect("rows can be counted").get(0);
        usize::try_from(count).expect("a count is not negative")
    }

    async fn forget(&self, pipeline: &str) {
        let client = self.database.connect().await;
        let forget = "DELETE FROM outbox_checkpoints WHERE pipeline = $1";
        client.execute(forget, &[&pipeline]).await.expect("a checkpoint can be removed");
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
