//! Kafka, beside its own `kafka-producer-perf-test`, and beside a loop over the same client.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider_relay::formats::{Encoding, Format};
use postrider_relay::sink::Message;
use postrider_relay::sources::{Progress, SourceSpec};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer};

use super::same::{self, CONTENT_TYPE, Messages};
use super::{
    Broker, Rounds, Sizes, drained, from_memory, peer_payload, sink, timed, to_topic, url,
};
use crate::Outcome;
use crate::postgres::bench_source::{self, Backlog};
use crate::report::{Measured, Report, Section, number};

const PAYLOAD_BYTES: usize = 200;
const KEYS: u64 = 10_000;
const PARTITIONS: i32 = 12;
/// The same for all that is compared.
const LINGER_MS: u32 = 2;
const BATCH_BYTES: u32 = 1_000_000;

pub(super) async fn run(sizes: Sizes) -> Outcome<(Report, String)> {
    let Sizes { events } = sizes;
    let (url, servers) = place()?;
    let mut report = Report::new(Section::Kafka);
    report.title(&format!(
        "kafka, {} events from memory: {PAYLOAD_BYTES}-byte payloads, {} keys, ordered by key, \
         {PARTITIONS} partitions, acks=all, idempotent, linger.ms={LINGER_MS}, \
         batch.size={BATCH_BYTES}, median of {}",
        number(events as f64),
        number(KEYS as f64),
        super::ROUNDS
    ));
    let as_large = record_bytes().await?;
    let mut rounds = Rounds::new(&[
        "kafka-producer-perf-test, no keys, no headers",
        "the same, compressed (lz4)",
        "the same, records of as many bytes as postrider's",
        "the same of these, compressed (lz4)",
        "a loop over librdkafka, no keys, no headers",
        "a loop over librdkafka, keys and 7 headers",
        "postrider, keys and 7 headers",
        "postrider, compressed (lz4)",
        "postrider, format debezium: keys and 3 headers",
        "postrider, exactly once",
    ]);
    for _ in 0..super::ROUNDS {
        rounds.add(vec![
            perf_test(&servers, events, PAYLOAD_BYTES, "none").await?,
            perf_test(&servers, events, PAYLOAD_BYTES, "lz4").await?,
            perf_test(&servers, events, as_large, "none").await?,
            perf_test(&servers, events, as_large, "lz4").await?,
            plain(&servers, events, false).await?,
            plain(&servers, events, true).await?,
            postrider(&url, &servers, "", Format::Payload, events).await?,
            postrider(&url, &servers, LZ4, Format::Payload, events).await?,
            postrider(&url, &servers, "", Format::Debezium, events).await?,
            postrider(&url, &servers, EXACTLY_ONCE, Format::Payload, events).await?,
        ]);
    }
    rounds.tell(
        &mut report,
        &[
            (6, 0, "postrider, of the perf test's rate"),
            (7, 1, "postrider, of the perf test's rate, both compressed"),
            (8, 0, "postrider, format debezium, of the perf test's rate"),
        ],
    );
    rounds.tell_shares(
        &mut report,
        &[
            (6, 2, "postrider, of the perf test's rate with as many bytes"),
            (7, 3, "postrider, of the perf test's rate with as many bytes, both compressed"),
            (6, 5, "postrider, of the loop's rate with the same records"),
        ],
    );

    let rows = events / 2;
    report.title(&format!(
        "kafka, the whole way from a PostgreSQL backlog of {} events, beside the same perf test, \
         median of {}",
        number(rows as f64),
        super::ROUNDS
    ));
    let backlog = Backlog::start().await?;
    let mut rounds = Rounds::new(&[
        "kafka-producer-perf-test, no keys, no headers",
        "the same, compressed (lz4)",
        "postrider, polling with cursor",
        "postrider, polling with cursor, compressed (lz4)",
        "postrider, log tailing",
        "postrider, log tailing, compressed (lz4)",
    ]);
    for _ in 0..super::ROUNDS {
        rounds.add(vec![
            perf_test(&servers, rows, PAYLOAD_BYTES, "none").await?,
            perf_test(&servers, rows, PAYLOAD_BYTES, "lz4").await?,
            polled(&backlog, &url, &servers, "", rows).await?,
            polled(&backlog, &url, &servers, LZ4, rows).await?,
            tailed(&backlog, &url, &servers, "", rows).await?,
            tailed(&backlog, &url, &servers, LZ4, rows).await?,
        ]);
    }
    rounds.tell(
        &mut report,
        &[
            (2, 0, "polling, of the perf test's rate"),
            (3, 1, "polling, of the perf test's rate, both compressed"),
            (4, 0, "log tailing, of the perf test's rate"),
            (5, 1, "log tailing, of the perf test's rate, both compressed"),
        ],
    );
    let on = format!("Apache Kafka 4.1 and {}", backlog.describe().await?);
    Ok((report, on))
}

