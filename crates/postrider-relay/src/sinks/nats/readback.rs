//! Reads subjects back, by a consumer of the moment that acknowledges nothing.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy};
use async_nats::jetstream::{self, stream::Stream};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use tokio::time::timeout;
use uuid::Uuid;

use super::options::{CheckedOptions, Options};
use super::{connecting, streams, unavailable};
use crate::formats::REPLAY_HEADER;
use crate::readback::{Kept, Readback, Scope, Unreadable};
use crate::sink::SinkError;
use crate::sinks::kept_ids::{id_header, id_in_body};
use crate::sinks::problem;

/// Most messages that are handed out at once.
const BATCH_MAX: usize = 10_000;
/// The longest time without any message while some are missing.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Reads the streams that take the subjects, one after another.
pub(in crate::sinks) struct NatsReadback {
    /// The streams that are not read yet, the last one of them next.
    streams: Vec<Stream>,
    reading: Option<Reading>,
    subjects: Vec<String>,
    /// Not `Nats-Msg-Id`, which a replay has anew.
    id_header: Option<String>,
    since: Option<SystemTime>,
    unreadable: Vec<Unreadable>,
    kept_since: Option<SystemTime>,
}

struct Reading {
    messages: Ordered,
    stream: String,
    /// The last sequence that was there.
    end: u64,
}

impl Options {
    /// Begins to read subjects back.
    pub(in crate::sinks) async fn read_back(
        &self,
        scope: &Scope,
    ) -> Result<NatsReadback, SinkError> {
        let options = self.check().map_err(problem::misconfigured)?;
        let connection = connecting::connect(&options).await?;
        let (mut names, mut unreadable) = (BTreeSet::new(), Vec::new());
        for subject in &scope.topics {
            let found = streams::stream_of(&connection, &options, subject).await;
            match found.map_err(|error| error.verdict(&connection, &options))? {
                Some(name) => drop(names.insert(name)),
                None => unreadable.push(Unreadable {
                    topic: subject.clone(),
                    error: streams::no_stream(subject, &connection, &options),
                }),
            }
        }
        let context = context(&options, connection.client.clone());
        let (mut streams, mut kept_since) = (Vec::new(), None);
        for name in names {
            let stream = context.get_stream(&name).await.map_err(failed)?;
            let state = &stream.cached_info().state;
            if state.first_sequence > 1 {
                kept_since = kept_since.max(Some(SystemTime::from(state.first_timestamp)));
            }
            streams.push(stream);
        }
        let (subjects, since) = (scope.topics.clone(), scope.since);
        let id_header = id_header(scope.format, "ce-");
        let reading = None;
        Ok(NatsReadback { streams, reading, subjects, id_header, since, unreadable, kept_since })
    }
}

fn context(options: &CheckedOptions, client: async_nats::Client) -> jetstream::Context {
    let mut context = match &options.domain {
        Some(domain) => jetstream::with_domain(client, domain),
        None => jetstream::new(client),
    };
    context.set_timeout(options.ack_timeout);
    context
}

impl NatsReadback {
    /// Begins with the next stream that has something; `None` if there is none.
    async fn begin(&mut self) -> Result<Option<Reading>, SinkError> {
        while let Some(stream) = self.streams.pop() {
            let info = stream.cached_info();
            let (name, end) = (info.config.name.clone(), info.state.last_sequence);
            if info.state.messages == 0 {
                continue;
            }
            let deliver_policy = match self.since {
                Some(since) => DeliverPolicy::ByStartTime { start_time: since.into() },
                None => DeliverPolicy::All,
            };
            let config = OrderedConfig {
                deliver_policy,
                replay_policy: ReplayPolicy::Instant,
                ..OrderedConfig::default()
            };
            let consumer = stream.create_consumer(config).await.map_err(failed)?;
            if consumer.cached_info().num_pending == 0 {
                continue;
            }
            let messages = consumer.messages().await.map_err(failed)?;
            return Ok(Some(Reading { messages, stream: name, end }));
        }
        Ok(None)
    }
}

/// The event's id, which stands in a header of this name or in the body.
fn id_of(headers: Option<&HeaderMap>, body: &[u8], name: Option<&str>) -> Option<Uuid> {
    match name {
        None => id_in_body(body),
        Some(name) => header(headers, name).and_then(|id| Uuid::parse_str(id).ok()),
    }
}

fn header<'m>(headers: Option<&'m HeaderMap>, name: &str) -> Option<&'m str> {
    headers?.get(name).map(|value| value.as_str())
}

#[async_trait]
impl Readback for NatsReadback {
    async fn next(&mut self) -> Result<Vec<Kept>, SinkError> {
        let mut kept = Vec::new();
        while kept.len() < BATCH_MAX {
            if self.reading.is_none() {
                self.reading = self.begin().await?;
            }
            let Some(reading) = &mut self.reading else { break };
            let message = timeout(SILENCE_MAX, reading.messages.next()).await;
            let message = message.map_err(|_| silent(&reading.stream))?;
            let message = message.ok_or_else(|| silent(&reading.stream))?.map_err(failed)?;
            let info = message.info().map_err(failed)?;
            let (sequence, published) = (info.stream_sequence, info.published);
            let is_last = info.pending == 0 || sequence >= reading.end;
            if sequence <= reading.end && self.subjects.iter().any(|it| *it == *message.subject) {
                let headers = message.headers.as_ref();
                kept.push(Kept {
                    id: id_of(headers, &message.payload, self.id_header.as_deref()),
                    is_replay: header(headers, REPLAY_HEADER).is_some(),
                    topic: message.subject.to_string(),
                    place: format!("{}@{sequence}", reading.stream),
                    sent_at: Some(SystemTime::from(published)),
                });
            }
            if is_last {
                self.reading = None;
            }
        }
        Ok(kept)
    }

    fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    fn kept_since(&self) -> Option<SystemTime> {
        self.kept_since
    }
}

fn silent(stream: &str) -> SinkError {
    unavailable(format!("the stream {stream} has more messages, and sends none"))
}

fn failed(error: impl std::fmt::Display) -> SinkError {
    unavailable(format!("cannot read the stream back: {error}"))
}
