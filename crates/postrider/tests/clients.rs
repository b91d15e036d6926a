//! What every client does alike: each case is written once and runs for each of them.

// The lint knows only functions with #[test] as tests.
#![allow(clippy::unwrap_used)]

#[path = "clients/rusqlite_client.rs"]
mod rusqlite_client;
#[path = "clients/sqlx_client.rs"]
mod sqlx_client;

use std::error::Error as StdError;
use std::path::{Path, PathBuf};

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use postrider::event::PAYLOAD_BYTES_MAX;
use postrider::{Claim, Event, Events, InvalidEvent, ToEvent, WriteError, events, schema};
use rusqlite::Connection;
use tempfile::TempDir;
use uuid::Uuid;

type BoxError = Box<dyn StdError + Send + Sync>;

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Commit,
    Rollback,
}

/// A client under test. Each call is a transaction, which ends as told even after an error.
trait Client {
    fn open(path: &Path) -> Self;
    fn publish(&mut self, event: &Event, end: End) -> Result<Uuid, WriteError>;
    fn publish_all<E: ToEvent>(&mut self, events: &[E], end: End) -> Result<Vec<Uuid>, WriteError>;
    /// Publishes one event in the transaction, which commits, and one in a savepoint.
    fn publish_nested(&mut self, outer: &Event, inner: &Event, end_inner: End);
    fn once(&mut self, consumer: &str, event_id: Uuid, end: End) -> Result<Claim, WriteError>;
    /// Adds an order by `transact`, with a closure that ends with `result`.
    fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError>;
}

