//! The consumer runtime with its inbox on PostgreSQL, beside a plain loop over the same client that
//! makes the same change without an inbox, with as many transactions at once.
//!
//! Events come from Kafka, all servers are those of `cargo xtask services up`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use postrider::{Event, EventType, schema};
use postrider_consumer::Consumer;
use postrider_consumer::subscriptions::Kafka;
use postrider_relay::formats::Encoding;
use postrider_relay::routing::Template;
use postrider_relay::sinks::SinkSpec;
use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::Message as _;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, PgPool};
use tokio::sync::{Notify, mpsc};

use crate::Outcome;
use crate::report::{Measured, Report, Section, Target, median, number};

const EVENTS: u64 = 30_000;
const KEYS: u64 = 10_000;
/// Transactions at once.
const CONCURRENCY: usize = 8;
const ROUNDS: usize = 3;
const CALL: usize = 1000;
/// At most a quarter slower.
const OF_PEER_MIN: f64 = 0.8;
const TOPIC: &str = "bench-consumer";
const DATABASE: &str = "bench_consumer";
const CHANGE: &str = "UPDATE balances SET cents = cents + $2 WHERE account = $1";

#[derive(Deserialize, Serialize)]
struct Paid {
    account: i64,
    cents: i64,
    note: String,
}

impl EventType for Paid {
    const EVENT_TYPE: &'static str = "Paid";
}

/// True if the target was reached.
pub(crate) fn run() -> Outcome<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> Outcome<bool> {
    let variable =
        |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set: run it by cargo"));
    let kafka = variable("POSTRIDER_TEST_KAFKA")?;
    let pool = database(&variable("POSTRIDER_TEST_POSTGRES")?).await?;
    publish(&kafka).await?;
    let mut rates = Vec::new();
    for round in 0..ROUNDS {
        let group = |of: &str| format!("{TOPIC}-{of}-{round}-{}", std::process::id());
        let plain = plain(&kafka, &pool, &group("plain")).await?;
        let single = postrider(&kafka, &pool, &group("single"), 1).await?;
        let batched = postrider(&kafka, &pool, &group("batched"), 32).await?;
        rates.push([plain.rate(), single.rate(), batched.rate()]);
    }
    let mut report = Report::new(Section::Consumer);
    report.title(&format!(
        "a consumer of Kafka on PostgreSQL, {} events, {} keys, {CONCURRENCY} transactions at once, \
         median of {ROUNDS}",
        number(EVENTS as f64),
        number(KEYS as f64)
    ));
    let labels = [
        "a loop over the same clients, no inbox, a transaction for each event",
        "postrider with inbox, a transaction for each event",
        "postrider with inbox, up to 32 events in a transaction (the default)",
    ];
    for (index, label) in labels.iter().enumerate() {
        let rate = median(rates.iter().map(|round| round[index])).round();
        report.line(label, &format!("{} events/s", number(rate)), "");
    }
    let of_peer = |index: usize| median(rates.iter().map(|round| round[index] / round[0]));
    let single = "of the loop's rate, a transaction for each event";
    report.line(single, &format!("{:.2} times", of_peer(1)), "");
    report.judge("of the loop's rate", of_peer(2), "times", Target::AtLeast(OF_PEER_MIN));
    report.keep(Some("PostgreSQL and Kafka on the same machine"))
}

/// A database of its own, with balances and an inbox.
async fn database(server: &str) -> Outcome<PgPool> {
    let mut admin = PgConnection::connect(server).await?;
    let recreate =
        [format!("DROP DATABASE IF EXISTS {DATABASE}"), format!("CREATE DATABASE {DATABASE}")];
    for statement in recreate {
        admin.execute(AssertSqlSafe(statement)).await?;
    }
    let (base, _) = server.rsplit_once('/').ok_or("a URL names a database")?;
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(2 * CONCURRENCY as u32);
    let pool = options.connect(&format!("{base}/{DATABASE}")).await?;
    let script =
        schema::postgres::sql(&schema::TableName::default(), schema::postgres::Layout::Plain);
    sqlx::raw_sql(AssertSqlSafe(script)).execute(&pool).await?;
    let tables = format!(
        "CREATE TABLE balances (account bigint PRIMARY KEY, cents bigint NOT NULL) WITH (fillfactor = 50); \
         INSERT INTO balances SELECT account, 0 FROM generate_series(0, {KEYS} - 1) AS account"
    );
    sqlx::raw_sql(AssertSqlSafe(tables)).execute(&pool).await?;
    Ok(pool)
}

