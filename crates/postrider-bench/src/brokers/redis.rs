//! Redis Streams, beside a loop over the same client with pipelining.

use postrider_relay::sink::Message;
use postrider_relay::sinks::redis::Options;
use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands as _, AsyncConnectionConfig, Pipeline};
use tokio::task::JoinSet;

use super::same::{self, BATCH, Messages};
use super::{Broker, Rounds, Sizes, from_memory, peer_payload, shape, sink, timed, to_topic, url};
use crate::Outcome;
use crate::report::{Measured, Report, Section};

/// Calls under way, of [`BATCH`] entries each: as many as the sink has.
const CALLS: usize = 4;
/// A stream of them all is in memory.
const FEWER: u64 = 2;
const STREAM: &str = "bench";
const PAYLOAD: &str = "payload";
/// The sink's own.
const SCRIPT: &str = include_str!("../../../postrider-relay/src/sinks/redis/append.lua");
const DEDUPLICATED: &str = "create_missing = true";
const NOT_DEDUPLICATED: &str = "create_missing = true\ndedupe_events = 0";

pub(super) async fn run(sizes: Sizes) -> Outcome<(Report, String)> {
    let events = sizes.events / FEWER;
    let url = url(Broker::Redis)?;
    let client = redis::Client::open(url.as_str())?;
    // A moment in which the server waits for its disk is no failure.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    check(&mut connection, &url, DEDUPLICATED, scripted).await?;
    check(&mut connection, &url, NOT_DEDUPLICATED, appended).await?;
    let mut report = Report::new(Section::Redis);
    report.title(&format!("redis, {}, appendfsync everysec", shape(events)));
    let mut rounds = Rounds::new(&[
        "a loop of XADD in pipelines, one field",
        "a loop of XADD in pipelines, 10 fields",
        "a loop of postrider's script, 10 fields",
        "postrider, deduplicated, 10 fields",
        "postrider, without deduplication",
    ]);
    for _ in 0..super::ROUNDS {
        let mut measured = vec![
            plain(&mut connection, events).await?,
            dressed(&mut connection, events, appended).await?,
            dressed(&mut connection, events, scripted).await?,
        ];
        for options in [DEDUPLICATED, NOT_DEDUPLICATED] {
            remove(&mut connection).await?;
            let sink = sink(&url, options).await?;
            measured.push(from_memory(sink, to_topic(STREAM)?, events).await?);
        }
        rounds.add(measured);
    }
    remove(&mut connection).await?;
    rounds.tell(&mut report, &[(3, 0, "postrider, of the loop's rate")]);
    rounds.tell_shares(
        &mut report,
        &[
            (3, 2, "postrider, of the loop's rate with the same script"),
            (4, 0, "without deduplication, of the loop's rate"),
            (4, 1, "without deduplication, of the loop's rate with the same entries"),
        ],
    );
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    let version = version.unwrap_or("").trim().to_owned();
    Ok((report, format!("Redis {version} on the same machine")))
}

/// A stream that is not there yet.
pub(super) async fn fresh_place(url: &str) -> Outcome<String> {
    let client = redis::Client::open(url)?;
    remove(&mut client.get_multiplexed_async_connection().await?).await?;
    Ok(STREAM.to_owned())
}

async fn remove(connection: &mut MultiplexedConnection) -> Outcome<()> {
    let keys: Vec<String> = connection.keys(format!("*{STREAM}*")).await?;
    for key in keys {
        let _: () = connection.del(key).await?;
    }
    Ok(())
}

/// Bare payloads.
async fn plain(connection: &mut MultiplexedConnection, events: u64) -> Outcome<Measured> {
    remove(connection).await?;
    let payload = peer_payload();
    timed(events, async {
        let mut calls = Calls::new(connection);
        for _ in 0..events / BATCH as u64 {
            let mut pipeline = redis::pipe();
            for _ in 0..BATCH {
                pipeline.cmd("XADD").arg(STREAM).arg("*").arg(PAYLOAD).arg(&payload[..]).ignore();
            }
            calls.add(pipeline).await?;
        }
        calls.end().await
    })
    .await
}

