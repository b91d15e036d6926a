//! An open load, and how late its events are at the sink, counted from their commit.
//!
//! The load is open: each transaction has its time, whether those before it were quick or not. So
//! an event that had to wait for its writer is late by that, too; that lateness is told besides, as
//! counted from the time at which the event was to be written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use postrider_relay::amounts::percentile;
use postrider_relay::hint::Hint;
use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::{Message, Sink, SinkCapabilities, SinkError};
use postrider_relay::sinks::memory::MemorySink;
use postrider_relay::sources::{Mode, Progress, SourceSpec};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

use super::backlog::{self, KEYS};
use super::server::Server;
use super::{ROUNDS, cpu, relay};
use crate::Outcome;
use crate::report::{Report, Target, median};

/// Sessions that write.
pub(super) const WRITERS: usize = 16;
/// Events of this time at the start are not counted: connections are made and plans are cached.
const WARM_UP: Duration = Duration::from_secs(1);
/// Processors are watched until so long before the last event is due.
const WRITERS_END: Duration = Duration::from_millis(200);
/// How long the last events may take.
const ARRIVE_MAX: Duration = Duration::from_secs(30);
/// Has not happened.
const NEVER: u64 = 0;
const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// How events are written and relayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) mode: Mode,
    pub(super) progress: Progress,
    pub(super) hinted: bool,
    pub(super) events_per_second: u64,
    /// Events of one transaction. A second has a whole number of them.
    pub(super) together: u64,
    pub(super) payload_bytes: usize,
    pub(super) time: Duration,
}

/// What was found about a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    /// Milliseconds, in the order of `PERCENTILES`.
    since_commit: [f64; 3],
    since_due: [f64; 3],
    /// Processor time of the server for the relay's sessions, in seconds per minute.
    pub(super) relay_cpu: f64,
    /// The same of the whole server.
    pub(super) server_cpu: f64,
}

impl Latency {
    fn median(rounds: &[Self]) -> Self {
        let of = |value: &dyn Fn(&Self) -> f64| median(rounds.iter().map(value));
        let at = |place: usize| of(&move |it| it.since_commit[place]);
        let due_at = |place: usize| of(&move |it| it.since_due[place]);
        Self {
            since_commit: [at(0), at(1), at(2)],
            since_due: [due_at(0), due_at(1), due_at(2)],
            relay_cpu: of(&|it| it.relay_cpu),
            server_cpu: of(&|it| it.server_cpu),
        }
    }

    /// Tells the percentiles; judges the 99th if there is a target.
    pub(super) fn tell(&self, report: &mut Report, what: &str, p99_ms_max: Option<f64>) {
        let names = PERCENTILES.map(|(name, _)| name).join(" / ");
        let more = format!("since it was due: {} ms", slashed(self.since_due));
        let figure = format!("{} ms", slashed(self.since_commit));
        report.line(&format!("{what}: {names}"), &figure, &more);
        if let Some(max) = p99_ms_max {
            report.judge(&format!("{what}: p99"), self.since_commit[1], "ms", Target::Below(max));
        }
    }
}

fn slashed(values: [f64; 3]) -> String {
    values.map(|value| format!("{value:.1}")).join(" / ")
}

/// Measures each load in turn, several times; answers the median of each.
pub(super) async fn measure_all(server: &Server, loads: &[Load]) -> Outcome<Vec<Latency>> {
    let mut rounds = vec![Vec::new(); loads.len()];
    for _ in 0..ROUNDS {
        for (load, found) in loads.iter().zip(&mut rounds) {
            found.push(measure(server, *load).await?);
        }
    }
    Ok(rounds.iter().map(|rounds| Latency::median(rounds)).collect())
}

/// When something happened to each event, in microseconds since the start.
#[derive(Debug)]
struct Times {
    started: Instant,
    at: Vec<AtomicU64>,
}

impl Times {
    fn new(started: Instant, events: usize) -> Arc<Self> {
        let at = std::iter::repeat_with(|| AtomicU64::new(NEVER)).take(events).collect();
        Arc::new(Self { started, at })
    }

