//! How late an event is at the sink, counted from its commit, and what a relay costs that has
//! nothing to do.
//!
//! The load is open: each event has its time, whether those before it were quick or not. So an
//! event that had to wait for its writer is late by that, too; that lateness is told besides, as
//! counted from the time at which the event was to be written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use postrider_relay::hint::Hint;
use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::{Message, Sink, SinkCapabilities, SinkError};
use postrider_relay::sinks::memory::MemorySink;
use postrider_relay::sources::{Progress, SourceSpec};
use tokio_postgres::NoTls;
use tokio_postgres::types::Type;

use super::backlog::{self, KEYS};
use super::server::Server;
use super::{ROUNDS, Sizes, idle};
use crate::Outcome;
use crate::report::{Report, Section, Target, median};

const P99_MS_MAX: f64 = 25.0;
/// Sessions that write.
const WRITERS: usize = 16;
/// Events of this time at the start are not counted: connections are made and plans are cached.
const WARM_UP: Duration = Duration::from_secs(1);
/// How long the last events may take.
const ARRIVE_MAX: Duration = Duration::from_secs(30);
/// Has not happened.
const NEVER: u64 = 0;
const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// How events are written and relayed.
#[derive(Clone, Copy, Debug)]
struct Load {
    progress: Progress,
    hinted: bool,
    events_per_second: u64,
    time: Duration,
}

/// Milliseconds, in the order of `PERCENTILES`.
#[derive(Clone, Copy, Debug)]
struct Latency {
    since_commit: [f64; 3],
    since_due: [f64; 3],
}

pub(super) async fn run(server: &Server, sizes: Sizes) -> Outcome<Report> {
    let mut report = Report::new(Section::PostgresLatency);
    let steady = |progress, hinted| Load {
        progress,
        hinted,
        events_per_second: 1_000,
        time: sizes.seconds(20),
    };
    report.title(&format!(
        "postgres, from commit to sink at 1 000 events/s, one transaction each, {WRITERS} writers, \
         median of {ROUNDS}"
    ));
    let loads = [
        steady(Progress::Mark, false),
        steady(Progress::Mark, true),
        steady(Progress::Cursor, false),
        steady(Progress::Cursor, true),
    ];
    measure_all(server, &mut report, &loads, Some(P99_MS_MAX)).await?;
    report.title(&format!(
        "postgres, from commit to sink at 10 events/s, when the relay polls less, median of {ROUNDS}"
    ));
    let calm = loads.map(|load| Load { events_per_second: 10, time: sizes.seconds(30), ..load });
    measure_all(server, &mut report, &calm, None).await?;
    idle::run(server, sizes, &mut report).await?;
    Ok(report)
}

async fn measure_all(
    server: &Server,
    report: &mut Report,
    loads: &[Load],
    p99_ms_max: Option<f64>,
) -> Outcome<()> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut latencies = Vec::new();
        for load in loads {
            latencies.push(measure(server, *load).await?);
        }
        rounds.push(latencies);
    }
    for (index, load) in loads.iter().enumerate() {
        let of = |value: fn(Latency) -> [f64; 3]| {
            let at = |place: usize| median(rounds.iter().map(|round| value(round[index])[place]));
            [at(0), at(1), at(2)]
        };
        let (since_commit, since_due) = (of(|it| it.since_commit), of(|it| it.since_due));
        let hint = if load.hinted { "with hint" } else { "no hint" };
        let what = format!("{}, {hint}", load.progress);
        let more = format!("since it was due: {} ms", slashed(since_due));
        report.line(
            &format!("{what}: {}", names()),
            &format!("{} ms", slashed(since_commit)),
            &more,
        );
        if let Some(max) = p99_ms_max {
            report.judge(&format!("{what}: p99"), since_commit[1], "ms", Target::Below(max));
        }
    }
    Ok(())
}

fn names() -> String {
    PERCENTILES.map(|(name, _)| name).join(" / ")
}

fn slashed(values: [f64; 3]) -> String {
    values.map(|value| format!("{value:.1}")).join(" / ")
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

    async fn check(&self) -> Result<(), SinkError> {
        Ok(())
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
    drop(server.create(DATABASE).await?);
    let url = server.url(DATABASE);
    let hint = Hint::new();
    let spec = SourceSpec { progress: load.progress, hint: hint.clone(), ..SourceSpec::new(&url) };
    let per_second = load.events_per_second;
    let events = usize::try_from(per_second * load.time.as_secs())?;
    let started = Instant::now() + WARM_UP;
    let (committed, arrived) = (Times::new(started, events), Times::new(started, events));
    let sink = Box::new(Watch(arrived.clone()));
    let pipeline = Pipeline::new("bench", spec.connect().await?, sink, Options::default());
    let (stop, shutdown) = shutdown();
    let relay = tokio::spawn(pipeline.run(shutdown));

    let given = load.hinted.then_some(hint);
    let interval = Duration::from_secs(1) / u32::try_from(per_second)?;
    let writing = Writing { url, interval, committed: committed.clone(), hint: given };
    tokio::task::spawn_blocking(move || writing.run()).await??;
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
    let due = |event: usize| u64::try_from((interval * event as u32).as_micros()).unwrap_or(0);
    Ok(Latency {
        since_commit: percentiles(counted.clone().map(|event| {
            // The relay may see a commit before its writer is told.
            arrived.get(event).saturating_sub(committed.get(event))
        })),
        since_due: percentiles(counted.map(|event| arrived.get(event).saturating_sub(due(event)))),
    })
}

/// Of microseconds, in milliseconds.
fn percentiles(micros: impl Iterator<Item = u64>) -> [f64; 3] {
    let mut micros: Vec<u64> = micros.collect();
    micros.sort_unstable();
    PERCENTILES.map(|(_, part)| {
        let place = (micros.len() as f64 * part).ceil() as usize;
        micros.get(place.saturating_sub(1)).map_or(f64::NAN, |micros| *micros as f64 / 1000.0)
    })
}

/// Writes events when they are due, on a thread of its own: the application is another process.
struct Writing {
    url: String,
    interval: Duration,
    committed: Arc<Times>,
    hint: Option<Hint>,
}

impl Writing {
    fn run(self) -> Outcome<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let writers = (0..WRITERS).map(|writer| self.write(writer));
            futures_util::future::try_join_all(writers).await?;
            Ok(())
        })
    }

    /// Writes every event whose turn it is among the writers.
    async fn write(&self, writer: usize) -> Outcome<()> {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        tokio::spawn(connection);
        let sql = "SELECT outbox_publish('Order', $1, 'OrderPlaced', $2)";
        let publish = client.prepare_typed(sql, &[Type::TEXT, Type::BYTEA]).await?;
        let started = tokio::time::Instant::from_std(self.committed.started);
        for event in (writer..self.committed.at.len()).step_by(WRITERS) {
            let key = (event as u64 % KEYS).to_string();
            let payload = backlog::payload(event).into_bytes();
            tokio::time::sleep_until(started + self.interval * u32::try_from(event)?).await;
            client.execute(&publish, &[&key, &payload]).await?;
            self.committed.note(event);
            if let Some(hint) = &self.hint {
                hint.give();
            }
        }
        Ok(())
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
