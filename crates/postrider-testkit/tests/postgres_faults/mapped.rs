//! An outbox of somebody else's making, with Debezium's names and numbers for ids.

use std::collections::BTreeMap;

use postrider_relay::source::SourceErrorKind;
use postrider_relay::sources::{Progress, SourceSpec};
use postrider_testkit::chaos::{Arrival, Running, Target, spec};
use postrider_testkit::servers::postgres::Database;
use tokio_postgres::Client;

/// The tables beside the outbox are ours.
async fn open() -> (Database, Client) {
    let database = Database::fresh().await;
    postrider_relay::sources::migrate(&database.url(), &Default::default()).await.unwrap();
    let client = database.connect().await;
    let statements = "DROP TABLE outbox CASCADE;
         CREATE TABLE outbox (id bigserial PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
             aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb,
             published_at timestamptz)";
    client.batch_execute(statements).await.unwrap();
    (database, client)
}

async fn write(client: &Client, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let statement = format!(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload)
             VALUES ('Account', 'a{}', 'AccountChanged', '{{\"event\": {number}}}')",
            number % 3
        );
        client.batch_execute(&statement).await.unwrap();
    }
}

fn mapped(database: &Database, progress: Progress) -> SourceSpec {
    let columns = [
        ("aggregate_id", "aggregateid"),
        ("aggregate_type", "aggregatetype"),
        ("event_type", "type"),
        ("seq", "id"),
    ];
    let columns = columns.map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned()));
    SourceSpec { columns: BTreeMap::from(columns), ..spec(&database.url(), progress) }
}

async fn left(client: &Client, condition: &str) -> i64 {
    let query = format!("SELECT count(*) FROM outbox WHERE {condition}");
    client.query_one(&query, &[]).await.unwrap().get(0)
}

/// Relays ten events, of which the first five are there before the start.
async fn relay(database: &Database, client: &Client, progress: Progress) -> Vec<Arrival> {
    let target = Target::start().await;
    write(client, 1..6).await;
    let relay = Running::start(&mapped(database, progress), &target).await;
    target.until_arrived(&[1, 2, 3, 4, 5]).await;
    write(client, 6..11).await;
    target.until_arrived(&[6, 7, 8, 9, 10]).await;
    assert_eq!(relay.stop().await.delivered, 10);
    let mut arrivals = target.arrivals();
    for key in ["a0", "a1", "a2"] {
        let of_key: Vec<_> = arrivals.iter().filter(|arrival| arrival.key == key).collect();
        assert!(of_key.iter().map(|it| number(it)).is_sorted(), "{of_key:?}");
    }
    arrivals.sort_by_key(number);
    arrivals
}

fn number(arrival: &Arrival) -> u64 {
    let body: serde_json::Value = serde_json::from_slice(&arrival.body).unwrap();
    body["event"].as_u64().unwrap()
}

/// G-01, G-03, G-04.
#[tokio::test]
async fn a_mapped_table_is_relayed_and_its_ids_stay_the_same() {
    let (database, client) = open().await;
    let marked = relay(&database, &client, Progress::Mark).await;
    assert_eq!(left(&client, "published_at IS NULL").await, 0);
    assert_eq!(left(&client, "true").await, 10);
    client.batch_execute("TRUNCATE outbox RESTART IDENTITY").await.unwrap();
    let deleted = relay(&database, &client, Progress::Delete).await;
    assert_eq!(left(&client, "true").await, 0);
    assert_eq!(marked, deleted, "the same rows are the same events");
    let ids: std::collections::BTreeSet<_> = marked.iter().map(|arrival| &arrival.id).collect();
    assert_eq!(ids.len(), 10);
    assert!(ids.iter().all(|id| uuid::Uuid::parse_str(id).is_ok()), "{ids:?}");
}

/// A time without a zone is taken for UTC, so it is written as such.
#[tokio::test]
async fn rows_are_marked_in_utc_whatever_the_zone_of_the_database() {
    let (database, client) = open().await;
    let zone = format!(
        "ALTER TABLE outbox ALTER published_at TYPE timestamp;
         ALTER DATABASE {} SET timezone = 'Asia/Tokyo'",
        database.name()
    );
    client.batch_execute(&zone).await.unwrap();
    relay(&database, &client, Progress::Mark).await;
    let now = "published_at BETWEEN timezone('UTC', now()) - interval '1 hour'
         AND timezone('UTC', now())";
    assert_eq!(left(&client, now).await, 10);
}

#[tokio::test]
async fn a_cursor_over_a_table_without_transactions_is_refused() {
    let (database, _client) = open().await;
    let refused = mapped(&database, Progress::Cursor).connect().await.err().unwrap();
    assert_eq!(refused.kind, SourceErrorKind::Misconfigured, "{}", refused.details());
    assert_eq!(refused.message, "progress cursor needs a column xid, and outbox has none");
    assert!(refused.details().contains("ADD COLUMN xid xid8"), "{}", refused.details());
}
