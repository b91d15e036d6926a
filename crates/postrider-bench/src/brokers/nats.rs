//! NATS JetStream, beside a loop over the same client.

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::context::{ContextBuilder, PublishAckFuture};
use async_nats::jetstream::{self, Context, stream};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use postrider_relay::sink::Message;

use super::same::{self, Messages};
use super::{
    Broker, IN_FLIGHT, Rounds, Sizes, UnderWay, from_memory, peer_payload, shape, sink, timed,
    to_topic, url,
};
use crate::Outcome;
use crate::report::{Measured, Report, Section};

const STREAM: &str = "bench";
const SUBJECT: &str = "bench.events";

pub(super) async fn run(sizes: Sizes) -> Outcome<(Report, String)> {
    let events = sizes.events;
    let url = url(Broker::Nats)?;
    let client = connect(&url).await?;
    let version = client.server_info().version;
    let context = ContextBuilder::new().max_ack_inflight(2 * IN_FLIGHT).build(client);
    check(&context, &url).await?;
    let mut report = Report::new(Section::Nats);
    report.title(&format!("nats, {}, a stream in files", shape(events)));
    let mut rounds = Rounds::new(&[
        "a loop over async-nats, no headers",
        "a loop over async-nats, keys and 9 headers",
        "postrider, keys and 9 headers",
    ]);
    for _ in 0..super::ROUNDS {
        let plain = plain(&context, events).await?;
        let same = dressed(&context, events).await?;
        make_stream(&context).await?;
        let measured = from_memory(sink(&url, "").await?, to_topic(SUBJECT)?, events).await?;
        rounds.add(vec![plain, same, measured]);
    }
    context.delete_stream(STREAM).await?;
    rounds.tell(&mut report, &[(2, 0, "postrider, of the loop's rate")]);
    let same = "postrider, of the loop's rate with the same messages";
    rounds.tell_shares(&mut report, &[(2, 1, same)]);
    Ok((report, format!("nats-server {version} on the same machine")))
}

/// A new stream.
pub(super) async fn fresh_place(url: &str) -> Outcome<String> {
    make_stream(&jetstream::new(connect(url).await?)).await?;
    Ok(SUBJECT.to_owned())
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

/// Bare payloads.
async fn plain(context: &Context, events: u64) -> Outcome<Measured> {
    make_stream(context).await?;
    let payload = peer_payload();
    timed(events, async {
        let mut acks = UnderWay::new();
        for _ in 0..events {
            acks.add(acked(context.publish(SUBJECT, payload.clone()).await?)).await?;
        }
        acks.end().await
    })
    .await
}

/// What Postrider sends.
async fn dressed(context: &Context, events: u64) -> Outcome<Measured> {
    make_stream(context).await?;
    let messages = Messages::start(events, SUBJECT).await?;
    timed(events, async {
        let mut acks = UnderWay::new();
        loop {
            let batch = messages.next().await?;
            if batch.is_empty() {
                return acks.end().await;
            }
            for message in &batch {
                acks.add(acked(publish(context, message).await?)).await?;
            }
        }
    })
    .await
}

async fn publish(context: &Context, message: &Message) -> Outcome<PublishAckFuture> {
    let texts = same::texts(message);
    let texts = texts.map(|(name, value)| (HeaderName::from_static(name), value.into_owned()));
    let id = (NATS_MESSAGE_ID, message.event.id().to_string());
    let headers = texts.chain([id]).map(|(name, value)| (name, HeaderValue::from(value))).collect();
    Ok(context.publish_with_headers(SUBJECT, headers, message.body.clone()).await?)
}

async fn acked(ack: PublishAckFuture) -> Outcome<()> {
    ack.await?;
    Ok(())
}

/// Fails if these are not Postrider's messages.
async fn check(context: &Context, url: &str) -> Outcome<()> {
    let messages = same::one(SUBJECT).await?;
    make_stream(context).await?;
    acked(publish(context, &messages[0]).await?).await?;
    let peers = arrived(context).await?;
    make_stream(context).await?;
    same::publish(url, "", &messages).await?;
    same::compare(&peers, &arrived(context).await?)
}

/// The first message of the stream.
async fn arrived(context: &Context) -> Outcome<(HeaderMap, Bytes)> {
    let message = context.get_stream(STREAM).await?.get_raw_message(1).await?;
    Ok((message.headers, message.payload))
}
