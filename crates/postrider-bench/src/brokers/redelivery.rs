//! How many events come again when the relay is killed with `kill -9` while it drains a PostgreSQL
//! backlog.
//!
//! The relay is this program, started again with a configuration: the same relay as the binary's,
//! run by the same call. What arrived is counted by a plain client of the broker. An event that
//! did not arrive ends the benchmark.

mod kafka;
mod nats;
mod rabbitmq;
mod redis;

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use postrider_relay::config::{Config, Environment};
use postrider_relay::relay::Relay;
use postrider_relay::shutdown::shutdown;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use super::{Broker, Sizes, url};
use crate::Outcome;
use crate::postgres::bench_source::Backlog;
use crate::report::{Report, Section, Target, number};

/// The argument that tells this program that it is a relay.
pub(crate) const CHILD: &str = "redelivery-child";

/// The name of topics, streams, exchanges and queues.
const NAME: &str = "bench-redelivery";
const KILLS: u64 = 10;
const FEWER: u64 = 5;
/// As a pipeline has it by default.
const WINDOW: u64 = 4096;
/// A kill comes up to so long after its place in the backlog was reached.
const KILL_AFTER_MS_MAX: u64 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Longest time from one kill to the next, and to the end.
const LIFE_MAX: Duration = Duration::from_secs(300);

/// Up to where everything is settled: the backlog was there before the relay, so it is one tick.
const POSITION: &str = "SELECT coalesce(max(position), 0) FROM outbox_checkpoints";
/// Nobody renews the lease of a process that is dead: the rest of it would only be waited for.
const LEASE_IS_OVER: &str = "UPDATE outbox_leases SET expires_at = '-infinity'";

/// Where events arrive.
#[async_trait]
trait Place {
    /// `[pipeline.sink]`, but for the URL.
    fn options(&self) -> String;

    /// The ids of all that has arrived.
    async fn ids(&self) -> Outcome<Vec<String>>;

    async fn remove(self: Box<Self>) -> Outcome<()>;
}

/// What the sink is told, and how often an event may come again.
struct Trial {
    broker: Broker,
    label: &'static str,
    options: &'static str,
    is_exactly_once: bool,
}

const TRIALS: [Trial; 6] = [
    trial(Broker::Kafka, "kafka", ""),
    Trial { is_exactly_once: true, ..trial(Broker::Kafka, "kafka, exactly once", EXACTLY_ONCE) },
    trial(Broker::Nats, "nats, which deduplicates", ""),
    trial(Broker::RabbitMq, "rabbitmq", ""),
    trial(Broker::Redis, "redis, deduplicated", "create_missing = true"),
    trial(
        Broker::Redis,
        "redis, without deduplication",
        "create_missing = true\ndedupe_events = 0",
    ),
];

const EXACTLY_ONCE: &str = "exactly_once = true
create_missing = true
replication_factor = 1
transactional_id = \"bench-redelivery\"
progress_topic = \"bench-redelivery-progress\"";

const fn trial(broker: Broker, label: &'static str, options: &'static str) -> Trial {
    Trial { broker, label, options, is_exactly_once: false }
}

/// Runs it alone. True if every target was reached.
pub(crate) fn run() -> Outcome<bool> {
    let sizes = Sizes::from_environment()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure(sizes))
}

pub(super) async fn measure(sizes: Sizes) -> Outcome<bool> {
    let rows = (sizes.events / FEWER).next_multiple_of(1000);
    // Several windows from one kill to the next, also where there is less to do.
    let window = WINDOW.min(rows / 48);
    let limit = (KILLS * window) as f64;
    let backlog = Backlog::start().await?;
    let mut report = Report::new(Section::Redelivery);
    report.title(&format!(
        "brokers, a PostgreSQL backlog of {} events is drained (cursor, window of {} events) by a \
         relay that is killed {KILLS} times with kill -9: events that came again",
        number(rows as f64),
        number(window as f64),
    ));
    for trial in &TRIALS {
        let again = trial.run(&backlog, rows, window).await;
        let again = again.map_err(|error| format!("{}: {error}", trial.label))?;
        let limit = if trial.is_exactly_once { 0.0 } else { limit };
        report.judge(trial.label, again as f64, "events", Target::AtMost(limit));
    }
    let on = backlog.describe().await?;
    if sizes.are_full() { report.keep(Some(&on)) } else { Ok(report.forget()) }
}

