//! The outbox is read from the server's log: whatever happens to slot, publication, server or
//! relay, events are late, and nothing else.
//!
//! Every case first sees that the log is read, because the table would do as well.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

mod postgres_log {
    mod commits;
    mod contents;
    mod log_only;
    mod modes;
    mod outboxes;
    mod positions;
    mod relays;
    mod replicated;
    mod servers;
    mod slots;
    mod synced;
    mod tables;
}

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::pipeline::{Options, Window};
use postrider_relay::source::{
    BatchLimit, Record, Settlement, Source, SourceError, SourceErrorKind, Verdict,
};
use postrider_relay::sources::SourceSpec;
use postrider_testkit::chaos::{Bank, DEADLINE, Running, Target, Writers, cdc, until};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

/// Some writers that go on whatever happens to their connections.
fn stubborn() -> Writers {
    let pause_max = Duration::from_millis(50);
    Writers { count: 5, pause_max, stubborn: true, ..Writers::default() }
}

/// Options with a window that is small enough to be filled.
fn options() -> Options {
    let window = Window { events_max: 64, ..Window::default() };
    Options { window, ..Options::default() }
}

/// A bank, where its events arrive, and the pipeline between them.
struct Line {
    bank: Arc<Bank>,
    target: Target,
    spec: SourceSpec,
    relay: Running,
}

impl Line {
    /// Begins, and waits until the log is read.
    async fn start(bank: &Arc<Bank>) -> Self {
        Self::start_with(bank, cdc(bank.url())).await
    }

    async fn start_with(bank: &Arc<Bank>, spec: SourceSpec) -> Self {
        let (bank, target) = (Arc::clone(bank), Target::start().await);
        let relay = Running::start_lasting(&spec, &target, options()).await;
        until_streaming(&bank).await;
        Self { bank, target, spec, relay }
    }

    /// Stops in order, has something done, and starts again.
    async fn stopped(self, meanwhile: impl AsyncFnOnce(&Bank)) -> Self {
        let Self { bank, target, spec, relay } = self;
        relay.stop().await;
        meanwhile(&bank).await;
        let relay = Running::start_lasting(&spec, &target, options()).await;
        Self { bank, target, spec, relay }
    }

    /// The same after a crash.
    async fn killed(self, meanwhile: impl AsyncFnOnce(&Bank)) -> Self {
        let Self { bank, target, spec, relay } = self;
        relay.kill().await;
        meanwhile(&bank).await;
        let relay = again(&bank, &spec, &target).await;
        Self { bank, target, spec, relay }
    }

    /// Checks that nothing is wrong and nothing came twice, and stops.
    async fn finish(self) {
        self.finish_after(0).await;
    }

    /// The same after so many faults, each of which repeats no more than a window. In the end the
    /// log is read.
    async fn finish_after(self, faults: usize) {
        let Self { bank, target, relay, .. } = self;
        bank.check(&target, faults * options().window.events_max).await;
        until_streaming(&bank).await;
        bank.change_often(1, 10).await;
        bank.check(&target, faults * options().window.events_max).await;
        let is_settled = "SELECT count(*) FROM outbox_checkpoints
             WHERE lsn IS NOT NULL AND slot_snapshot IS NULL";
        assert_eq!(bank.number(is_settled).await, 1, "the log has brought nothing");
        relay.stop().await;
    }
}

/// Starts a relay after one that has died, which gives its lease back in the background.
async fn again(bank: &Bank, spec: &SourceSpec, target: &Target) -> Running {
    let held = "SELECT count(*) FROM outbox_leases WHERE expires_at > clock_timestamp()";
    until("the lease is given back", || async { bank.number(held).await == 0 }).await;
    Running::start_lasting(spec, target, options()).await
}

/// Of the database, all slots that a relay has made.
const SLOTS: &str = "SELECT count(*) FROM pg_replication_slots
     WHERE database = current_database() AND slot_name LIKE 'postrider_%'";

/// How many of them are read, and were read up to the end of the log.
const STREAMS: &str = "SELECT count(*) FROM pg_stat_replication AS r
     JOIN pg_replication_slots AS s ON r.pid = s.active_pid AND r.state = 'streaming'
     WHERE s.database = current_database() AND s.slot_name LIKE 'postrider_%'";

/// Waits until the log is read.
async fn until_streaming(bank: &Bank) {
    until("the log is read", || async { bank.number(STREAMS).await == 1 }).await;
}

/// Drops the slot. Whoever reads it is ended first, and may come back at once.
async fn drop_slot(bank: &Bank) {
    do_to_slot(bank, &format!("SELECT pg_drop_replication_slot('{}')", slot_name(bank).await))
        .await;
}

/// Runs a statement that needs a slot which nobody reads.
async fn do_to_slot(bank: &Bank, statement: &str) {
    let client = bank.connect().await;
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
         WHERE active_pid IS NOT NULL AND database = current_database()";
    until("it is done to the slot", || async {
        client.batch_execute(end).await.unwrap();
        client.batch_execute(statement).await.is_ok()
    })
    .await;
}

async fn slot_name(bank: &Bank) -> String {
    let query = "SELECT slot_name::text FROM pg_replication_slots
         WHERE database = current_database() AND slot_name LIKE 'postrider_%'";
    bank.text(query).await.expect("there is a slot")
}

