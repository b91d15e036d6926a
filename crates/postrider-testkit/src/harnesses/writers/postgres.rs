//! A database of PostgreSQL, looked at without the client under test.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use postrider::schema::postgres::Layout;
use postrider::schema::{self, TableName};
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::messages;
use super::schema::Schema;
use crate::proxy::Proxy;
use crate::servers::address;
use crate::servers::postgres::{Database, connect};
use crate::suites::inbox::{Connector, KeptRow};
use crate::suites::writer::{
    Capabilities, Lost, Message, Subject, TestClient, TestDatabase, Why, WrittenRow,
};
use crate::suites::{Backend, Clock, Doing};

/// The server ends the connection while it commits a transaction that adds an order.
const END_AT_COMMIT: &str = "
    CREATE FUNCTION end_connection() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER end_connection AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION end_connection();
";

/// The server ends the connection at once.
pub(super) const END_CONNECTION: &str = "SELECT pg_terminate_backend(pg_backend_pid())";

/// Whether a session that uses the inbox waits for another.
const SOMEONE_WAITS: &str = "SELECT count(*) FROM pg_locks AS waiting
    JOIN pg_locks AS used ON used.pid = waiting.pid AND used.granted
        AND used.relation IN ('inbox'::regclass, 'inbox_versions'::regclass, 'inbox_messages'::regclass)
    WHERE NOT waiting.granted";

/// Counts the statements that write to the outbox.
const TABLES: &str = "
    CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
    CREATE TABLE ledger (consumer text NOT NULL, amount bigint NOT NULL);
    CREATE TABLE insert_statements (number bigint GENERATED ALWAYS AS IDENTITY);
    CREATE FUNCTION count_insert() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO insert_statements DEFAULT VALUES; RETURN NULL; END';
    CREATE TRIGGER count_insert AFTER INSERT ON outbox EXECUTE FUNCTION count_insert();
";

const UNMIGRATE: &str = "
    DROP TABLE outbox, inbox, inbox_versions, inbox_messages;
    DO $$ DECLARE made regprocedure; BEGIN
        FOR made IN SELECT oid FROM pg_proc WHERE pronamespace = quote_ident(current_schema())::regnamespace
            AND (starts_with(proname, 'outbox_publish') OR starts_with(proname, 'inbox_')) LOOP
            EXECUTE format('DROP FUNCTION %s', made);
        END LOOP;
    END $$;
";

/// What a client is tried on.
#[derive(Clone, Copy)]
pub(super) struct Setting {
    pub(super) open: Open,
    pub(super) layout: Layout,
    /// Behind pgbouncer in transaction mode.
    pub(super) is_pooled: bool,
    /// The client has a `transact` that commits.
    pub(super) transacts: bool,
}

/// Connects a client.
pub(super) type Open = fn(String) -> Doing<Box<dyn TestClient>>;

/// A client of PostgreSQL.
pub(super) fn backend(name: &str, setting: Setting) -> Backend<Subject, Capabilities> {
    let capabilities = Capabilities {
        refuses_known_ids: setting.layout == Layout::Plain,
        one_statement_per_batch: true,
        has_clock: true,
        has_log: true,
        loses_commits: setting.transacts && !setting.is_pooled,
    };
    Backend::new(name, capabilities, Clock::Real, move || database(setting))
}

/// A fresh database for a client.
async fn database(setting: Setting) -> Subject {
    let place = match setting.is_pooled {
        true => Place::Database(Database::fresh().await),
        false => Place::schema().await,
    };
    let mut client = connect(&place.url()).await;
    let migrated =
        schema::postgres::migrate(&mut client, &TableName::default(), Some(setting.layout)).await;
    migrated.expect("an empty database can be migrated");
    client.batch_execute(TABLES).await.expect("the database takes tables");
    Box::new(Postgres { place, client, setting, proxies: RefCell::default() })
}

struct Postgres {
    client: Client,
    place: Place,
    setting: Setting,
    /// As long as the clients that connect through them.
    proxies: RefCell<Vec<Proxy>>,
}

/// Where the tables are.
enum Place {
    /// For pgbouncer, which has no way to choose a schema.
    Database(Database),
    /// Made and dropped much faster.
    Schema(Schema),
}

impl Place {
    async fn schema() -> Self {
        Self::Schema(Schema::fresh().await)
    }

    fn url(&self) -> String {
        match self {
            Self::Database(database) => database.url(),
            Self::Schema(schema) => schema.url(),
        }
    }
}

impl Postgres {
    async fn count(&self, table: &str) -> u32 {
        let count = self.number(&format!("SELECT count(*) FROM {table}")).await;
        u32::try_from(count).expect("there are few rows")
    }
}

