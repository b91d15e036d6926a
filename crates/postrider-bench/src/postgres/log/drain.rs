//! How fast the log is read by the relay, by PostgreSQL's own client, and by the server itself.
//!
//! A relay gets to the log with an empty outbox, and ends. A copy of its slot keeps that position:
//! whoever reads begins there, with a copy of its own, and the relay with the checkpoint of then.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use postrider_relay::sinks::memory::MemorySink;
use tokio_postgres::Client;

use super::PAYLOAD_BYTES;
use crate::Outcome;
use crate::memory::resident_kib_max;
use crate::postgres::backlog::{self, Published, Shape};
use crate::postgres::server::Server;
use crate::postgres::{ROUNDS, Sizes, relay};
use crate::report::{Measured, Report, Target, median, number};

/// The argument that tells this program that it is a relay.
pub(crate) const CHILD: &str = "log-child";

/// Events of a transaction, and how many times the peer's rate is to be reached.
const TOGETHER: [(u64, f64); 2] = [(1, 2.0), (100, 1.3)];
const RESIDENT_MIB_MAX: f64 = 100.0;
/// A million of these are more than a gigabyte.
const LARGE_PAYLOAD_BYTES: usize = 1_100;

const DATABASE: &str = "logged";
/// The slot that stays where the relay has got to the log.
const START: &str = "bench_start";
/// Its copy, which the peer reads.
const PEER: &str = "bench_peer";
/// Longest time until a slot that nobody reads any more is free.
const FREE_MAX: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How exactly it is known when the last event arrived.
const COUNT_EVERY: Duration = Duration::from_millis(5);

/// What is told to the plugin: the same as the relay does.
const OPTIONS: [(&str, &str); 3] =
    [("proto_version", "1"), ("binary", "true"), ("messages", "true")];
/// Option of the plugin: what is to be read.
const PUBLICATIONS: &str = "publication_names";

/// Events a second.
#[derive(Clone, Copy, Debug)]
struct Sample {
    relay: f64,
    resident_mib: f64,
    peer: f64,
    server: f64,
}

pub(super) async fn run(server: &Server, sizes: Sizes, report: &mut Report) -> Outcome<()> {
    for payload_bytes in PAYLOAD_BYTES {
        for (together, of_peer_min) in TOGETHER {
            let shape = Shape { rows: sizes.logged(), together, payload_bytes };
            report.title(&format!(
                "postgres, {} events are read from the log: {}-byte JSON payloads, {together} per \
                 transaction, median of {ROUNDS}",
                number(shape.rows as f64),
                number(payload_bytes as f64)
            ));
            let rounds = measure(server, shape).await?;
            tell(report, &rounds, of_peer_min);
        }
    }
    Ok(())
}

/// The events of one large transaction.
pub(super) async fn run_large(server: &Server, sizes: Sizes, report: &mut Report) -> Outcome<()> {
    let rows = sizes.logged();
    let shape = Shape { rows, together: rows, payload_bytes: LARGE_PAYLOAD_BYTES };
    report.title(&format!(
        "postgres, {} events of one transaction are read from the log: {} MB of JSON payloads",
        number(rows as f64),
        number((rows * LARGE_PAYLOAD_BYTES as u64 / 1_000_000) as f64)
    ));
    let log = Log::write(server, shape).await?;
    let (rate, resident) = log.relay().await?;
    log.end().await?;
    report.line("log tailing, to a counter", &format!("{} events/s", number(rate.round())), "");
    report.judge("resident at most", resident, "MiB", Target::Below(RESIDENT_MIB_MAX));
    Ok(())
}

fn tell(report: &mut Report, rounds: &[Sample], of_peer_min: f64) {
    let of = |value: fn(&Sample) -> f64| median(rounds.iter().map(value));
    let rate = |rate: f64| format!("{} events/s", number(rate.round()));
    report.line("pg_recvlogical, to /dev/null", &rate(of(|it| it.peer)), "");
    report.line("decoded by the server, for a query", &rate(of(|it| it.server)), "");
    report.line("log tailing, to a counter", &rate(of(|it| it.relay)), "");
    // Within each round, so that a busy moment of the machine hits both.
    let of_server = format!("{:.2} times", of(|it| it.relay / it.server));
    report.line("log tailing, of the server's rate", &of_server, "");
    let of_peer = of(|it| it.relay / it.peer);
    let min = Target::AtLeast(of_peer_min);
    report.judge("log tailing, of pg_recvlogical's rate", of_peer, "times", min);
    let resident = rounds.iter().map(|it| it.resident_mib).fold(0.0, f64::max);
    report.judge("resident at most", resident, "MiB", Target::Below(RESIDENT_MIB_MAX));
}

/// Writes events and reads them from the log, several times.
async fn measure(server: &Server, shape: Shape) -> Outcome<Vec<Sample>> {
    let log = Log::write(server, shape).await?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let (relay, resident_mib) = log.relay().await?;
        let (peer, server) = (log.peer().await?, log.server().await?);
        rounds.push(Sample { relay, resident_mib, peer, server });
    }
    log.end().await?;
    Ok(rounds)
}

/// A log with events, and where they are.
struct Log<'s> {
    server: &'s Server,
    client: Client,
    shape: Shape,
    /// The relay's slot.
    slot: String,
    publication: String,
    /// Where the events end.
    end: String,
}

