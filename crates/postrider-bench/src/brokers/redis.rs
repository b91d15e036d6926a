//! Redis Streams, beside a loop over the same client with pipelining.

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;

use super::{Broker, Rounds, Sizes, from_memory, peer_payload, shape, sink, timed, to_topic, url};
use crate::Outcome;
use crate::report::{Measured, Report, Section};

/// Entries of one pipeline.
const TOGETHER: u64 = 1000;
/// A stream of them all is in memory.
const FEWER: u64 = 2;
const STREAM: &str = "bench";

pub(super) async fn run(sizes: Sizes) -> Outcome<(Report, String)> {
    let events = sizes.events / FEWER;
    let url = url(Broker::Redis)?;
    let client = redis::Client::open(url.as_str())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut report = Report::new(Section::Redis);
    report.title(&format!("redis, {}, appendfsync everysec", shape(events)));
    let mut rounds = Rounds::new(&[
        "a loop of XADD in pipelines, one field",
        "postrider, deduplicated, 10 fields",
        "postrider, without deduplication",
    ]);
    for _ in 0..super::ROUNDS {
        let plain = plain(&mut connection, events).await?;
        let mut measured = vec![plain];
        for options in ["", "dedupe_events = 0\n"] {
            remove(&mut connection).await?;
            let sink = sink(&url, &format!("{options}create_missing = true")).await?;
            measured.push(from_memory(sink, to_topic(STREAM)?, events).await?);
        }
        rounds.add(measured);
    }
    remove(&mut connection).await?;
    rounds.tell(&mut report, &[(1, "postrider, of the loop's rate")]);
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await?;
    let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
    let version = version.unwrap_or("").trim().to_owned();
    Ok((report, format!("Redis {version} on the same machine")))
}

async fn remove(connection: &mut MultiplexedConnection) -> Outcome<()> {
    let keys: Vec<String> = connection.keys(format!("*{STREAM}*")).await?;
    for key in keys {
        let _: () = connection.del(key).await?;
    }
    Ok(())
}

async fn plain(connection: &mut MultiplexedConnection, events: u64) -> Outcome<Measured> {
    remove(connection).await?;
    let payload = peer_payload();
    timed(events, async {
        for _ in 0..events / TOGETHER {
            let mut pipeline = redis::pipe();
            for _ in 0..TOGETHER {
                pipeline.cmd("XADD").arg(STREAM).arg("*").arg("payload").arg(&payload[..]).ignore();
            }
            let () = pipeline.query_async(connection).await?;
        }
        Ok(())
    })
    .await
}
