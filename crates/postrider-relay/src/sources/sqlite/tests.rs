//! What is particular to SQLite. The contract itself is proven by the suite in the testkit.

mod decoding;
mod opening;
mod operating;
mod reading;
#[cfg(unix)]
mod replacing;
mod setting_aside;
mod switching;

use std::time::Duration;

use postrider::schema::{self, TableName};
use postrider::{Event, Outbox};
use rusqlite::Connection;

use super::{Location, SqliteAdmin, SqliteOptions, SqliteSource};
use crate::failure::{Failure, FailureKind};
use crate::source::{BatchLimit, Handle, Record, Settled, Settlement, Source, Verdict};
use crate::sources::Progress;

/// A database file of its own, with the tables of an outbox.
struct Database {
    dir: tempfile::TempDir,
}

impl Database {
    fn new() -> Self {
        let database = Self { dir: tempfile::tempdir().unwrap() };
        let mut conn = Connection::open(database.path()).unwrap();
        schema::sqlite::migrate(&mut conn, &TableName::default()).unwrap();
        database
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("app.db")
    }

    /// Another program's connection.
    fn conn(&self) -> Connection {
        let conn = Connection::open(self.path()).unwrap();
        conn.busy_timeout(Duration::from_secs(5)).unwrap();
        // No test cuts the power.
        conn.execute_batch("PRAGMA synchronous = OFF").unwrap();
        conn
    }

    /// Writes events in one transaction each: `key:type`.
    fn write(&self, events: &[&str]) {
        let mut conn = self.conn();
        for event in events {
            let (key, event_type) = event.split_once(':').unwrap();
            let event = Event::builder("Order", key, event_type).build().unwrap();
            let mut tx = conn.transaction().unwrap();
            Outbox::new().publish(&mut tx, &event).unwrap();
            tx.commit().unwrap();
        }
    }

    fn execute(&self, sql: &str) {
        self.conn().execute_batch(sql).unwrap();
    }

    fn one<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        self.conn().query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn options(&self, progress: Progress) -> SqliteOptions {
        SqliteOptions { progress, ..SqliteOptions::new(Location::new(self.path())) }
    }

    /// A relay that starts.
    async fn start(&self, progress: Progress) -> SqliteSource {
        let source = self.options(progress).connect().await.unwrap();
        source.resume().await.unwrap();
        source
    }

    async fn admin(&self) -> SqliteAdmin {
        SqliteAdmin::connect(Location::new(self.path()), TableName::default()).await.unwrap()
    }
}

fn limit(events: usize) -> BatchLimit {
    BatchLimit { events, bytes: 10 << 20, wait: Duration::ZERO }
}

/// Everything that is there now.
async fn read(source: &SqliteSource) -> Vec<Record> {
    source.next_batch(limit(1000)).await.unwrap()
}

/// What is there now or comes within a few seconds.
async fn wait(source: &SqliteSource) -> Vec<Record> {
    let limit = BatchLimit { wait: Duration::from_secs(10), ..limit(1000) };
    source.next_batch(limit).await.unwrap()
}

/// The event types, which name the events of these tests.
fn types(records: &[Record]) -> Vec<&str> {
    records.iter().map(|record| record.event.as_ref().unwrap().event_type()).collect()
}

fn handle(records: &[Record], event_type: &str) -> Handle {
    let is_it = |record: &&Record| {
        record.event.as_ref().is_ok_and(|event| event.event_type() == event_type)
    };
    records.iter().find(is_it).unwrap().handle
}

async fn settle(source: &SqliteSource, verdicts: &[(Handle, Verdict)]) -> Settled {
    let settlements: Vec<Settlement> = verdicts
        .iter()
        .map(|(handle, verdict)| Settlement { handle: *handle, verdict: verdict.clone() })
        .collect();
    source.settle(&settlements).await.unwrap()
}

async fn settle_all(source: &SqliteSource, records: &[Record], verdict: &Verdict) -> Settled {
    let verdicts: Vec<_> = records.iter().map(|record| (record.handle, verdict.clone())).collect();
    settle(source, &verdicts).await
}

fn failure(attempts: u32) -> Failure {
    Failure { kind: FailureKind::Failed, message: "no luck".to_owned(), attempts }
}

fn parked(blocks: bool) -> Verdict {
    Verdict::Parked { failure: failure(3), blocks }
}

fn deferred(delay: Duration) -> Verdict {
    Verdict::Deferred { delay, failure: Some(failure(1)), blocks: true }
}

/// Reads and delivers until nothing is there any more; the event types in order.
async fn drain(source: &SqliteSource) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let records = read(source).await;
        if records.is_empty() {
            return all;
        }
        all.extend(types(&records).iter().map(|name| (*name).to_owned()));
        settle_all(source, &records, &Verdict::Delivered).await;
    }
}