/// The broker's URL, and its address.
pub(super) fn place() -> Outcome<(String, String)> {
    let url = url(Broker::Kafka)?;
    let servers = url.trim_start_matches("kafka://").to_owned();
    Ok((url, servers))
}

/// A new topic.
pub(super) async fn fresh_place(url: &str) -> Outcome<String> {
    Ok(Topic::make(url.trim_start_matches("kafka://")).await?.name)
}

const LZ4: &str = "compression = \"lz4\"";
const EXACTLY_ONCE: &str = "exactly_once = true
create_missing = true
replication_factor = 1
transactional_id = \"bench\"
progress_topic = \"bench-progress\"";

async fn postrider(
    url: &str,
    servers: &str,
    options: &str,
    format: Format,
    events: u64,
) -> Outcome<Measured> {
    let topic = Topic::make(servers).await?;
    let encoding = Encoding { format, ..to_topic(&topic.name)? };
    let measured = from_memory(sink(url, options).await?, encoding, events).await?;
    topic.remove().await?;
    Ok(measured)
}

async fn polled(
    backlog: &Backlog,
    url: &str,
    servers: &str,
    options: &str,
    rows: u64,
) -> Outcome<Measured> {
    let topic = Topic::make(servers).await?;
    let database = backlog.polled(rows).await?;
    let source =
        SourceSpec { progress: Progress::Cursor, ..SourceSpec::new(backlog.url(&database)) };
    let source = source.connect().await?;
    let measured = drained(source, sink(url, options).await?, to_topic(&topic.name)?, rows).await?;
    backlog.remove(&database).await?;
    topic.remove().await?;
    Ok(measured)
}

async fn tailed(
    backlog: &Backlog,
    url: &str,
    servers: &str,
    options: &str,
    rows: u64,
) -> Outcome<Measured> {
    let database = backlog.logged(rows).await?;
    drain_log(backlog, &database, url, servers, options, rows).await
}

/// Events of so many keys, from the log.
pub(super) async fn tailed_keys(
    backlog: &Backlog,
    url: &str,
    servers: &str,
    rows: u64,
    keys: usize,
) -> Outcome<Measured> {
    let database = backlog.logged_keys(rows, keys).await?;
    drain_log(backlog, &database, url, servers, "", rows).await
}

async fn drain_log(
    backlog: &Backlog,
    database: &str,
    url: &str,
    servers: &str,
    options: &str,
    rows: u64,
) -> Outcome<Measured> {
    let topic = Topic::make(servers).await?;
    let source = bench_source::log_spec(&backlog.url(database)).connect().await?;
    let measured = drained(source, sink(url, options).await?, to_topic(&topic.name)?, rows).await?;
    backlog.remove(database).await?;
    topic.remove().await?;
    Ok(measured)
}

/// A topic of its own.
struct Topic {
    admin: AdminClient<DefaultClientContext>,
    name: String,
}

impl Topic {
    async fn make(servers: &str) -> Outcome<Self> {
        let name = format!("bench-{:x}", std::time::UNIX_EPOCH.elapsed()?.as_nanos());
        let admin: AdminClient<_> =
            ClientConfig::new().set("bootstrap.servers", servers).create()?;
        let topic = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(1));
        // Until the broker knows it.
        let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
        let made = admin.create_topics(&[topic], &options).await?;
        made.into_iter().try_for_each(|made| made.map(drop)).map_err(|(_, code)| code)?;
        Ok(Self { admin, name })
    }

    async fn remove(self) -> Outcome<()> {
        self.admin.delete_topics(&[&self.name], &AdminOptions::new()).await?;
        Ok(())
    }
}

/// How many bytes the key, the headers and the payload of a record of ours have.
async fn record_bytes() -> Outcome<usize> {
    let messages = same::one("topic").await?;
    let message = messages.first().ok_or("there is no message")?;
    let headers = same::facts(message).map(|(name, value)| name.len() + value.len());
    let content_type = CONTENT_TYPE.len() + message.content_type.len();
    Ok(message.key.len() + headers.sum::<usize>() + content_type + message.body.len())
}

