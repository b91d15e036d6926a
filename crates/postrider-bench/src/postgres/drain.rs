//! How fast a backlog is drained, and what that costs the server.

use std::time::{Duration, Instant};

use postrider_relay::sink::Sink;
use postrider_relay::sinks::{file, memory::MemorySink};
use postrider_relay::sources::Progress;
use tempfile::TempDir;
use tokio_postgres::Client;

use super::backlog::{self, KEYS, PAYLOAD_BYTES};
use super::server::Server;
use super::{ROUNDS, Sizes, copy, relay, textbook};
use crate::Outcome;
use crate::report::{Measured, Report, Section, Target, median, number};

const CURSOR_OF_TEXTBOOK_MIN: f64 = 20.0;
const MARK_OF_TEXTBOOK_MIN: f64 = 8.0;
const CURSOR_OF_COPY_MIN: f64 = 0.5;

const TEMPLATE: &str = "backlog";
const DRAINED: &str = "drained";

/// Who drains it, and to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Textbook,
    Counter(Progress),
    File(Progress),
    /// So many relays side by side, without order, to a counter.
    Relays(usize),
    /// The limit.
    Copy,
}

impl Subject {
    const ALL: [Self; 11] = [
        Self::Textbook,
        Self::Counter(Progress::Mark),
        Self::Counter(Progress::Delete),
        Self::Counter(Progress::Cursor),
        Self::File(Progress::Mark),
        Self::File(Progress::Delete),
        Self::File(Progress::Cursor),
        Self::Relays(1),
        Self::Relays(2),
        Self::Relays(3),
        Self::Copy,
    ];

    fn label(self) -> String {
        match self {
            Self::Textbook => "the textbook's relay, to a counter".to_owned(),
            Self::Counter(progress) => format!("{progress}, to a counter"),
            Self::File(progress) => format!("{progress}, to a file, every line synced"),
            Self::Relays(1) => "mark, without order, to a counter".to_owned(),
            Self::Relays(relays) => format!("the same with {relays} relays"),
            Self::Copy => "COPY to a client that drops it".to_owned(),
        }
    }
}

/// Rate and cost of one drain.
#[derive(Clone, Copy, Debug)]
struct Sample {
    rate: f64,
    /// Bytes of write-ahead log per event.
    wal: f64,
    /// Dead rows per event, of all tables.
    dead: f64,
}

pub(super) async fn run(server: &Server, sizes: Sizes) -> Outcome<Report> {
    let mut report = Report::new(Section::PostgresDrain);
    report.title(&format!(
        "postgres, a backlog of {} events is drained: {PAYLOAD_BYTES}-byte JSON payloads, {} keys, \
         median of {ROUNDS}",
        number(sizes.backlog as f64),
        number(KEYS as f64)
    ));
    backlog::template(server, TEMPLATE, sizes.backlog).await?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut samples = Vec::new();
        for subject in Subject::ALL {
            samples.push(measure(server, sizes, subject).await?);
        }
        rounds.push(samples);
    }
    server.remove(TEMPLATE).await?;
    tell(&mut report, &rounds);
    Ok(report)
}

/// `rounds` have a sample of each subject, in order.
fn tell(report: &mut Report, rounds: &[Vec<Sample>]) {
    for (index, subject) in Subject::ALL.into_iter().enumerate() {
        let of = |value: fn(Sample) -> f64| median(rounds.iter().map(|round| value(round[index])));
        let rate = of(|sample| sample.rate).round();
        let (wal, dead) = (of(|sample| sample.wal).round(), of(|sample| sample.dead));
        let cost = format!("{} bytes of WAL, {dead:.2} dead rows per event", number(wal));
        report.line(&subject.label(), &format!("{} events/s", number(rate)), &cost);
    }
    // Within each round, so that a busy moment of the machine hits both.
    let times = |one: Subject, other: Subject| {
        let index = |subject| Subject::ALL.iter().position(|it| *it == subject);
        let rate = |round: &[Sample], subject| index(subject).map_or(f64::NAN, |i| round[i].rate);
        median(rounds.iter().map(|round| rate(round, one) / rate(round, other)))
    };
    let (cursor, mark) = (Subject::Counter(Progress::Cursor), Subject::Counter(Progress::Mark));
    for (what, one, other, min) in [
        ("cursor, of the textbook's rate", cursor, Subject::Textbook, CURSOR_OF_TEXTBOOK_MIN),
        ("mark, of the textbook's rate", mark, Subject::Textbook, MARK_OF_TEXTBOOK_MIN),
        ("cursor, of COPY's rate", cursor, Subject::Copy, CURSOR_OF_COPY_MIN),
    ] {
        report.judge(what, times(one, other), "times", Target::AtLeast(min));
    }
}

/// Drains a copy of the backlog.
async fn measure(server: &Server, sizes: Sizes, subject: Subject) -> Outcome<Sample> {
    let client = backlog::copy(server, TEMPLATE, DRAINED).await?;
    let before = wal(&client).await?;
    let measured = drain(&client, server.url(DRAINED), sizes, subject).await;
    let measured = measured.map_err(|error| format!("{}: {error}", subject.label()))?;
    let wal = wal(&client).await? - before;
    let events = measured.events as f64;
    let sample =
        Sample { rate: measured.rate(), wal: wal / events, dead: dead(&client).await? / events };
    server.remove(DRAINED).await?;
    Ok(sample)
}

async fn drain(client: &Client, url: String, sizes: Sizes, subject: Subject) -> Outcome<Measured> {
    let folder = crate::beside_program()?;
    let expected = match subject {
        Subject::Textbook => sizes.textbook(),
        _ => sizes.backlog,
    };
    let started = Instant::now();
    let delivered = match subject {
        Subject::Textbook => textbook::run(url, expected).await?,
        Subject::Copy => copy::read(client).await?,
        Subject::Counter(progress) => relay::drain(url, progress, counter()).await?,
        Subject::File(progress) => relay::drain(url, progress, file(&folder).await?).await?,
        Subject::Relays(relays) => {
            let sinks = std::iter::repeat_with(counter).take(relays).collect();
            relay::drain_side_by_side(&url, sinks).await?
        }
    };
    let measured = Measured { events: delivered, time: started.elapsed() };
    if delivered == expected {
        return Ok(measured);
    }
    Err(format!("{delivered} of {expected} events were delivered").into())
}

fn counter() -> Box<dyn Sink> {
    Box::new(MemorySink::keeping(0))
}

async fn file(folder: &TempDir) -> Outcome<Box<dyn Sink>> {
    let path = folder.path().join("events.jsonl");
    Ok(Box::new(file::Options { path }.connect().await?))
}

/// Bytes of write-ahead log so far.
async fn wal(client: &Client) -> Outcome<f64> {
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Dead rows of all tables.
async fn dead(client: &Client) -> Outcome<f64> {
    // The sessions that have drained tell it when they end, which they do about now.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let sql = "SELECT coalesce(sum(n_dead_tup), 0)::float8 FROM pg_stat_user_tables";
    Ok(client.query_one(sql, &[]).await?.get(0))
}
