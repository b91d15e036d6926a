//! Appends events to Redis Streams.
//!
//! One script per call appends all its messages, in their order and in one step (see
//! `append.rs`); with `dedupe_events = 0` it is plain commands (`plain.rs`). `Ok` means that the server has answered so, and with `wait_replicas` that so many
//! replicas have the event, too; what that survives is up to the server's `appendonly` and
//! `appendfsync`, which a check looks at. Calls share one connection (`connection.rs`), over which
//! they follow one another without waiting for answers.
//!
//! An answer that is lost does no harm: what is sent again is recognised by the event's id.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use redis::{Cmd, Value};

use self::append::{Appending, ids_keys, is_of_ids};
use self::connection::Connector;
use self::options::CheckedOptions;
use super::PipelineFacts;
use crate::sink::{Message, Sink, SinkCapabilities, SinkError};

mod append;
mod check;
mod connection;
mod failure;
mod options;
mod plain;
mod readback;
mod scratch;

pub use options::Options;

/// More make a call no faster, and the server serves nobody else meanwhile.
const BATCH_EVENTS_MAX: usize = 500;
/// The same for large ones.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// So that the server has always something to do while answers are on their way.
const CALLS_MAX: usize = 4;

/// Appends to the streams of one server.
pub struct RedisSink {
    connector: Connector,
    appending: Appending,
    event_bytes_max: usize,
    wait_replicas: usize,
    wait_timeout: Duration,
    pipeline: PipelineFacts,
}

impl RedisSink {
    fn new(checked: CheckedOptions) -> Result<Self, SinkError> {
        if let Some(tls) = &checked.login.tls {
            tls.client_config()?;
        }
        Ok(Self {
            connector: Connector::new(checked.login),
            appending: checked.appending,
            event_bytes_max: checked.event_bytes_max,
            wait_replicas: checked.wait_replicas,
            wait_timeout: checked.wait_timeout,
            pipeline: checked.pipeline,
        })
    }

    /// What is answered if the server would hang up on a message. The pipeline has not sent one
    /// on purpose: it did not know the limit before there was a connection.
    async fn too_large(&self, messages: &[Message]) -> Option<Vec<Result<(), SinkError>>> {
        if let Err(error) = self.connector.ready().await {
            return Some(vec![Err(error); messages.len()]);
        }
        let (server, max) = (self.connector.server(), self.connector.value_bytes_max());
        messages.iter().any(|message| message.body.len() > max).then(|| {
            let answer = |message: &Message| match message.body.len() {
                bytes if bytes > max => Err(failure::too_large(server, bytes, max)),
                _ => Err(failure::not_sent(server)),
            };
            messages.iter().map(answer).collect()
        })
    }

    async fn publish_to_streams(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        if messages.is_empty() {
            return Vec::new();
        }
        if let Some(answers) = self.too_large(messages).await {
            return answers;
        }
        self.append(messages).await
    }

    async fn append(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        match self.appending.ids_max {
            0 => {
                let answers = self.append_plainly(messages).await;
                answers.unwrap_or_else(|error| vec![Err(error); messages.len()])
            }
            _ => self.append_by_script(messages).await,
        }
    }

    async fn append_plainly(
        &self,
        messages: &[Message],
    ) -> Result<Vec<Result<(), SinkError>>, SinkError> {
        let (server, now) = (self.connector.server(), SystemTime::now());
        let commands = messages.iter().map(|message| self.appending.plain_command(message, now));
        let (said, replicated) = self.ask(commands.collect()).await?;
        let answers = messages.iter().zip(said);
        let verdict = |(message, said)| {
            plain::verdict(server, message, said).and_then(|()| replicated.clone())
        };
        Ok(answers.map(verdict).collect())
    }

    /// The script ends at the first stream that cannot be used. That says nothing about others:
    /// what goes to those is not tried yet, and follows by a script of its own.
    async fn append_by_script(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let mut answers = vec![Ok(()); messages.len()];
        let mut left: Vec<usize> = (0..messages.len()).collect();
        while !left.is_empty() {
            let command = match left.len() == messages.len() {
                true => self.appending.command(messages, &[]),
                false => {
                    let some: Vec<_> = left.iter().map(|index| messages[*index].clone()).collect();
                    self.appending.command(&some, &[])
                }
            };
            let (count, failure) = match self.ask(vec![command]).await {
                Ok((said, replicated)) => {
                    let (count, failure) = self.appended(said.into_iter().next());
                    for index in left.iter().take(count) {
                        answers[*index] = replicated.clone();
                    }
                    (count, failure)
                }
                Err(error) => (0, Some(Unappended { key: None, error })),
            };
            let failure = failure.unwrap_or_else(|| Unappended {
                key: None,
                error: failure::not_understood(self.connector.server()),
            });
            let untried = left.split_off(count.min(left.len()));
            left = failure.spread_over(&untried, messages, &mut answers);
        }
        answers
    }