    /// It happened now. Of several times the first counts.
    fn note(&self, event: usize) {
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        if let Some(at) = self.at.get(event) {
            let _ = at.compare_exchange(NEVER, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn get(&self, event: usize) -> u64 {
        self.at[event].load(Ordering::Relaxed)
    }

    fn are_all_noted(&self) -> bool {
        self.at.iter().all(|at| at.load(Ordering::Relaxed) != NEVER)
    }
}

/// Notes when an event arrives.
struct Watch(Arc<Times>);

#[async_trait]
impl Sink for Watch {
    fn capabilities(&self) -> SinkCapabilities {
        MemorySink::new().capabilities()
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        Ok(Vec::new())
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        for message in messages {
            if let Some(number) = backlog::number(&message.body) {
                self.0.note(number);
            }
        }
        vec![Ok(()); messages.len()]
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

async fn measure(server: &Server, load: Load) -> Outcome<Latency> {
    const DATABASE: &str = "latency";
    let client = server.create(DATABASE).await?;
    let url = server.url(DATABASE);
    if load.mode == Mode::Cdc {
        relay::begin_log(&client, &url).await?;
    }
    let hint = Hint::new();
    let Load { mode, progress, .. } = load;
    let spec = SourceSpec { mode, progress, hint: hint.clone(), ..SourceSpec::new(&url) };
    let per_second = load.events_per_second;
    let events = usize::try_from(per_second * load.time.as_secs())?;
    let started = Instant::now() + WARM_UP;
    let (committed, arrived) = (Times::new(started, events), Times::new(started, events));
    let sink = Box::new(Watch(arrived.clone()));
    let pipeline = Pipeline::new("bench", spec.connect().await?, sink, Options::default());
    let (stop, shutdown) = shutdown();
    let relay = tokio::spawn(pipeline.run(shutdown));

    let interval = Duration::from_secs(load.together) / u32::try_from(per_second)?;
    let writing = Writing {
        url,
        interval,
        together: usize::try_from(load.together)?,
        payload_bytes: load.payload_bytes,
        committed: committed.clone(),
        hint: load.hinted.then_some(hint),
    };
    let writing = tokio::task::spawn_blocking(move || writing.run());
    let (relay_cpu, server_cpu) = watch(&client, started, load.time).await?;
    writing.await??;
    let deadline = Instant::now() + ARRIVE_MAX;
    while !arrived.are_all_noted() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.stop();
    relay.await??;
    server.remove(DATABASE).await?;
    if !arrived.are_all_noted() {
        return Err("not all events have arrived".into());
    }
    let counted = usize::try_from(per_second * WARM_UP.as_secs())?..events;
    let due = |event: usize| {
        let transaction = (event as u64 / load.together) as u32;
        u64::try_from((interval * transaction).as_micros()).unwrap_or(0)
    };
    Ok(Latency {
        since_commit: percentiles(counted.clone().map(|event| {
            // The relay may see a commit before its writer is told.
            arrived.get(event).saturating_sub(committed.get(event))
        })),
        since_due: percentiles(counted.map(|event| arrived.get(event).saturating_sub(due(event)))),
        relay_cpu,
        server_cpu,
    })
}

/// What the relay's sessions take of the server's processors while events are written, and what
/// the whole server takes, in seconds per minute.
async fn watch(client: &Client, started: Instant, time: Duration) -> Outcome<(f64, f64)> {
    tokio::time::sleep_until((started + WARM_UP).into()).await;
    let (relay, server) = (cpu::sessions(client).await?, cpu::server(client).await?);
    let counts = || Outcome::Ok((cpu::seconds_of(&relay)?, cpu::seconds_of(&server)?));
    let (before, from) = (counts()?, Instant::now());
    // The writers' sessions end when they are done.
    tokio::time::sleep_until((started + time - WRITERS_END).into()).await;
    let (after, time) = (counts()?, from.elapsed());
    let per_minute = |seconds: f64| seconds / time.as_secs_f64() * 60.0;
    Ok((per_minute(after.0 - before.0), per_minute(after.1 - before.1)))
}

/// Of microseconds, in milliseconds.
fn percentiles(micros: impl Iterator<Item = u64>) -> [f64; 3] {
    let mut micros: Vec<u64> = micros.collect();
    micros.sort_unstable();
    PERCENTILES.map(|(_, part)| {
        percentile(&micros, part).map_or(f64::NAN, |micros| micros as f64 / 1000.0)
    })
}

/// Writes events when they are due, on a thread of its own: the application is another process.
struct Writing {
    url: String,
    /// From transaction to transaction.
    interval: Duration,
    /// Events of a transaction.
    together: usize,
    payload_bytes: usize,
    committed: Arc<Times>,
    hint: Option<Hint>,
}

impl Writing {
    fn run(self) -> Outcome<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let writers = (0..WRITERS).map(|writer| self.write(writer));
            // No session ends before all are done: its processor time is gone with it.
            futures_util::future::try_join_all(writers).await?;
            Ok(())
        })
    }

    /// Writes every transaction whose turn it is among the writers.
    async fn write(&self, writer: usize) -> Outcome<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'Order', key, 'OrderPlaced', payload FROM unnest($1, $2) AS e (key, payload)";
        let publish = client.prepare_typed(sql, &[Type::TEXT_ARRAY, Type::BYTEA_ARRAY]).await?;
        let started = tokio::time::Instant::from_std(self.committed.started);
        let transactions = self.committed.at.len() / self.together;
        for transaction in (writer..transactions).step_by(WRITERS) {
            let events = transaction * self.together..(transaction + 1) * self.together;
            let keys: Vec<String> =
                events.clone().map(|event| (event as u64 % KEYS).to_string()).collect();
            let payload = |event| backlog::payload(event, self.payload_bytes).into_bytes();
            let payloads: Vec<Vec<u8>> = events.clone().map(payload).collect();
            tokio::time::sleep_until(started + self.interval * u32::try_from(transaction)?).await;
            client.execute(&publish, &[&keys, &payloads]).await?;
            events.for_each(|event| self.committed.note(event));
            if let Some(hint) = &self.hint {
                hint.give();
            }
        }
        Ok(client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_milliseconds() {
        assert_eq!(percentiles((1..=1000).map(|number| number * 1000)), [500.0, 990.0, 999.0]);
    }
}
