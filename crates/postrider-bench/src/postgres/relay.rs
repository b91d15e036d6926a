//! Postrider's relay, with everything as it is by default.

use std::time::{Duration, Instant};

use postrider_relay::pipeline::{Options, Ordering, Pipeline};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::Sink;
use postrider_relay::sinks::memory::MemorySink;
use postrider_relay::sources::{Mode, Progress, SourceSpec};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::Outcome;

/// Longest time until the log is read.
const STREAM_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Publishes until nothing is pending; answers how many events were delivered.
pub(super) async fn drain(url: String, progress: Progress, sink: Box<dyn Sink>) -> Outcome<u64> {
    drain_as(SourceSpec { progress, ..SourceSpec::new(url) }, sink).await
}

/// The same from the server's log.
pub(super) async fn drain_log(url: &str, sink: Box<dyn Sink>) -> Outcome<u64> {
    drain_as(log_spec(url), sink).await
}

/// A source that reads the server's log.
pub(super) fn log_spec(url: &str) -> SourceSpec {
    SourceSpec { mode: Mode::Cdc, progress: Progress::Cursor, ..SourceSpec::new(url) }
}

/// Starts a relay with an empty outbox and ends it when it has got to the log: the next one goes
/// on there.
pub(super) async fn begin_log(client: &Client, url: &str) -> Outcome<()> {
    let source = log_spec(url).connect().await?;
    let sink = Box::new(MemorySink::keeping(0));
    let (stop, shutdown) = shutdown();
    let pipeline = Pipeline::new("bench", source, sink, Options::default());
    let relay = tokio::spawn(pipeline.run(shutdown));
    let sql = "SELECT EXISTS (SELECT FROM outbox_checkpoints
           WHERE lsn IS NOT NULL AND slot_snapshot IS NULL)
         AND EXISTS (SELECT FROM pg_replication_slots
           WHERE database = current_database() AND active)";
    let deadline = Instant::now() + STREAM_MAX;
    while !client.query_one(sql, &[]).await?.get::<_, bool>(0) {
        if relay.is_finished() || Instant::now() > deadline {
            return Err("the relay does not get to the log".into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    stop.stop();
    relay.await??;
    Ok(())
}

/// Publishes with several relays side by side and nothing kept in order.
pub(super) async fn drain_side_by_side(url: &str, sinks: Vec<Box<dyn Sink>>) -> Outcome<u64> {
    let mut relays = JoinSet::new();
    for (index, sink) in sinks.into_iter().enumerate() {
        let relay = format!("relay-{index}");
        let spec = SourceSpec { ordering: Ordering::None, relay, ..SourceSpec::new(url) };
        relays.spawn(drain_as(spec, sink));
    }
    relays.join_all().await.into_iter().sum::<Outcome<u64>>()
}

async fn drain_as(spec: SourceSpec, sink: Box<dyn Sink>) -> Outcome<u64> {
    let source = spec.connect().await?;
    let options = Options { drain: true, ordering: spec.ordering, ..Options::default() };
    let (_stop, shutdown) = shutdown();
    let totals = Pipeline::new("bench", source, sink, options).run(shutdown).await?;
    Ok(totals.delivered)
}
