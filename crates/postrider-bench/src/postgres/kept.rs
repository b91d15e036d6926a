//! Whether published rows that stay in the table slow the relay down, or whoever looks at it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use postrider_relay::admin::COUNT_MAX;
use postrider_relay::config::TableName;
use postrider_relay::sinks::memory::MemorySink;
use postrider_relay::sources::{self, Progress};
use tokio_postgres::Client;

use super::backlog::{self, Published};
use super::server::Server;
use super::{ROUNDS, Sizes, relay};
use crate::Outcome;
use crate::report::{Measured, Report, Section, Target, median, number};

/// Of the rate with an empty table.
const RATE_MIN: f64 = 0.9;
/// The time of a look at the outbox, as `postrider status` has it.
const LOOK_MS_MAX: f64 = 20.0;
/// How many looks are measured.
const LOOKS: usize = 20;
const TEMPLATE: &str = "backlog";
const EMPTY: &str = "without_kept";
const FULL: &str = "with_kept";

/// Everything that is visible now is behind the checkpoint, as if it had been relayed.
const PASS_OVER: &str = "UPDATE outbox_checkpoints SET base = pg_current_snapshot(),
     tick = pg_current_snapshot(), seen = pg_current_snapshot(), position = 0, beyond = '{}'";

pub(super) async fn run(server: &Server, sizes: Sizes) -> Outcome<Report> {
    let mut report = Report::new(Section::PostgresKept);
    report.title(&format!(
        "postgres, a backlog of {} events beside {} published rows that stay, median of {ROUNDS}",
        number(sizes.backlog as f64),
        number(sizes.kept() as f64)
    ));
    backlog::template(server, TEMPLATE, sizes.backlog).await?;
    for progress in [Progress::Mark, Progress::Cursor] {
        measure(server, sizes, progress, &mut report).await?;
    }
    server.remove(TEMPLATE).await?;
    Ok(report)
}

async fn measure(
    server: &Server,
    sizes: Sizes,
    progress: Progress,
    report: &mut Report,
) -> Outcome<()> {
    let (full, loading) = load(server, sizes, progress).await?;
    looks(server, &full, sizes, progress, report).await?;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        drop(backlog::copy(server, TEMPLATE, EMPTY).await?);
        let without = drain(server, EMPTY, sizes, progress).await?;
        server.remove(EMPTY).await?;
        backlog::fill(&full, sizes.backlog, Published::No).await?;
        full.batch_execute("CHECKPOINT").await?;
        let with = drain(server, FULL, sizes, progress).await?;
        // Sooner or later autovacuum does; not while it is measured.
        full.batch_execute("VACUUM outbox").await?;
        rounds.push((without, with));
    }
    drop(full);
    server.remove(FULL).await?;
    let of = |value: fn(&(f64, f64)) -> f64| median(rounds.iter().map(value));
    let rate = |rate: f64| format!("{} events/s", number(rate.round()));
    report.line(&format!("{progress}, nothing else in the table"), &rate(of(|round| round.0)), "");
    let loaded = format!("loaded in {:.0} s", loading.as_secs_f64());
    report.line(
        &format!("{progress}, with the rows that stay"),
        &rate(of(|round| round.1)),
        &loaded,
    );
    let what = format!("{progress}, of the rate without them");
    report.judge(&what, of(|round| round.1 / round.0), "times", Target::AtLeast(RATE_MIN));
    Ok(())
}

/// How long it takes to look how the outbox stands: empty, with the rows that stay, and with a
/// backlog beside them.
async fn looks(
    server: &Server,
    full: &Client,
    sizes: Sizes,
    progress: Progress,
    report: &mut Report,
) -> Outcome<()> {
    drop(server.create(EMPTY).await?);
    relay::drain(server.url(EMPTY), progress, Box::new(MemorySink::keeping(0))).await?;
    let empty = look_ms(server, EMPTY).await?;
    server.remove(EMPTY).await?;
    let kept = look_ms(server, FULL).await?;
    backlog::fill(full, sizes.backlog, Published::No).await?;
    let behind = look_ms(server, FULL).await?;
    drain(server, FULL, sizes, progress).await?;
    full.batch_execute("VACUUM outbox").await?;
    let what = |which: &str| format!("{progress}, status, {which}");
    report.line(&what("nothing in the table"), &format!("{} ms", number(empty)), "");
    let target = Target::AtMost(LOOK_MS_MAX);
    report.judge(&what("with the rows that stay"), kept, "ms", target);
    let counted = format!("{} are counted", number(sizes.backlog.min(COUNT_MAX) as f64));
    report.line(&what("and the backlog"), &format!("{} ms", number(behind)), &counted);
    Ok(())
}

/// The median of several looks on one connection, in milliseconds.
async fn look_ms(server: &Server, database: &str) -> Outcome<f64> {
    let (table, columns) = (TableName::default(), BTreeMap::new());
    let admin = sources::connect_admin(&server.url(database), &table, &columns).await?;
    admin.status().await?;
    let mut times = Vec::new();
    for _ in 0..LOOKS {
        let started = Instant::now();
        admin.status().await?;
        times.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    Ok(median(times))
}

/// Makes a database with many published rows.
async fn load(server: &Server, sizes: Sizes, progress: Progress) -> Outcome<(Client, Duration)> {
    let started = Instant::now();
    let client = server.create(FULL).await?;
    client.batch_execute("ALTER TABLE outbox SET (autovacuum_enabled = off)").await?;
    let published = match progress {
        Progress::Cursor => Published::No,
        Progress::Delete | Progress::Mark => Published::Yes,
    };
    if progress == Progress::Cursor {
        // It makes its checkpoint at its first start.
        relay::drain(server.url(FULL), progress, Box::new(MemorySink::keeping(0))).await?;
    }
    backlog::fill(&client, sizes.kept(), published).await?;
    // As autovacuum does after so many rows.
    client.batch_execute("VACUUM (ANALYZE) outbox").await?;
    if progress == Progress::Cursor {
        client.batch_execute(PASS_OVER).await?;
    }
    Ok((client, started.elapsed()))
}

/// The rate at which the backlog is drained.
async fn drain(server: &Server, database: &str, sizes: Sizes, progress: Progress) -> Outcome<f64> {
    let started = Instant::now();
    let sink = Box::new(MemorySink::keeping(0));
    let delivered = relay::drain(server.url(database), progress, sink).await?;
    if delivered != sizes.backlog {
        return Err(format!("{delivered} of {} events were delivered", sizes.backlog).into());
    }
    Ok(Measured { events: delivered, time: started.elapsed() }.rate())
}