    /// Sends commands. Answers what the server said to each, and whether replicas have it all.
    async fn ask(
        &self,
        mut commands: Vec<Cmd>,
    ) -> Result<(Vec<Value>, Result<(), SinkError>), SinkError> {
        commands.extend(self.wait());
        let mut said = self.connector.run(commands).await?;
        let replicas = if self.wait_replicas > 0 { said.pop() } else { None };
        let replicated = replicas.map_or(Ok(()), |have| self.replicated(have));
        Ok((said, replicated))
    }

    /// How many messages of a call, from the first one on, are in their streams, and what is
    /// wrong with the next one if there is one.
    fn appended(&self, answer: Option<Value>) -> (usize, Option<Unappended>) {
        let server = self.connector.server();
        let count_of = |count| usize::try_from(count).unwrap_or_default();
        let of_server = |error| Some(Unappended { key: None, error });
        match answer {
            Some(Value::Int(count)) => (count_of(count), None),
            Some(Value::ServerError(error)) => (0, of_server(failure::answered(server, &error))),
            Some(Value::Array(parts)) => match &parts[..] {
                [Value::Int(count), Value::BulkString(key), Value::BulkString(said)] => {
                    let (key, said) = (String::from_utf8_lossy(key), String::from_utf8_lossy(said));
                    let error = failure::unusable(server, &key, &said);
                    let key = Some(key.into_owned());
                    (count_of(*count), Some(Unappended { key, error }))
                }
                _ => (0, of_server(failure::not_understood(server))),
            },
            _ => (0, of_server(failure::not_understood(server))),
        }
    }

    /// What waits for replicas to have all that was written before.
    fn wait(&self) -> Option<Cmd> {
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.wait_replicas).arg(self.wait_timeout.as_millis().to_string());
        (self.wait_replicas > 0).then_some(wait)
    }

    fn replicated(&self, answer: Value) -> Result<(), SinkError> {
        let (server, wanted) = (self.connector.server(), self.wait_replicas);
        match answer {
            Value::Int(have) if usize::try_from(have).is_ok_and(|have| have >= wanted) => Ok(()),
            Value::Int(have) => Err(failure::too_few_replicas(server, have, wanted)),
            Value::ServerError(error) => Err(failure::answered(server, &error)),
            _ => Err(failure::not_understood(server)),
        }
    }
}

/// Why a script has ended before the last message.
struct Unappended {
    /// The key that it is about, if it is about one: a stream, or what is remembered of it.
    key: Option<String>,
    error: SinkError,
}

impl Unappended {
    /// Answers for messages that are not in their streams. Those that it says nothing about come
    /// back: they go to other streams.
    fn spread_over(
        self,
        untried: &[usize],
        messages: &[Message],
        answers: &mut [Result<(), SinkError>],
    ) -> Vec<usize> {
        let Self { key, error } = self;
        let key = key.filter(|_| error.about_topic);
        let is_hit = |index: usize| {
            let topic = &messages[index].topic;
            let of_topic = |key: &String| key == topic || ids_keys(topic).contains(key);
            key.as_ref().is_some_and(of_topic)
        };
        let is_of_one_stream = untried.iter().any(|index| is_hit(*index));
        // Nothing of a key may follow what is missing of it.
        let mut stopped = HashSet::new();
        let mut others = Vec::new();
        for index in untried {
            let key = messages[*index].event.key();
            if !is_of_one_stream || is_hit(*index) {
                answers[*index] = Err(error.clone());
                stopped.insert(key);
            } else if stopped.contains(key) {
                answers[*index] = Err(failure::not_in_order());
            } else {
                others.push(*index);
            }
        }
        others
    }
}

#[async_trait]
impl Sink for RedisSink {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            name: "redis",
            ordered_by_key: self.appending.ids_max > 0,
            deduplicates: self.appending.ids_max > 0,
            event_bytes_max: self.event_bytes_max.min(self.connector.value_bytes_max()),
            batch_events_max: BATCH_EVENTS_MAX,
            batch_bytes_max: BATCH_BYTES_MAX,
            calls_max: CALLS_MAX,
        }
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        self.look().await
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        if !messages.iter().any(|message| is_of_ids(&message.topic)) {
            return self.publish_to_streams(messages).await;
        }
        let (mut answers, mut others) = (Vec::with_capacity(messages.len()), Vec::new());
        // Nothing of a key may follow what is missing of it.
        let mut stopped = HashSet::new();
        for message in messages {
            let key = message.event.key();
            answers.push(if is_of_ids(&message.topic) {
                stopped.insert(key);
                Some(Err(failure::reserved(&message.topic)))
            } else if stopped.contains(key) {
                Some(Err(failure::not_in_order()))
            } else {
                others.push(message.clone());
                None
            });
        }
        let mut of_others = self.publish_to_streams(&others).await.into_iter();
        let answer = |own: Option<_>| {
            own.or_else(|| of_others.next()).expect("there is an answer for each message")
        };
        answers.into_iter().map(answer).collect()
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        self.connector.close().await;
        Ok(())
    }
}

impl std::fmt::Debug for RedisSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisSink")
            .field("server", &self.connector.server().to_string())
            .finish_non_exhaustive()
    }
}