impl<'s> Log<'s> {
    async fn write(server: &'s Server, shape: Shape) -> Outcome<Self> {
        let client = server.create(DATABASE).await?;
        // It must not disturb.
        client.batch_execute("ALTER TABLE outbox SET (autovacuum_enabled = off)").await?;
        relay::begin_log(&client, &server.url(DATABASE)).await?;
        let one = async |sql: &str| {
            let found = client.query_one(sql, &[]).await?;
            Outcome::Ok(found.try_get::<_, String>(0)?)
        };
        let slot = "SELECT slot_name::text FROM pg_replication_slots
             WHERE database = current_database()";
        let slot = one(slot).await?;
        let publication = one("SELECT pubname::text FROM pg_publication").await?;
        client
            .batch_execute(&format!(
                "SELECT pg_copy_logical_replication_slot('{slot}', '{START}');
                 CREATE TABLE bench_checkpoints AS SELECT * FROM outbox_checkpoints"
            ))
            .await?;
        backlog::fill_as(&client, shape, Published::No).await?;
        let end = one("SELECT pg_current_wal_insert_lsn()::text").await?;
        // Nothing of it is written to the disk while it is read.
        client.batch_execute("CHECKPOINT").await?;
        Ok(Self { server, client, shape, slot, publication, end })
    }

    /// The relay goes on where it was before there were events. Its rate and its memory in MiB.
    async fn relay(&self) -> Outcome<(f64, f64)> {
        self.restart(&self.slot).await?;
        self.client
            .batch_execute(
                "DELETE FROM outbox_checkpoints;
                 INSERT INTO outbox_checkpoints SELECT * FROM bench_checkpoints",
            )
            .await?;
        let mut relay = Command::new(std::env::current_exe()?);
        relay.args([CHILD, &self.server.url(DATABASE), &self.shape.rows.to_string()]);
        let said = run_program(relay).await?;
        let numbers = said.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let &[ns, resident_kib] = numbers.as_slice() else {
            return Err(format!("the relay printed {said:?}").into());
        };
        Ok((self.rate(Duration::from_nanos(ns)), resident_kib as f64 / 1024.0))
    }

    async fn peer(&self) -> Outcome<f64> {
        self.restart(PEER).await?;
        let mut peer = self.server.pg_recvlogical(DATABASE);
        peer.args(["--start", "--no-loop", "--file=/dev/null"]);
        peer.args([format!("--slot={PEER}"), format!("--endpos={}", self.end)]);
        for (name, value) in OPTIONS.into_iter().chain([(PUBLICATIONS, &*self.publication)]) {
            peer.arg(format!("--option={name}={value}"));
        }
        let started = Instant::now();
        run_program(peer).await?;
        Ok(self.rate(started.elapsed()))
    }

    async fn server(&self) -> Outcome<f64> {
        let options = OPTIONS.into_iter().chain([(PUBLICATIONS, &*self.publication)]);
        let options = options.map(|(name, value)| format!("'{name}', '{value}'"));
        let sql = format!(
            "SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{START}', '{}', NULL, {})",
            self.end,
            options.collect::<Vec<_>>().join(", ")
        );
        // The rows are gathered before they are counted: in memory.
        self.client.batch_execute("SET work_mem = '4GB'").await?;
        let started = Instant::now();
        let messages: i64 = self.client.query_one(&sql, &[]).await?.get(0);
        let time = started.elapsed();
        if u64::try_from(messages)? < self.shape.rows {
            return Err(format!("{messages} messages of the log were decoded").into());
        }
        Ok(self.rate(time))
    }

    async fn end(self) -> Outcome<()> {
        self.free().await?;
        self.server.remove(DATABASE).await
    }

    fn rate(&self, time: Duration) -> f64 {
        Measured { events: self.shape.rows, time }.rate()
    }

    /// Makes a slot anew that is where the relay has got to the log.
    async fn restart(&self, slot: &str) -> Outcome<()> {
        self.free().await?;
        let sql = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
               WHERE slot_name = '{slot}';
             SELECT pg_copy_logical_replication_slot('{START}', '{slot}')"
        );
        Ok(self.client.batch_execute(&sql).await?)
    }

    /// Waits until nobody reads a slot.
    async fn free(&self) -> Outcome<()> {
        let sql = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE active)";
        let deadline = Instant::now() + FREE_MAX;
        while self.client.query_one(sql, &[]).await?.get(0) {
            if Instant::now() > deadline {
                return Err("a slot is still being read".into());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// Runs a program to its end. What it printed.
async fn run_program(mut program: Command) -> Outcome<String> {
    program.stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || program.output()).await??;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(format!("the measurement failed: {}", stderr.trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Drains the log. Prints the nanoseconds until the sink had all events, and the most KiB that were
/// resident.
pub(crate) fn run_child(url: &str, events: &str) -> Outcome<()> {
    let events: u64 = events.parse()?;
    let started = Instant::now();
    // As the binary has it.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let sink = MemorySink::keeping(0);
    let counted = sink.clone();
    let (delivered, time) = runtime.block_on(async {
        let arriving = async {
            while counted.count() < events {
                tokio::time::sleep(COUNT_EVERY).await;
            }
            started.elapsed()
        };
        let draining = relay::drain_log(url, Box::new(sink));
        tokio::pin!(arriving, draining);
        // If some are missing they never arrive.
        tokio::select! {
            time = &mut arriving => Outcome::Ok((draining.await?, time)),
            delivered = &mut draining => Ok((delivered?, started.elapsed())),
        }
    })?;
    if delivered != events {
        return Err(format!("{delivered} of {events} events were delivered").into());
    }
    println!("{} {}", time.as_nanos(), resident_kib_max());
    Ok(())
}