macro_rules! cases {
    ($($case:ident)+) => {
        mod with_rusqlite {
            $(#[test] fn $case() { super::$case::<super::rusqlite_client::Rusqlite>(); })+
        }
        mod with_sqlx {
            $(#[test] fn $case() { super::$case::<super::sqlx_client::Sqlx>(); })+
        }
    };
}

cases! {
    every_field_is_written
    a_commit_publishes_and_a_rollback_leaves_nothing
    a_savepoint_takes_its_events_with_it
    a_batch_keeps_its_order
    an_invalid_event_stops_its_whole_batch
    a_duplicate_id_stops_its_whole_batch
    a_missing_table_names_the_fix
    the_current_span_is_captured
    an_event_is_claimed_once_per_consumer
    a_claim_rolled_back_is_first_again
    transact_publishes_what_the_closure_returns
    transact_rolls_back_after_an_error
}

struct Database {
    _dir: TempDir,
    path: PathBuf,
}

impl Database {
    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        let database = Self { _dir: dir, path };
        database
            .read()
            .execute_batch(
                "PRAGMA journal_mode = WAL; CREATE TABLE orders (id INTEGER PRIMARY KEY)",
            )
            .unwrap();
        database
    }

    fn migrated() -> Self {
        let database = Self::empty();
        schema::sqlite::migrate(&mut database.read(), &schema::TableName::default()).unwrap();
        database
    }

    fn orders(&self) -> u32 {
        self.read()
            .query_one("SELECT count(*) FROM orders", [], |row| row.get(0))
            .unwrap()
    }

    fn read(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    fn ids(&self) -> Vec<Uuid> {
        let conn = self.read();
        let mut statement = conn.prepare("SELECT id FROM outbox ORDER BY seq").unwrap();
        let ids = statement
            .query_map([], |row| row.get::<_, String>(0))
            .unwrap();
        ids.map(|id| id.unwrap().parse().unwrap()).collect()
    }
}

fn event(event_type: &str) -> Event {
    Event::builder("Order", "42", event_type)
        .json("x")
        .build()
        .unwrap()
}

fn every_field_is_written<C: Client>() {
    let database = Database::migrated();
    let time = |text: &str| postrider::timestamp::from_text(text).unwrap();
    let id = Uuid::from_u128(7);
    let event = Event::builder("Order", "42", "OrderPaid")
        .id(id)
        .version(3)
        .payload(vec![0, 255], "application/octet-stream")
        .header("a", "b\"")
        .topic("orders")
        .occurred_at(time("2026-01-02T03:04:05.123456789Z"))
        .deliver_after(time("2026-02-03T04:05:06Z"))
        .build()
        .unwrap();
    assert_eq!(
        C::open(&database.path)
            .publish(&event, End::Commit)
            .unwrap(),
        id
    );
    let sql = "SELECT id || '|' || aggregate_type || '|' || aggregate_id || '|' || event_type \
        || '|' || event_version || '|' || hex(payload) || typeof(payload) || '|' || content_type \
        || '|' || headers || '|' || topic || '|' || occurred_at || '|' || deliver_after, \
        created_at, published_at FROM outbox";
    let (row, created_at, published_at): (String, String, Option<String>) = database
        .read()
        .query_one(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap();
    assert_eq!(
        row,
        "00000000-0000-0000-0000-000000000007|Order|42|OrderPaid|3|00FFblob|\
         application/octet-stream|{\"a\":\"b\\\"\"}|orders|2026-01-02T03:04:05.123456Z|\
         2026-02-03T04:05:06.000000Z"
    );
    assert_eq!(created_at.len(), "2026-01-02T03:04:05.123456Z".len());
    assert_eq!(published_at, None);
}

fn a_commit_publishes_and_a_rollback_leaves_nothing<C: Client>() {
    let database = Database::migrated();
    let mut client = C::open(&database.path);
    client.publish(&event("RolledBack"), End::Rollback).unwrap();
    let id = client.publish(&event("Committed"), End::Commit).unwrap();
    assert_eq!(database.ids(), [id]);
}

fn a_savepoint_takes_its_events_with_it<C: Client>() {
    let database = Database::migrated();
    let mut client = C::open(&database.path);
    let (outer, inner) = (event("Outer"), event("Inner"));
    client.publish_nested(&outer, &inner, End::Rollback);
    assert_eq!(database.ids(), [outer.id()]);
    let (outer2, inner2) = (event("Outer"), event("Inner"));
    client.publish_nested(&outer2, &inner2, End::Commit);
    assert_eq!(database.ids(), [outer.id(), outer2.id(), inner2.id()]);
}

fn a_batch_keeps_its_order<C: Client>() {
    let database = Database::migrated();
    let mut client = C::open(&database.path);
    let batch: Vec<Event> = (0..100).map(|n| event(&format!("E{n}"))).collect();
    let ids = client.publish_all(&batch, End::Commit).unwrap();
    assert_eq!(ids, batch.iter().map(Event::id).collect::<Vec<_>>());
    assert_eq!(database.ids(), ids);
    assert!(
        client
            .publish_all::<Event>(&[], End::Commit)
            .unwrap()
            .is_empty()
    );
}

struct OfSize(usize);

impl ToEvent for OfSize {
    fn to_event(&self) -> Result<Event, InvalidEvent> {
        Event::builder("Order", "42", "OfSize")
            .payload(vec![b'x'; self.0], "text/plain")
            .build()
    }
}

fn an_invalid_event_stops_its_whole_batch<C: Client>() {
    let database = Database::migrated();
    let batch = [
        OfSize(1),
        OfSize(PAYLOAD_BYTES_MAX),
        OfSize(PAYLOAD_BYTES_MAX + 1),
    ];
    let error = C::open(&database.path)
        .publish_all(&batch, End::Commit)
        .unwrap_err();
    assert!(
        matches!(error, WriteError::Invalid(InvalidEvent::TooLong { .. })),
        "{error:?}"
    );
    assert!(database.ids().is_empty());
}

fn a_duplicate_id_stops_its_whole_batch<C: Client>() {
    let database = Database::migrated();
    let mut client = C::open(&database.path);
    let known = event("Known");
    client.publish(&known, End::Commit).unwrap();
    let batch = [event("New"), known.clone()];
    let error = client.publish_all(&batch, End::Commit).unwrap_err();
    assert!(
        matches!(error, WriteError::Duplicate { id } if id == known.id()),
        "{error:?}"
    );
    let error = client.publish(&known, End::Commit).unwrap_err();
    assert!(
        error.to_string().contains("is in the outbox already"),
        "{error}"
    );
    assert_eq!(database.ids(), [known.id()]);
}

fn a_missing_table_names_the_fix<C: Client>() {
    let database = Database::empty();
    let mut client = C::open(&database.path);
    let outbox = client.publish(&event("E"), End::Rollback).unwrap_err();
    let inbox = client
        .once("billing", Uuid::now_v7(), End::Rollback)
        .unwrap_err();
    for (error, table) in [(outbox, "outbox"), (inbox, "inbox")] {
        assert_eq!(
            error.to_string(),
            format!("the table {table} is missing or out of date; run `postrider migrate`")
        );
        assert!(
            error
                .source()
                .is_some_and(|source| source.to_string().contains(table))
        );
    }
}

fn the_current_span_is_captured<C: Client>() {
    let database = Database::migrated();
    let span = SpanContext::new(
        TraceId::from_hex("0af7651916cd43dd8448eb211c80319c").unwrap(),
        SpanId::from_hex("b7ad6b7169203331").unwrap(),
        TraceFlags::SAMPLED,
        true,
        TraceState::NONE,
    );
    let _attached = Context::new().with_remote_span_context(span).attach();
    C::open(&database.path)
        .publish(&event("E"), End::Commit)
        .unwrap();
    let headers: String = database
        .read()
        .query_one("SELECT headers FROM outbox", [], |row| row.get(0))
        .unwrap();
    let expected = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    assert_eq!(headers, format!("{{\"traceparent\":\"{expected}\"}}"));
}

fn an_event_is_claimed_once_per_consumer<C: Client>() {
    let database = Database::migrated();
    let mut client = C::open(&database.path);
    let id = Uuid::now_v7();
    assert_eq!(
        client.once("billing", id, End::Commit).unwrap(),
        Claim::First
    );
    assert_eq!(
        client.once("billing", id, End::Commit).unwrap(),
        Claim::Duplicate
    );
    assert_eq!(
        client.once("shipping", id, End::Commit).unwrap(),
        Claim::First
    );
}

fn a_claim_rolled_back_is_first_again<C: Client>() {
    let database = Database::migrated();
    let mut client = C::open(&database.path);
    let id = Uuid::now_v7();
    assert_eq!(
        client.once("billing", id, End::Rollback).unwrap(),
        Claim::First
    );
    assert_eq!(
        client.once("billing", id, End::Commit).unwrap(),
        Claim::First
    );
}

fn transact_publishes_what_the_closure_returns<C: Client>() {
    let database = Database::migrated();
    let mut client = C::open(&database.path);
    let (paid, shipped) = (event("OrderPaid"), event("OrderShipped"));
    client.transact(Ok(events![paid, shipped])).unwrap();
    client.transact(Ok(Events::none())).unwrap();
    assert_eq!(database.ids(), [paid.id(), shipped.id()]);
    assert_eq!(database.orders(), 2);
}

fn transact_rolls_back_after_an_error<C: Client>() {
    let database = Database::migrated();
    let mut client = C::open(&database.path);
    let error = client.transact(Err("no stock".into())).unwrap_err();
    assert_eq!(error.to_string(), "no stock");
    let error = client
        .transact(Ok(events![event("E"), OfSize(PAYLOAD_BYTES_MAX + 1)]))
        .unwrap_err();
    assert!(error.is::<WriteError>(), "{error}");
    assert!(database.ids().is_empty());
    assert_eq!(database.orders(), 0);
}
