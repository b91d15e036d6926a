//! What consumers have done, as their database has it.

use std::collections::HashMap;

use postrider::Event;
use postrider::schema::TableName;
use postrider::schema::postgres::{Layout, migrate};
use sqlx::{PgPool, Postgres, Row as _, Transaction};
use uuid::Uuid;

use super::Paid;
use crate::servers::postgres::Database;

/// More than all consumers of a case have open.
const CONNECTIONS_MAX: u32 = 30;

/// A database with an inbox, an outbox, and a book in which each payment is written down.
pub struct Ledger {
    database: Database,
    pool: PgPool,
}

/// A dead letter.
#[derive(Debug, PartialEq, Eq)]
pub struct Dead {
    /// Its event.
    pub event_id: Uuid,
    /// Why.
    pub error: String,
    /// After how many attempts.
    pub attempts: i32,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Ledger {
    /// Makes one.
    pub async fn fresh() -> Self {
        let database = Database::fresh().await;
        let mut client = database.connect().await;
        let table = TableName::default();
        migrate(&mut client, &table, Some(Layout::Plain)).await.expect("it can be migrated");
        let tables = "CREATE TABLE book (position bigint GENERATED ALWAYS AS IDENTITY, consumer text, \
             event_id uuid, account text, number bigint, cents bigint); \
             CREATE TABLE totals (consumer text, account text, cents bigint, PRIMARY KEY (consumer, account)); \
             CREATE TABLE taken (number integer UNIQUE DEFERRABLE INITIALLY DEFERRED); \
             INSERT INTO taken VALUES (1)";
        client.batch_execute(tables).await.expect("the tables can be made");
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(CONNECTIONS_MAX);
        let pool = options.connect(&database.url()).await.expect("the server can be reached");
        Self { database, pool }
    }

    /// Connections to it.
    pub fn pool(&self) -> PgPool {
        self.pool.clone()
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.database.url()
    }

    /// How many payments a consumer has written down.
    pub async fn count(&self, consumer: &str) -> usize {
        let sql = "SELECT count(*) FROM book WHERE consumer = $1";
        let row = sqlx::query(sql).bind(consumer).fetch_one(&self.pool).await;
        let count: i64 = row.expect("the book can be read").get(0);
        usize::try_from(count).expect("a count is not negative")
    }

    /// Holds the book against what was published: each event once, those of an account in order,
    /// and the totals are their sums.
    pub async fn check(&self, consumer: &str, published: &[Event]) {
        self.check_order(consumer).await;
        self.check_effects(consumer, published).await;
    }

    /// The payments of each account were written down in their order.
    async fn check_order(&self, consumer: &str) {
        let sql = "SELECT account, number FROM book WHERE consumer = $1 ORDER BY position";
        let rows = sqlx::query(sql).bind(consumer).fetch_all(&self.pool).await;
        let mut last: HashMap<String, i64> = HashMap::new();
        for row in rows.expect("the book can be read") {
            let (account, number): (String, i64) = (row.get("account"), row.get("number"));
            let before = last.insert(account.clone(), number).unwrap_or(0);
            assert!(number > before, "{account}: {number} after {before}");
        }
    }

    /// Each event was written down once, and the totals are their sums.
    pub async fn check_effects(&self, consumer: &str, published: &[Event]) {
        let sql = "SELECT event_id FROM book WHERE consumer = $1";
        let rows = sqlx::query(sql).bind(consumer).fetch_all(&self.pool).await;
        let mut seen: HashMap<Uuid, usize> = HashMap::new();
        for row in rows.expect("the book can be read") {
            *seen.entry(row.get("event_id")).or_default() += 1;
        }
        let mut sums: HashMap<String, i64> = HashMap::new();
        for event in published {
            let times = seen.remove(&event.id()).unwrap_or(0);
            assert_eq!(times, 1, "{} was applied {times} times", event.id());
            let paid: Paid = serde_json::from_slice(event.payload()).expect("it is a payment");
            *sums.entry(paid.account).or_default() += paid.cents;
        }
        assert!(seen.is_empty(), "nobody has published {seen:?}");
        let sql = "SELECT account, cents FROM totals WHERE consumer = $1";
        let rows = sqlx::query(sql).bind(consumer).fetch_all(&self.pool).await;
        let totals: HashMap<String, i64> =
            rows.expect("the totals").iter().map(|row| (row.get(0), row.get(1))).collect();
        assert_eq!(totals, sums);
    }

    /// Whether a consumer has claimed what it has written down, and nothing else.
    pub async fn claims_are_true(&self, consumer: &str) -> bool {
        let sql = "SELECT (SELECT count(*) FROM inbox WHERE consumer = $1)
                 = (SELECT count(*) FROM book WHERE consumer = $1)
             AND NOT EXISTS (SELECT FROM inbox AS i WHERE i.consumer = $1 AND NOT EXISTS (
                 SELECT FROM book AS b WHERE b.consumer = $1 AND b.event_id = i.event_id))";
        let row = sqlx::query(sql).bind(consumer).fetch_one(&self.pool).await;
        row.expect("the inbox can be read").get(0)
    }

    /// The dead letters of a consumer.
    pub async fn dead(&self, consumer: &str) -> Vec<Dead> {
        let sql = "SELECT event_id, error, attempts, payload FROM inbox_messages \
                   WHERE consumer = $1 AND dead ORDER BY position";
        let rows = sqlx::query(sql).bind(consumer).fetch_all(&self.pool).await;
        let dead = |row: &sqlx::postgres::PgRow| Dead {
            event_id: row.get(0),
            error: row.get(1),
            attempts: row.get(2),
            payload: row.get(3),
        };
        rows.expect("the messages can be read").iter().map(dead).collect()
    }

    /// For which events receipts were published.
    pub async fn receipts(&self) -> Vec<Uuid> {
        let sql = "SELECT (headers->>'of')::uuid FROM outbox ORDER BY 1";
        let rows = sqlx::query(sql).fetch_all(&self.pool).await;
        rows.expect("the outbox can be read").iter().map(|row| row.get(0)).collect()
    }
}

/// Writes a payment down.
pub(super) async fn apply(
    tx: &mut Transaction<'static, Postgres>,
    consumer: &str,
    event: &Event,
    paid: &Paid,
) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO book (consumer, event_id, account, number, cents) \
               VALUES ($1, $2, $3, $4, $5)";
    sqlx::query(sql)
        .bind(consumer)
        .bind(event.id())
        .bind(&paid.account)
        .bind(i64::from(paid.number))
        .bind(paid.cents)
        .execute(&mut **tx)
        .await?;
    let sql = "INSERT INTO totals VALUES ($1, $2, $3) \
               ON CONFLICT (consumer, account) DO UPDATE SET cents = totals.cents + excluded.cents";
    let add = sqlx::query(sql).bind(consumer).bind(&paid.account).bind(paid.cents);
    add.execute(&mut **tx).await?;
    Ok(())
}

/// Breaks a constraint, which shows when the transaction is committed.
pub(super) async fn break_later(
    tx: &mut Transaction<'static, Postgres>,
) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO taken VALUES (1)").execute(&mut **tx).await.map(drop)
}
