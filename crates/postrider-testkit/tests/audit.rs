//! Audits of a real server: what is found in its log, what is not, what is refused, and that
//! nothing stays behind.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod audit {
    mod findings;
    mod leftovers;
    mod refusals;
    mod tables;
}

use std::collections::BTreeMap;

use postrider::schema::{self, TableName};
use postrider_relay::audit::{Audit, NamedTable, Operation, Operations, Report, Rules, Watch, run};
use postrider_relay::shutdown::{Shutdown, ShutdownHandle, shutdown};
use postrider_relay::source::SourceError;
use postrider_relay::sources;
use postrider_testkit::chaos::until;
use postrider_testkit::servers::postgres::{Database, connect};
use tokio_postgres::Client;

const TABLES: &str = "
    CREATE TABLE orders (id bigint PRIMARY KEY, state text);
    CREATE TABLE payments (id bigint PRIMARY KEY, cents bigint);
    CREATE TABLE notes (id bigint PRIMARY KEY)";
/// An event of order 1.
const EVENT: &str =
    "SELECT outbox_publish('Order', '1', 'OrderPaid', '{\"secret\":\"canary\"}'::jsonb)";

/// A database with an outbox, `orders` and `payments`, and `notes`, which nobody watches.
struct Shop {
    client: Client,
    database: Database,
}

impl Shop {
    async fn fresh() -> Self {
        let database = Database::fresh().await;
        let mut client = database.connect().await;
        schema::postgres::migrate(&mut client, &TableName::default(), None).await.unwrap();
        client.batch_execute(TABLES).await.unwrap();
        Self { client, database }
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn text(&self, sql: &str) -> String {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Slots and publications that there are.
    async fn left(&self) -> i64 {
        self.number(
            "SELECT (SELECT count(*) FROM pg_publication) + (SELECT count(*)
             FROM pg_replication_slots WHERE database = current_database())",
        )
        .await
    }

    /// Waits until there are none. The server drops a slot soon after its connection has ended.
    async fn nothing_is_left(&self) {
        until("nothing is left", || async { self.left().await == 0 }).await;
    }

    async fn begin(&self, watch: &Watch) -> Result<Running, SourceError> {
        begin(&self.database.url(), watch).await
    }

    async fn refused(&self, watch: &Watch) -> SourceError {
        let error = self.begin(watch).await.err().expect("it is refused");
        assert_eq!(self.left().await, 0, "{error:?}");
        error
    }

    /// What is found in these transactions.
    async fn found(&self, watch: &Watch, transactions: &[&str]) -> Report {
        let audit = self.begin(watch).await.unwrap();
        for transaction in transactions {
            self.run(transaction).await;
        }
        audit.finish().await
    }
}

/// An audit that has begun.
struct Running {
    audit: Box<dyn Audit>,
    handle: ShutdownHandle,
    shutdown: Shutdown,
}

async fn begin(url: &str, watch: &Watch) -> Result<Running, SourceError> {
    begin_with(url, &TableName::default(), &BTreeMap::new(), watch).await
}

async fn begin_with(
    url: &str,
    outbox: &TableName,
    columns: &BTreeMap<String, String>,
    watch: &Watch,
) -> Result<Running, SourceError> {
    let (handle, shutdown) = shutdown();
    let audit = sources::connect_audit(url, outbox, columns, watch, &shutdown).await?;
    Ok(Running { audit, handle, shutdown })
}

impl Running {
    /// Ends it; everything that was committed before is in the report.
    async fn finish(self) -> Report {
        self.finish_with(Rules::default()).await
    }

    async fn finish_with(self, rules: Rules) -> Report {
        let Self { mut audit, handle, mut shutdown } = self;
        handle.stop();
        let (report, ended) = run(&mut *audit, rules, None, &mut shutdown, |finding, _| {
            assert!(!format!("{finding:?}").contains("canary"), "{finding:?}");
            true
        })
        .await;
        ended.unwrap();
        assert!(report.is_complete);
        audit.close().await.unwrap();
        report
    }
}

/// Tables of the search path, of which everything needs an event.
fn watch(tables: &[&str]) -> Watch {
    let tables = tables.iter().map(|name| table(name, &Operation::ALL)).collect();
    Watch { tables, publications: Vec::new() }
}

/// One table, of which these operations need an event.
fn table(name: &str, needs_event: &[Operation]) -> NamedTable {
    let (schema, name) = match name.split_once('.') {
        Some((schema, name)) => (Some(schema.to_owned()), name.to_owned()),
        None => (None, name.to_owned()),
    };
    NamedTable { schema, name, needs_event: needs_event.iter().copied().collect::<Operations>() }
}

/// What was found, in words: how often, what was done, and what was written.
fn told(report: &Report) -> Vec<String> {
    let group = |group: &postrider_relay::audit::Group| {
        let mut words = format!("{}x {}", group.count, group.kind.as_str());
        for (index, counts) in &group.changes {
            words.push_str(&format!(" {}", report.watched.tables[*index].name));
            for operation in counts.operations().iter() {
                words.push_str(&format!(" {}{}", operation.as_str(), counts.of(operation)));
            }
        }
        for (aggregate_type, event_type) in &group.types {
            words.push_str(&format!(" {aggregate_type}/{event_type}"));
        }
        words
    };
    report.groups().into_iter().map(group).collect()
}
