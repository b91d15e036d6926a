//! What a relay costs that has nothing to do.

use std::time::{Duration, Instant};

use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sinks::memory::MemorySink;
use postrider_relay::sources::{Progress, SourceSpec};
use tokio_postgres::Client;

use super::server::Server;
use super::{Sizes, cpu};
use crate::Outcome;
use crate::report::{Report, number};

/// Until polling has calmed down, and statistics have been told.
const SETTLE: Duration = Duration::from_secs(3);
const SECONDS_PER_HOUR: f64 = 3600.0;

pub(super) async fn run(server: &Server, sizes: Sizes, report: &mut Report) -> Outcome<()> {
    report.title("postgres, a relay with nothing to do, per hour");
    for progress in [Progress::Mark, Progress::Cursor] {
        let Cost { transactions, relay_cpu, server_cpu } = watch(server, sizes, progress).await?;
        let figure = format!("{} queries", number(transactions.round()));
        let more = format!(
            "{} s of the relay's processor time, {} s of the server's",
            number(relay_cpu),
            number(server_cpu)
        );
        report.line(&progress.to_string(), &figure, &more);
    }
    Ok(())
}

/// Per hour.
struct Cost {
    transactions: f64,
    relay_cpu: f64,
    server_cpu: f64,
}

async fn watch(server: &Server, sizes: Sizes, progress: Progress) -> Outcome<Cost> {
    const DATABASE: &str = "idle";
    let client = server.create(DATABASE).await?;
    let spec = SourceSpec { progress, ..SourceSpec::new(server.url(DATABASE)) };
    let sink = Box::new(MemorySink::keeping(0));
    let pipeline = Pipeline::new("bench", spec.connect().await?, sink, Options::default());
    let (stop, shutdown) = shutdown();
    let relay = tokio::spawn(pipeline.run(shutdown));
    tokio::time::sleep(SETTLE).await;
    let sessions = cpu::sessions(&client).await?;
    let (before, started) = (Counts::take(&client, &sessions).await?, Instant::now());
    tokio::time::sleep(sizes.seconds(20)).await;
    let (after, time) = (Counts::take(&client, &sessions).await?, started.elapsed());
    stop.stop();
    relay.await??;
    server.remove(DATABASE).await?;
    let per_hour = |count: f64| count / time.as_secs_f64() * SECONDS_PER_HOUR;
    Ok(Cost {
        // One of them asked for the first count.
        transactions: per_hour(after.transactions - before.transactions - 1.0),
        relay_cpu: per_hour(after.relay_cpu - before.relay_cpu),
        server_cpu: per_hour(after.server_cpu - before.server_cpu),
    })
}

/// So far.
struct Counts {
    transactions: f64,
    relay_cpu: f64,
    server_cpu: f64,
}

impl Counts {
    async fn take(client: &Client, sessions: &[i32]) -> Outcome<Self> {
        let sql = "SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database
             WHERE datname = current_database()";
        let transactions = client.query_one(sql, &[]).await?.get(0);
        let server_cpu = cpu::seconds_of(sessions)?;
        Ok(Self { transactions, relay_cpu: cpu::seconds("self")?, server_cpu })
    }
}