/// Kafka's own tool, in Java.
async fn perf_test(
    servers: &str,
    events: u64,
    record_bytes: usize,
    compression: &str,
) -> Outcome<Measured> {
    let topic = Topic::make(servers).await?;
    let mut java = tokio::process::Command::new("java");
    java.arg("-cp").arg(libraries()?.join("*")).arg("org.apache.kafka.tools.ProducerPerformance");
    java.args(["--topic", &topic.name, "--throughput", "-1"]);
    java.args(["--num-records", &events.to_string()]);
    java.args(["--record-size", &record_bytes.to_string(), "--producer-props"]);
    java.args([format!("bootstrap.servers={servers}"), format!("linger.ms={LINGER_MS}")]);
    java.args([format!("batch.size={BATCH_BYTES}"), "acks=all".to_owned()]);
    java.args(["enable.idempotence=true", "buffer.memory=67108864"]);
    java.arg(format!("compression.type={compression}"));
    let output = java.output().await?;
    let said = String::from_utf8_lossy(&output.stdout);
    // "1000000 records sent, 110000.0 records/sec (…)": the last line is the whole run's.
    let rate = said.lines().rev().find_map(|line| {
        let (_, rest) = line.split_once(" records sent, ")?;
        rest.split_once(' ')?.0.parse::<f64>().ok()
    });
    let rate = rate.ok_or_else(|| format!("kafka-producer-perf-test failed: {said}"))?;
    topic.remove().await?;
    Ok(Measured { events, time: Duration::from_secs_f64(events as f64 / rate) })
}

/// A loop over the same client, without order: of bare payloads, or of records like ours.
async fn plain(servers: &str, events: u64, is_dressed: bool) -> Outcome<Measured> {
    let topic = Topic::make(servers).await?;
    let name = topic.name.clone();
    let config = producer_config(servers);
    let measured = timed(events, async move {
        let sent =
            tokio::task::spawn_blocking(move || plain_loop(&config, &name, events, is_dressed));
        sent.await?
    });
    let measured = measured.await?;
    topic.remove().await?;
    Ok(measured)
}

fn producer_config(servers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", servers)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("linger.ms", LINGER_MS.to_string())
        .set("batch.size", BATCH_BYTES.to_string());
    config
}

fn plain_loop(config: &ClientConfig, topic: &str, events: u64, is_dressed: bool) -> Outcome<()> {
    let delivered = Arc::new(AtomicU64::new(0));
    let counter = Counter(Arc::clone(&delivered));
    let producer: ThreadedProducer<Counter> = config.create_with_context(counter)?;
    if is_dressed {
        let runtime = tokio::runtime::Handle::current();
        let messages = runtime.block_on(Messages::start(events, topic))?;
        loop {
            let batch = runtime.block_on(messages.next())?;
            if batch.is_empty() {
                break;
            }
            for message in &batch {
                let record = BaseRecord::to(topic).key(&message.key).payload(&message.body[..]);
                send(&producer, record.headers(headers(message)))?;
            }
        }
    } else {
        let payload = peer_payload();
        for _ in 0..events {
            send(&producer, BaseRecord::to(topic).payload(&payload[..]))?;
        }
    }
    producer.flush(Duration::from_secs(60))?;
    match delivered.load(Ordering::Relaxed) {
        all if all == events => Ok(()),
        some => Err(format!("{some} of {events} records were delivered").into()),
    }
}

fn send(
    producer: &ThreadedProducer<Counter>,
    mut record: BaseRecord<'_, String, [u8]>,
) -> Outcome<()> {
    while let Err((error, back)) = producer.send(record) {
        if error != KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull) {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(1));
        record = back;
    }
    Ok(())
}

fn headers(message: &Message) -> OwnedHeaders {
    let add = |headers: OwnedHeaders, (key, value): (&str, Cow<'_, str>)| {
        headers.insert(Header { key, value: Some(&*value) })
    };
    let content_type = (CONTENT_TYPE, message.content_type.as_str().into());
    same::facts(message).chain([content_type]).fold(OwnedHeaders::new_with_capacity(7), add)
}

struct Counter(Arc<AtomicU64>);

impl ClientContext for Counter {}

impl ProducerContext for Counter {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_ok() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Where Kafka's programs are.
fn libraries() -> Outcome<PathBuf> {
    let program = std::env::current_exe()?;
    let link = program.ancestors().map(|folder| folder.join("services/kafka-libraries"));
    let link = link.filter(|link| link.exists()).find_map(|link| link.canonicalize().ok());
    Ok(link.ok_or("Kafka's program is not there: run `cargo xtask services up`")?)
}
