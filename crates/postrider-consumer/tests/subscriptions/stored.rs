//! What was stored, in PostgreSQL and in SQLite.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider::schema::{self, TableName};
use postrider::{Claim, Event, Inbox};
use postrider_consumer::Subscription as _;
use postrider_consumer::subscriptions::Stored;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Executor as _, PgPool, SqlitePool};
use tempfile::TempDir;
use tokio::time::timeout;
use uuid::Uuid;

use super::{event, exercise, handles, mistake, receive, receives_nothing, told};

const VISIBILITY: Duration = Duration::from_secs(1);
const CONSUMER: &str = "billing";

/// A schema of its own, which is removed in the end.
struct Postgres {
    pool: PgPool,
    schema: String,
}

impl Postgres {
    async fn make() -> Self {
        let url = std::env::var("POSTRIDER_TEST_POSTGRES").unwrap();
        let schema = format!("subscriptions_{}", Uuid::now_v7().simple());
        let path = format!("SET search_path = {schema}");
        let options =
            PgPoolOptions::new().max_connections(5).after_connect(move |connection, _| {
                let path = path.clone();
                Box::pin(async move { connection.execute(AssertSqlSafe(path)).await.map(drop) })
            });
        let pool = options.connect(&url).await.unwrap();
        let make = format!("CREATE SCHEMA {schema}");
        pool.execute(AssertSqlSafe(make)).await.unwrap();
        let tables =
            schema::postgres::sql(&TableName::default(), schema::postgres::Layout::default());
        pool.execute(sqlx::raw_sql(AssertSqlSafe(tables))).await.unwrap();
        Self { pool, schema }
    }

    async fn remove(self) {
        let remove = format!("DROP SCHEMA {} CASCADE", self.schema);
        self.pool.execute(AssertSqlSafe(remove)).await.unwrap();
    }
}

async fn sqlite() -> (SqlitePool, TempDir) {
    let folder = TempDir::new().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("db"));
    let pool = SqlitePool::connect_with(options.create_if_missing(true)).await.unwrap();
    let tables = schema::sqlite::sql(&TableName::default());
    pool.execute(sqlx::raw_sql(AssertSqlSafe(tables))).await.unwrap();
    (pool, folder)
}

/// The same for both databases.
macro_rules! cases {
    ($pool:expr, $type:ty) => {{
        let pool: &$type = $pool;
        let store = async |event: &Event| {
            let mut tx = pool.begin().await.unwrap();
            let stored = Inbox::new().store(&mut tx, CONSUMER, event).await.unwrap();
            assert_eq!(stored, Claim::First);
            tx.commit().await.unwrap();
        };
        let subscribe = || Stored::subscribe(pool.clone(), CONSUMER).with_visibility(VISIBILITY);
        exercise(store, async |_: &str| subscribe(), Some(VISIBILITY)).await;

        // Only one of them has a key at a time, and keys take turns.
        let (one, other) = (subscribe(), subscribe());
        for number in 1..=4 {
            store(&event("a", number)).await;
            store(&event("b", number)).await;
        }
        let taken = receive(&one, 2).await;
        assert_eq!(told(&taken), "a1 b1");
        receives_nothing(&other, Duration::from_millis(300)).await;
        one.acknowledge(handles::<Stored<$type>>(&taken[1..])).await.unwrap();
        let next = receive(&other, 3).await;
        assert_eq!(told(&next), "b2 b3 b4");
        other.acknowledge(handles::<Stored<$type>>(&next)).await.unwrap();
        one.acknowledge(handles::<Stored<$type>>(&taken[..1])).await.unwrap();
        let next = receive(&one, 3).await;
        assert_eq!(told(&next), "a2 a3 a4");

        // A dead letter stays, and so does one that was revived.
        let id = next[0].incoming.headers[0].1.parse().unwrap();
        let mut tx = pool.begin().await.unwrap();
        Inbox::new().bury(&mut tx, CONSUMER, &event_of(&next[0]), "why", 3).await.unwrap();
        tx.commit().await.unwrap();
        one.acknowledge(handles::<Stored<$type>>(&next)).await.unwrap();
        receives_nothing(&one, Duration::from_millis(300)).await;
        let mut tx = pool.begin().await.unwrap();
        assert_eq!(Inbox::new().revive(&mut tx, CONSUMER, Some(id)).await.unwrap(), 1);
        tx.commit().await.unwrap();
        one.acknowledge(handles::<Stored<$type>>(&next[..1])).await.unwrap();
        let revived = receive(&one, 1).await;
        assert_eq!(told(&revived), "a2");
        one.acknowledge(handles::<Stored<$type>>(&revived)).await.unwrap();

        // Many keys, which two instances share. A call that nobody waits for loses nothing.
        let mut tx = pool.begin().await.unwrap();
        for number in 0..3000 {
            let event = event(&format!("k{}", number % 1500), number);
            assert_eq!(Inbox::new().store(&mut tx, CONSUMER, &event).await.unwrap(), Claim::First);
        }
        tx.commit().await.unwrap();
        // On a busy machine some may be due again before they are acknowledged.
        let mut seen = BTreeSet::new();
        while seen.len() < 3000 {
            for from in [&one, &other] {
                let receiving = from.receive(100);
                let Ok(some) = timeout(Duration::from_millis(5), receiving).await else { continue };
                let some = some.unwrap();
                seen.extend(some.iter().map(|one| one.incoming.place.clone()));
                from.acknowledge(handles::<Stored<$type>>(&some)).await.unwrap();
                if seen.len() == 3000 {
                    break;
                }
            }
        }
        assert_eq!(seen.len(), 3000);
        receives_nothing(&one, Duration::from_millis(300)).await;

        let drop = pool.execute("DROP TABLE inbox_messages").await;
        drop.unwrap();
        assert!(mistake(&one).await.message.contains("postrider migrate"));
    }};
}

fn event_of<H>(received: &postrider_consumer::Received<H>) -> Event {
    postrider_consumer::decoding::decode(&received.incoming).unwrap()
}

#[tokio::test]
async fn postgres_gives_what_was_stored() {
    let postgres = Postgres::make().await;
    cases!(&postgres.pool, PgPool);
    postgres.remove().await;
}

#[tokio::test]
async fn sqlite_gives_what_was_stored() {
    let (pool, _folder) = sqlite().await;
    cases!(&pool, SqlitePool);
}