/// What Postrider sends.
async fn dressed(
    connection: &mut MultiplexedConnection,
    events: u64,
    call: fn(&[Message]) -> Pipeline,
) -> Outcome<Measured> {
    remove(connection).await?;
    let messages = Messages::start(events, STREAM).await?;
    timed(events, async {
        let mut calls = Calls::new(connection);
        loop {
            let batch = messages.next().await?;
            if batch.is_empty() {
                return calls.end().await;
            }
            calls.add(call(&batch)).await?;
        }
    })
    .await
}

/// Pipelines under way.
struct Calls {
    connection: MultiplexedConnection,
    tasks: JoinSet<Outcome<()>>,
}

impl Calls {
    fn new(connection: &MultiplexedConnection) -> Self {
        Self { connection: connection.clone(), tasks: JoinSet::new() }
    }

    async fn add(&mut self, pipeline: Pipeline) -> Outcome<()> {
        if self.tasks.len() == CALLS
            && let Some(ended) = self.tasks.join_next().await
        {
            ended??;
        }
        self.tasks.spawn(run_pipeline(self.connection.clone(), pipeline));
        Ok(())
    }

    async fn end(mut self) -> Outcome<()> {
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

async fn run_pipeline(mut connection: MultiplexedConnection, pipeline: Pipeline) -> Outcome<()> {
    // A script that has appended everything says how many those are, and else something longer.
    let _: Vec<u64> = pipeline.query_async(&mut connection).await?;
    Ok(())
}

/// One command for each message.
fn appended(messages: &[Message]) -> Pipeline {
    let mut pipeline = redis::pipe();
    for message in messages {
        pipeline.cmd("XADD").arg(STREAM).arg("*");
        for (name, value) in same::texts(message) {
            pipeline.arg(name).arg(&*value);
        }
        pipeline.arg(PAYLOAD).arg(&message.body[..]).ignore();
    }
    pipeline
}

/// The sink's script, for entries that all go to one stream and have the same fields.
fn scripted(messages: &[Message]) -> Pipeline {
    let Options { dedupe_events, dedupe_window, .. } = Options::new("");
    let names: Vec<_> = same::texts(&messages[0]).map(|(name, _)| name).chain([PAYLOAD]).collect();
    let mut pipeline = redis::pipe();
    pipeline.cmd("EVAL").arg(SCRIPT).arg(3).arg(STREAM);
    for ids in ["ids", "ids-older"] {
        pipeline.arg(format!("{{{STREAM}}}:postrider-{ids}"));
    }
    pipeline.arg(dedupe_events).arg(dedupe_window.as_secs());
    // A stream that is missing is made, and nothing is trimmed.
    pipeline.arg("").arg("").arg(0);
    pipeline.arg(1).arg(messages.len()).arg(1).arg(names.len()).arg(names);
    pipeline.arg(messages.len());
    for message in messages {
        pipeline.arg(&message.event.id().as_bytes()[..]);
    }
    for message in messages {
        pipeline.arg(1);
        for (_, value) in same::texts(message) {
            pipeline.arg(&*value);
        }
        pipeline.arg(&message.body[..]);
    }
    pipeline
}

/// Fails if these are not Postrider's entries.
async fn check(
    connection: &mut MultiplexedConnection,
    url: &str,
    options: &str,
    call: fn(&[Message]) -> Pipeline,
) -> Outcome<()> {
    let messages = same::one(STREAM).await?;
    remove(connection).await?;
    run_pipeline(connection.clone(), call(&messages)).await?;
    let peers = arrived(connection).await?;
    remove(connection).await?;
    same::publish(url, options, &messages).await?;
    same::compare(&peers, &arrived(connection).await?)
}

/// The fields of the only entry, and which keys there are.
async fn arrived(connection: &mut MultiplexedConnection) -> Outcome<Arrived> {
    let mut entries = redis::cmd("XRANGE");
    entries.arg(STREAM).arg("-").arg("+");
    let entries: Vec<(String, Vec<(String, String)>)> = entries.query_async(connection).await?;
    let mut keys: Vec<String> = connection.keys(format!("*{STREAM}*")).await?;
    keys.sort();
    Ok((entries.into_iter().map(|(_, fields)| fields).collect(), keys))
}

type Arrived = (Vec<Vec<(String, String)>>, Vec<String>);
