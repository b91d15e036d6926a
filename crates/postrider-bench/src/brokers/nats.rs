//! NATS JetStream, beside a loop over the same client.

use std::collections::VecDeque;

use async_nats::jetstream::{self, Context, context::ContextBuilder, stream};

use super::{Broker, Rounds, Sizes, from_memory, peer_payload, shape, sink, timed, to_topic, url};
use crate::Outcome;
use crate::report::{Measured, Report, Section};

/// As many as the pipeline has under way.
const IN_FLIGHT: usize = 4096;
const STREAM: &str = "bench";
const SUBJECT: &str = "bench.events";

pub(super) async fn run(sizes: Sizes) -> Outcome<(Report, String)> {
    let events = sizes.events;
    let url = url(Broker::Nats)?;
    let client = connect(&url).await?;
    let version = client.server_info().version;
    let context = ContextBuilder::new().max_ack_inflight(2 * IN_FLIGHT).build(client);
    let mut report = Report::new(Section::Nats);
    report.title(&format!("nats, {}, a stream in files", shape(events)));
    let mut rounds =
        Rounds::new(&["a loop over async-nats, no headers", "postrider, keys and 9 headers"]);
    for _ in 0..super::ROUNDS {
        let plain = plain(&context, events).await?;
        make_stream(&context).await?;
        let measured = from_memory(sink(&url, "").await?, to_topic(SUBJECT)?, events).await?;
        rounds.add(vec![plain, measured]);
    }
    context.delete_stream(STREAM).await?;
    rounds.tell(&mut report, &[(1, "postrider, of the loop's rate")]);
    Ok((report, format!("nats-server {version} on the same machine")))
}

/// The client takes no password from a URL.
pub(super) async fn connect(url: &str) -> Outcome<async_nats::Client> {
    let (user, address) = url.trim_start_matches("nats://").rsplit_once('@').unwrap_or(("", url));
    let options = match user.split_once(':') {
        Some((user, password)) => {
            async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned())
        }
        None => async_nats::ConnectOptions::new(),
    };
    Ok(options.connect(address).await?)
}

/// Makes the stream anew.
async fn make_stream(context: &Context) -> Outcome<()> {
    // There may be none.
    let _ = context.delete_stream(STREAM).await;
    let config = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec![SUBJECT.to_owned()],
        storage: stream::StorageType::File,
        ..jetstream::stream::Config::default()
    };
    context.create_stream(config).await?;
    Ok(())
}

async fn plain(context: &Context, events: u64) -> Outcome<Measured> {
    make_stream(context).await?;
    let payload = peer_payload();
    timed(events, async {
        let mut acks = VecDeque::with_capacity(IN_FLIGHT);
        for _ in 0..events {
            if acks.len() == IN_FLIGHT {
                // The oldest quarter: acks come in their order.
                for ack in acks.drain(..IN_FLIGHT / 4) {
                    let ack: jetstream::context::PublishAckFuture = ack;
                    ack.await?;
                }
            }
            acks.push_back(context.publish(SUBJECT, payload.clone()).await?);
        }
        for ack in acks {
            ack.await?;
        }
        Ok(())
    })
    .await
}