/// Fills the topic anew, by the relay's sink.
async fn publish(kafka: &str) -> Outcome<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers(kafka));
    let admin: rdkafka::admin::AdminClient<_> = config.create()?;
    let options =
        rdkafka::admin::AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
    let _ = admin.delete_topics(&[TOPIC], &options).await?;
    let options_text = "create_missing = true\npartitions = 3\nreplication_factor = 1";
    let spec = SinkSpec { options: options_text.parse()?, ..SinkSpec::new(kafka) };
    let sink = spec.connect().await?;
    let mut encoding = Encoding::default();
    encoding.route.topic = Template::parse(TOPIC)?;
    let numbers: Vec<u64> = (0..EVENTS).collect();
    for call in numbers.chunks(CALL) {
        let messages: Result<Vec<_>, _> = call
            .iter()
            .map(|number| {
                let account = (number % KEYS) as i64;
                let paid = Paid { account, cents: 1, note: "x".repeat(150) };
                let event = Event::builder("Account", account.to_string(), "Paid").json(&paid);
                encoding.encode(Arc::new(event.build().expect("it is valid")))
            })
            .collect();
        // A topic that was just deleted may be in the way for a moment.
        let messages = messages?;
        let started = Instant::now();
        while let Some(error) = sink.publish(&messages).await.into_iter().find_map(Result::err) {
            if started.elapsed() > Duration::from_secs(30) {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(())
}

fn servers(kafka: &str) -> &str {
    kafka.trim_start_matches("kafka://")
}

fn config(kafka: &str, group: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers(kafka))
        .set("group.id", group)
        .set("auto.offset.reset", "earliest");
    config
}

/// What one would write by hand: a worker for each part of the keys, and no inbox.
async fn plain(kafka: &str, pool: &PgPool, group: &str) -> Outcome<Measured> {
    let consumer: StreamConsumer = config(kafka, group).create()?;
    consumer.subscribe(&[TOPIC])?;
    let (mut senders, mut workers) = (Vec::new(), Vec::new());
    for _ in 0..CONCURRENCY {
        let (sender, mut payloads) = mpsc::channel::<Vec<u8>>(128);
        let pool = pool.clone();
        senders.push(sender);
        workers.push(async move {
            while let Some(payload) = payloads.recv().await {
                let paid: Paid = serde_json::from_slice(&payload)?;
                let mut tx = pool.begin().await?;
                sqlx::query(CHANGE).bind(paid.account).bind(paid.cents).execute(&mut *tx).await?;
                tx.commit().await?;
            }
            Outcome::Ok(())
        });
    }
    let workers = tokio::spawn(try_join_all(workers));
    let mut started = None;
    for _ in 0..EVENTS {
        let message = consumer.recv().await?;
        started.get_or_insert_with(Instant::now);
        let key = message.key().ok_or("every record has a key")?;
        let worker = key.iter().fold(0_usize, |hash, byte| hash * 31 + usize::from(*byte));
        let payload = message.payload().ok_or("every record has a value")?.to_vec();
        senders[worker % CONCURRENCY].send(payload).await?;
    }
    drop(senders);
    workers.await??;
    let started = started.ok_or("there are no events")?;
    Ok(Measured { events: EVENTS, time: started.elapsed() })
}

/// The runtime, from its first event on as well: joining a group takes seconds.
async fn postrider(kafka: &str, pool: &PgPool, group: &str, batch: usize) -> Outcome<Measured> {
    let subscription = Kafka::with_config(config(kafka, group), &[TOPIC])?;
    let (first, done) = (Arc::new(std::sync::OnceLock::new()), Arc::new(Notify::new()));
    let count = Arc::new(AtomicU64::new(0));
    let (begun, counted, notify) = (Arc::clone(&first), Arc::clone(&count), Arc::clone(&done));
    let consumer = Consumer::new(group, pool.clone(), subscription)
        .concurrency(CONCURRENCY)
        .batch(batch)
        .on::<Paid>(move |tx, paid| {
            begun.get_or_init(Instant::now);
            let (counted, notify) = (Arc::clone(&counted), Arc::clone(&notify));
            Box::pin(async move {
                sqlx::query(CHANGE).bind(paid.account).bind(paid.cents).execute(&mut **tx).await?;
                if counted.fetch_add(1, Ordering::Relaxed) + 1 >= EVENTS {
                    notify.notify_one();
                }
                Ok(())
            })
        });
    let metrics = consumer.metrics();
    consumer.run(done.notified()).await?;
    let time = first.get().ok_or("there are no events")?.elapsed();
    let handled = metrics.counts().handled;
    if handled != EVENTS {
        return Err(format!("{handled} of {EVENTS} events were handled").into());
    }
    Ok(Measured { events: EVENTS, time })
}
