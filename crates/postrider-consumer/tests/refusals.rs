//! Mistakes that end a consumer, or an event, instead of being tried for ever. On stored messages,
//! because they have nothing to do with a broker.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

use std::time::Duration;

use postrider::schema::{self, TableName};
use postrider::{Claim, Event, EventType, Inbox, Sequence};
use postrider_consumer::subscriptions::Stored;
use postrider_consumer::{Consumer, ConsumerError, Retry};
use serde::Deserialize;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Executor as _, Row as _, SqlitePool};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Paid;

impl EventType for Paid {
    const EVENT_TYPE: &'static str = "Paid";
}

async fn empty() -> (SqlitePool, TempDir) {
    let folder = TempDir::new().unwrap();
    let options = SqliteConnectOptions::new().filename(folder.path().join("db"));
    (SqlitePool::connect_with(options.create_if_missing(true)).await.unwrap(), folder)
}

async fn migrated() -> (SqlitePool, TempDir) {
    let (pool, folder) = empty().await;
    let tables = schema::sqlite::sql(&TableName::default());
    pool.execute(sqlx::raw_sql(AssertSqlSafe(tables))).await.unwrap();
    (pool, folder)
}

/// An event that says which one of its key it is.
fn event(version: u64) -> Event {
    let event = Event::builder("Order", "a", "Paid").json(&());
    event.header("version", version.to_string()).build().unwrap()
}

fn version(event: &Event) -> Option<u64> {
    event.headers().get("version").map(|version| version.parse().expect("it is a number"))
}

async fn store(pool: &SqlitePool, event: &Event) {
    let mut tx = pool.begin().await.unwrap();
    let stored = Inbox::new().store(&mut tx, "billing", event).await.unwrap();
    assert_eq!(stored, Claim::First);
    tx.commit().await.unwrap();
}

/// A consumer that tells what it handles.
fn consumer(
    pool: &SqlitePool,
) -> (Consumer<SqlitePool, Stored<SqlitePool>>, mpsc::UnboundedReceiver<Option<Sequence>>) {
    let (handled, has_handled) = mpsc::unbounded_channel();
    let stored = Stored::subscribe(pool.clone(), "billing");
    let consumer = Consumer::new("billing", pool.clone(), stored)
        // What it tells is not rolled back.
        .batch(1)
        .retry(Retry { attempts_max: 2, ..Retry::default() })
        .on::<Paid>(move |_, paid| {
            let handled = handled.clone();
            Box::pin(async move { Ok(handled.send(paid.sequence)?) })
        });
    (consumer, has_handled)
}

async fn errors(pool: &SqlitePool) -> Vec<String> {
    let rows = pool.fetch_all("SELECT error FROM inbox_messages WHERE dead ORDER BY position");
    rows.await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Waits until so many are dead.
async fn until_dead(pool: &SqlitePool, count: usize) {
    while errors(pool).await.len() < count {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_inbox_that_is_not_there_or_a_bad_name_ends_the_run() {
    let (pool, _folder) = empty().await;
    let (consumer, _) = consumer(&pool);
    let ended = timeout(DEADLINE, consumer.run(std::future::pending())).await.expect("it ends");
    let error = ended.unwrap_err();
    assert!(matches!(error, ConsumerError::Inbox(_)), "{error:?}");
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("run `postrider migrate`"), "{why}");

    let (pool, _folder) = migrated().await;
    let stored = Stored::subscribe(pool.clone(), "bil\nling");
    let consumer = Consumer::new("bil\nling", pool, stored).on::<Paid>(|_, _| unreachable!());
    let ended = timeout(DEADLINE, consumer.run(std::future::pending())).await.expect("it ends");
    assert!(matches!(ended.unwrap_err(), ConsumerError::Inbox(_)));
}

#[tokio::test]
async fn two_handlers_for_the_same_events_are_refused() {
    let (pool, _folder) = migrated().await;
    let (consumer, _) = consumer(&pool);
    let consumer = consumer.on::<Paid>(|_, _| unreachable!());
    let error = consumer.run(std::future::pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "two handlers are for Paid of version 1; remove one");
}

#[tokio::test]
async fn a_version_that_cannot_be_kept_or_found_is_the_events_own_fault() {
    let (pool, _folder) = migrated().await;
    let too_high = event(u64::MAX);
    let unknown = Event::builder("Order", "b", "Paid").json(&()).header("version", "?").build();
    for event in [&too_high, &unknown.unwrap()] {
        store(&pool, event).await;
    }
    let (consumer, mut handled) = consumer(&pool);
    let consumer = consumer.versions_by(version);
    timeout(DEADLINE, consumer.run(until_dead(&pool, 2))).await.expect("they die").unwrap();
    let errors = errors(&pool).await;
    assert!(errors[0].contains("version"), "{errors:?}");
    assert!(errors[1].contains("the handler panicked: it is a number"), "{errors:?}");
    assert!(handled.try_recv().is_err(), "nothing was handled");
}

#[tokio::test]
async fn a_gap_is_waited_for_once_and_what_is_revived_is_handled() {
    let (pool, _folder) = migrated().await;
    for version in [1, 3, 4, 5] {
        store(&pool, &event(version)).await;
    }
    let (waiting, mut handled) = consumer(&pool);
    let waiting = waiting.versions_by(version).refuse_gaps(Duration::from_millis(300));
    let metrics = waiting.metrics();
    timeout(DEADLINE, waiting.run(until_dead(&pool, 3))).await.expect("they die").unwrap();
    assert_eq!(handled.recv().await.unwrap(), Some(Sequence::Next));
    assert!(handled.try_recv().is_err(), "what waits for a gap is not handled");
    assert_eq!((metrics.counts().gaps, metrics.counts().buried), (3, 3));
    for error in errors(&pool).await {
        assert_eq!(error, "events of Order/a are missing after version 1");
    }

    // Somebody says that the second one will never come.
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(Inbox::new().revive(&mut tx, "billing", None).await.unwrap(), 3);
    tx.commit().await.unwrap();
    let (reviving, mut handled) = consumer(&pool);
    let reviving = reviving.versions_by(version).refuse_gaps(Duration::from_secs(600));
    let mut seen = Vec::new();
    let three = async {
        while seen.len() < 3 {
            seen.push(handled.recv().await.unwrap());
        }
    };
    timeout(DEADLINE, reviving.run(three)).await.expect("they are handled").unwrap();
    let expected = [Sequence::Gap { last: 1 }, Sequence::Next, Sequence::Next];
    assert_eq!(seen, expected.map(Some));
}