/// Writes something that is none of the outbox' business, in bytes of the log.
async fn write_elsewhere(client: &Client, mebibytes: usize) {
    let write = "CREATE TABLE IF NOT EXISTS elsewhere (x text);
         ALTER TABLE elsewhere ALTER x SET STORAGE EXTERNAL;
         INSERT INTO elsewhere SELECT repeat('x', 1 << 17) FROM generate_series(1, 8)";
    for _ in 0..mebibytes {
        client.batch_execute(write).await.unwrap();
    }
}

/// Looks all the time how far the slot and the checkpoint are.
struct Watch {
    task: JoinHandle<()>,
    seen: Arc<std::sync::Mutex<Seen>>,
}

#[derive(Clone, Default)]
struct Seen {
    /// What was confirmed to the server, one after the other.
    confirmed: Vec<i64>,
    /// How often the slot was ahead of the checkpoint.
    ahead: Vec<(i64, i64)>,
    /// How often there was no slot, or no position.
    missing: usize,
}

impl Watch {
    async fn start(bank: &Bank) -> Self {
        // Of two positions, the one that may not be ahead is read first.
        let slot = "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots
             WHERE database = current_database() AND slot_name LIKE 'postrider_%'";
        let slot = format!("SELECT ({slot})::bigint");
        let checkpoint = "SELECT (lsn - '0/0'::pg_lsn)::bigint FROM outbox_checkpoints";
        let client = bank.connect().await;
        let seen = Arc::new(std::sync::Mutex::new(Seen::default()));
        let noting = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            loop {
                let confirmed: Option<i64> = client.query_one(&slot, &[]).await.unwrap().get(0);
                let lsn: Option<i64> = client.query_one(checkpoint, &[]).await.unwrap().get(0);
                {
                    let mut seen = noting.lock().unwrap();
                    match confirmed.zip(lsn) {
                        None => seen.missing += 1,
                        Some((confirmed, lsn)) if confirmed > lsn => {
                            seen.ahead.push((confirmed, lsn));
                        }
                        Some((confirmed, _)) if seen.confirmed.last() != Some(&confirmed) => {
                            seen.confirmed.push(confirmed);
                        }
                        Some(_) => {}
                    }
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
        Self { task, seen }
    }

    /// Checks that the slot was never ahead. Answers what was confirmed.
    async fn stop(self) -> Seen {
        assert!(!self.task.is_finished(), "it could look all the time");
        self.task.abort();
        drop(self.task.await);
        let seen = self.seen.lock().unwrap().clone();
        assert_eq!(seen.ahead, [], "the slot was ahead of the checkpoint");
        seen
    }
}

/// A source by hand.
struct Reader {
    source: Box<dyn Source>,
}

impl Reader {
    /// Connects, as soon as whoever was there before has given back the lease.
    async fn connect(spec: &SourceSpec) -> Result<Self, SourceError> {
        let started = Instant::now();
        loop {
            match spec.connect().await {
                Err(error) if error.kind == SourceErrorKind::Held => {
                    assert!(started.elapsed() < DEADLINE, "{}", error.details());
                    sleep(Duration::from_millis(10)).await;
                }
                connected => {
                    let source = connected?;
                    source.resume().await?;
                    return Ok(Self { source });
                }
            }
        }
    }

    /// Connects and gets to the log, with one event of account 0.
    async fn start(bank: &Bank, spec: &SourceSpec) -> Self {
        let reader = Self::connect(spec).await.unwrap();
        reader.get_to_log(bank).await;
        bank.change_often(0, 1).await;
        let first = reader.read(1).await;
        reader.deliver(&first).await;
        let is_settled = "SELECT count(*) FROM outbox_checkpoints
             WHERE lsn IS NOT NULL AND slot_snapshot IS NULL";
        assert_eq!(bank.number(is_settled).await, 1, "the log has brought it");
        reader
    }

    /// Reads an outbox in which there is nothing, until it is read from the log.
    async fn get_to_log(&self, bank: &Bank) {
        until("the log is read", || async {
            assert!(self.batch(20).await.is_empty(), "there is nothing in it");
            bank.number(STREAMS).await == 1
        })
        .await;
    }

    async fn batch(&self, wait_ms: u64) -> Vec<Record> {
        let wait = Duration::from_millis(wait_ms);
        let limit = BatchLimit { events: 1000, bytes: 100 << 20, wait };
        self.source.next_batch(limit).await.unwrap()
    }

    /// So many records.
    async fn read(&self, count: usize) -> Vec<Record> {
        let started = Instant::now();
        let mut records = Vec::new();
        while records.len() < count {
            assert!(started.elapsed() < DEADLINE, "{} of {count} have come", records.len());
            records.extend(self.batch(100).await);
        }
        assert_eq!(records.len(), count, "{:?}", events(&records));
        records
    }

    async fn settle(&self, records: &[Record], verdict: Verdict) -> Result<(), SourceError> {
        let settlement =
            |record: &Record| Settlement { handle: record.handle, verdict: verdict.clone() };
        let settlements: Vec<_> = records.iter().map(settlement).collect();
        self.source.settle(&settlements).await.map(drop)
    }

    async fn close(self) {
        self.source.close().await.unwrap();
    }

    async fn deliver(&self, records: &[Record]) {
        self.settle(records, Verdict::Delivered).await.unwrap();
    }
}

/// The numbers of events.
fn events(records: &[Record]) -> Vec<u64> {
    let number = |record: &Record| {
        let event = record.event.as_ref().unwrap();
        let payload: serde_json::Value = serde_json::from_slice(event.payload()).unwrap();
        payload["event"].as_u64().unwrap()
    };
    records.iter().map(number).collect()
}