impl Trial {
    /// Answers how many arrivals were repetitions.
    async fn run(&self, backlog: &Backlog, rows: u64, window: u64) -> Outcome<usize> {
        let sink = url(self.broker)?;
        let place: Box<dyn Place> = match self.broker {
            Broker::Kafka => Box::new(kafka::Topic::make(&sink).await?),
            Broker::Nats => Box::new(nats::Stream::make(&sink).await?),
            Broker::RabbitMq => Box::new(rabbitmq::Queue::make(&sink).await?),
            Broker::Redis => Box::new(redis::Stream::make(&sink).await?),
        };
        let database = backlog.polled(rows).await?;
        let source = backlog.url(&database);
        let config = format!(
            "[source]\nurl = {source:?}\n\n[[pipeline]]\nname = \"bench\"\n\
             progress = \"cursor\"\nwindow = {{ events = {window} }}\n\n\
             [pipeline.sink]\nurl = {sink:?}\n{}\n{}\n",
            place.options(),
            self.options
        );
        let (client, connection) = tokio_postgres::connect(&source, NoTls).await?;
        // It ends with the client. What goes wrong is the client's error, too.
        tokio::spawn(connection);
        drain_under_kills(&client, rows, &config).await?;
        drop(client);
        let ids = place.ids().await?;
        place.remove().await?;
        backlog.remove(&database).await?;
        let arrived = ids.len();
        let events: HashSet<String> = ids.into_iter().collect();
        if events.len() as u64 != rows {
            return Err(format!("{} of {rows} events have arrived", events.len()).into());
        }
        Ok(arrived - events.len())
    }
}

/// Drains a backlog with relays that are killed, one in each part of it at any moment, and a last
/// one that is not.
async fn drain_under_kills(client: &Client, rows: u64, config: &str) -> Outcome<()> {
    let folder = crate::beside_program()?;
    fs::write(folder.path().join("postrider.toml"), config)?;
    let part = rows / (KILLS + 1);
    for kill in 0..KILLS {
        let place = kill * part + random(part);
        let mut relay = start(&folder)?;
        until_settled(client, place, &mut relay).await?;
        sleep(Duration::from_millis(random(KILL_AFTER_MS_MAX))).await;
        if relay.try_wait()?.is_some() {
            return Err("the relay ended before it was killed".into());
        }
        relay.kill().await?;
        client.batch_execute(LEASE_IS_OVER).await?;
    }
    let ended = tokio::time::timeout(LIFE_MAX, start(&folder)?.wait()).await;
    let ended = ended.map_err(|_| "the relay does not come to an end")??;
    if ended.success() { Ok(()) } else { Err(format!("the relay failed: {ended}").into()) }
}

fn start(folder: &TempDir) -> Outcome<Child> {
    let mut relay = Command::new(std::env::current_exe()?);
    relay.arg(CHILD).arg(folder.path().join("postrider.toml")).kill_on_drop(true);
    Ok(relay.spawn()?)
}

/// Waits until the relay has settled everything up to a place and more of the backlog.
async fn until_settled(client: &Client, place: u64, relay: &mut Child) -> Outcome<()> {
    let settled = async || -> Outcome<i64> { Ok(client.query_one(POSITION, &[]).await?.get(0)) };
    let before = settled().await?;
    let deadline = Instant::now() + LIFE_MAX;
    loop {
        let settled = settled().await?;
        if settled > before && settled.unsigned_abs() > place {
            return Ok(());
        }
        if relay.try_wait()?.is_some() || Instant::now() > deadline {
            return Err(format!("the relay does not get to event {place}").into());
        }
        sleep(LOOK_EVERY).await;
    }
}

/// A number below this one.
fn random(below: u64) -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish() % below
}

/// Drains the outbox of a configuration, as `postrider relay --drain` does.
pub(crate) fn run_child(file: &str) -> Outcome<()> {
    let text = fs::read_to_string(Path::new(file))?;
    let mut config = Config::parse(&text, file, &Environment::default())?;
    for pipeline in &mut config.pipelines {
        pipeline.options.drain = true;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (_stop, stopped) = shutdown();
    for outcome in runtime.block_on(Relay::new(config).run(stopped)) {
        outcome.result?;
    }
    Ok(())
}