#[async_trait(?Send)]
impl TestDatabase for Postgres {
    fn connector(&self) -> Connector {
        let url = match &self.place {
            Place::Database(database) => database.pooled_url(),
            Place::Schema(schema) => schema.url(),
        };
        let open = self.setting.open;
        Arc::new(move || open(url.clone()))
    }

    async fn run(&self, sql: &str) {
        let done = self.client.batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    async fn number(&self, sql: &str) -> i64 {
        let row = self.client.query_one(sql, &[]).await;
        row.unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
    }

    async fn kept(&self) -> Vec<KeptRow> {
        let sql = "SELECT *, headers::text AS headers_text FROM inbox_messages ORDER BY position";
        let rows = self.client.query(sql, &[]).await.expect("there is an inbox");
        rows.iter().map(kept_row).collect()
    }

    async fn someone_waits(&self) -> bool {
        self.number(SOMEONE_WAITS).await > 0
    }

    async fn ids(&self) -> Vec<Uuid> {
        let rows = self.client.query("SELECT id FROM outbox ORDER BY seq", &[]).await;
        rows.expect("there is an outbox").iter().map(|row| row.get(0)).collect()
    }

    async fn only_row(&self) -> WrittenRow {
        let sql = "SELECT *, headers::text AS headers_text FROM outbox";
        let found = self.client.query_one(sql, &[]).await;
        row(&found.expect("the outbox has one row, as it should be"))
    }

    async fn orders(&self) -> u32 {
        self.count("orders").await
    }

    async fn unmigrate(&self) {
        self.client.batch_execute(UNMIGRATE).await.expect("the tables were there");
    }

    async fn refuse_events(&self, why: Why) {
        let statements = match why {
            Why::Constraint => {
                "ALTER TABLE outbox ADD CONSTRAINT outbox_none CHECK (event_type = '')"
            }
            Why::Value => {
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                     'BEGIN PERFORM new.aggregate_id::integer; RETURN new; END';
                 CREATE TRIGGER refuse BEFORE INSERT ON outbox
                     FOR EACH ROW EXECUTE FUNCTION refuse()"
            }
        };
        self.client.batch_execute(statements).await.expect("the table takes it");
    }

    async fn insert_statements(&self) -> u32 {
        self.count("insert_statements").await
    }

    async fn watch_log(&self) {
        messages::watch(&self.client).await;
    }

    async fn messages(&self) -> Vec<Message> {
        messages::messages(&self.client).await
    }

    async fn client_losing_commit(&self, lost: Lost) -> Box<dyn TestClient> {
        let url = self.place.url();
        if lost == Lost::Before {
            let sql = format!("DROP FUNCTION IF EXISTS end_connection() CASCADE; {END_AT_COMMIT}");
            self.client.batch_execute(&sql).await.expect("the table takes a trigger");
            return (self.setting.open)(url).await;
        }
        let proxy = Proxy::start(address(&url)).await;
        proxy.drop_reply_of_commit();
        let client = (self.setting.open)(proxy.url(&url)).await;
        self.proxies.borrow_mut().push(proxy);
        client
    }
}

/// The server puts spaces and an order of its own into JSON.
fn headers(row: &Row) -> String {
    let headers: BTreeMap<String, String> =
        serde_json::from_str(row.get("headers_text")).expect("headers are texts");
    serde_json::to_string(&headers).expect("a map of texts is JSON")
}

fn kept_row(row: &Row) -> KeptRow {
    KeptRow {
        consumer: row.get("consumer"),
        id: row.get::<_, Uuid>("event_id").to_string(),
        aggregate_type: row.get("aggregate_type"),
        aggregate_id: row.get("aggregate_id"),
        event_type: row.get("event_type"),
        event_version: row.get::<_, i64>("event_version").try_into().expect("versions fit"),
        payload: row.get("payload"),
        content_type: row.get("content_type"),
        headers: headers(row),
        topic: row.get("topic"),
        occurred_at: row.get("occurred_at"),
        stored_at: row.get("stored_at"),
        due_at: row.get("due_at"),
        attempts: row.get::<_, i32>("attempts").try_into().expect("attempts are counted"),
        error: row.get("error"),
        dead: row.get("dead"),
    }
}

fn row(row: &Row) -> WrittenRow {
    WrittenRow {
        id: row.get::<_, Uuid>("id").to_string(),
        aggregate_type: row.get("aggregate_type"),
        aggregate_id: row.get("aggregate_id"),
        event_type: row.get("event_type"),
        event_version: row.get::<_, i64>("event_version").try_into().expect("versions fit"),
        payload: row.get("payload"),
        content_type: row.get("content_type"),
        headers: headers(row),
        topic: row.get("topic"),
        occurred_at: row.get("occurred_at"),
        created_at: row.get("created_at"),
        deliver_after: row.get("deliver_after"),
        published: row.get::<_, Option<std::time::SystemTime>>("published_at").is_some(),
    }
}
