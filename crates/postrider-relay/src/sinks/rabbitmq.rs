//! Publishes to exchanges of RabbitMQ, by AMQP 0-9-1.
//!
//! The topic is the exchange, and the key is the routing key. Every message is persistent and
//! mandatory. `Ok` means that the server has confirmed the message and has not returned it: at
//! least one queue has it, on disk if the queue is durable, and on the disks of a majority if it
//! is a quorum queue or a stream.
//!
//! All messages of a call are sent before the first confirmation is waited for. A queue can refuse
//! one message and take the next, so the pipeline sends only one of a key at a time.
//!
//! An error of one message closes its channel, with everything that is under way on it. So what
//! can be known before is: whether the exchange is there, and whether the message is too large.
//! See `lane.rs` for how a call uses a connection.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::connecting::Connector;
use self::lane::Lane;
use self::limit::Limit;
use self::options::CheckedOptions;
use super::last_try::LastTry;
use crate::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};

mod connecting;
mod failure;
mod lane;
mod limit;
mod options;
mod properties;
mod publishing;
mod scratch;

pub use options::{Auth, Options};

/// A server confirms after it has written to disk, a few times a second: two connections have the
/// window under way.
const BATCH_EVENTS_MAX: usize = 2048;
/// Confirmed well within the time that a call has, even by a slow server.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// More exchanges than that are not remembered.
const EXCHANGES_MAX: usize = 10_000;

/// Publishes to the exchanges of one virtual host.
pub struct RabbitMqSink {
    options: CheckedOptions,
    connector: Arc<Connector>,
    /// A connection in the making. It goes on when the call that has asked for it is given up, so
    /// that the next call has it: else a call with little time would never come to send anything.
    opening: AsyncMutex<Opening>,
    /// One for each call that can have a lane.
    turns: Semaphore,
    lanes: Mutex<Lanes>,
    /// Those that are known to be there.
    exchanges: Mutex<HashSet<String>>,
    /// What the server has said that it takes at most, if it has.
    limit: Mutex<Option<Limit>>,
}

#[derive(Default)]
struct Opening {
    /// At most one.
    task: JoinSet<Result<Lane, SinkError>>,
    last_try: LastTry,
}

/// Lanes that no call has.
#[derive(Default)]
struct Lanes {
    idle: Vec<Lane>,
    blocked: Vec<Lane>,
}

impl RabbitMqSink {
    fn new(options: CheckedOptions) -> Result<Self, SinkError> {
        Ok(Self {
            connector: Arc::new(Connector::new(&options)?),
            opening: AsyncMutex::default(),
            turns: Semaphore::new(options.connections),
            lanes: Mutex::default(),
            exchanges: Mutex::default(),
            limit: Mutex::default(),
            options,
        })
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchanges(&self) -> MutexGuard<'_, HashSet<String>> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane for a call, unless the server takes nothing now.
    async fn lane(&self) -> Result<Lane, SinkError> {
        if let Some(lane) = self.lanes().take()? {
            return Ok(lane);
        }
        let asked_at = Instant::now();
        let mut opening = self.opening.lock().await;
        opening.last_try.since(asked_at)?;
        // What has become of the last one while nobody asked.
        while let Some(opened) = opening.task.try_join_next() {
            if let Ok(Ok(lane)) = opened
                && lane.is_usable()
            {
                return Ok(lane);
            }
        }
        if opening.task.is_empty() {
            let connector = Arc::clone(&self.connector);
            opening.task.spawn(async move { Lane::open(&connector).await });
        }
        let opened = match opening.task.join_next().await {
            Some(Ok(opened)) => opened,
            _ => Err(lost()),
        };
        opened.inspect_err(|error| opening.last_try.failed(error))
    }

    /// Puts a lane back that a call has had.
    fn keep(&self, mut lane: Lane) {
        if lane.blocked().is_some() {
            self.lanes().blocked.push(lane);
        } else if lane.is_usable() {
            self.lanes().idle.push(lane);
        } else {
            // What has happened to it may have happened to the others, and to the exchanges.
            self.lanes().idle.clear();
            self.exchanges().clear();
        }
    }

    /// The exchanges of messages that are not known to be there.
    fn unknown_exchanges<'a>(&self, messages: &'a [Message], answers: &Answers) -> Vec<&'a str> {
        let known = self.exchanges();
        let mut unknown: Vec<&str> = Vec::new();
        for (message, answer) in messages.iter().zip(&answers.0) {
            let topic = message.topic.as_str();
            if answer.is_none() && !known.contains(topic) && !unknown.contains(&topic) {
                unknown.push(topic);
            }
        }
        unknown
    }

    /// Finds out whether an exchange is there, and makes it if it should.
    async fn find_exchange(&self, lane: &mut Lane, topic: &str) -> Result<(), SinkError> {
        if !lane.has_exchange(topic).await? {
            if !self.options.create_missing {
                return Err(failure::no_exchange(topic, self.connector.place()));
            }
            lane.make_exchange(topic, &self.options.exchange_type).await?;
        }
        let mut exchanges = self.exchanges();
        if exchanges.len() >= EXCHANGES_MAX {
            exchanges.clear();
        }
        exchanges.insert(topic.to_owned());
        Ok(())
    }

    fn limit(&self) -> MutexGuard<'_, Option<Limit>> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the options say, or less if the server takes less.
    fn event_bytes_max(&self) -> usize {
        let mut limit = self.limit();
        *limit = limit.take().filter(Limit::holds);
        let learned = limit.as_ref().map_or(usize::MAX, |limit| limit.event_bytes_max);
        learned.min(self.options.event_bytes_max)
    }

    /// Publishes what has no answer yet, as long as the lane can be used.
    async fn send(&self, lane: &mut Lane, messages: &[Message], answers: &mut Answers) {
        for topic in self.unknown_exchanges(messages, answers) {
            if let Err(error) = self.find_exchange(lane, topic).await {
                answers.give(&error, |index| messages[index].topic == topic);
            }
            if !lane.is_usable() {
                return;
            }
        }
        let unanswered = answers.unanswered();
        let left: Vec<_> = unanswered.iter().map(|index| &messages[*index]).collect();
        let results =
            lane.publish(&left, &self.options.pipeline, self.options.confirm_timeout).await;
        for (index, result) in unanswered.into_iter().zip(results) {
            answers.0[index] = Some(result);
        }
    }
}

impl Lanes {
    /// One that is free, if there is one; an error if the server has blocked any of them.
    fn take(&mut self) -> Result<Option<Lane>, SinkError> {
        while let Some(mut lane) = self.blocked.pop() {
            if let Some(reason) = lane.blocked() {
                let error = failure::blocked(reason);
                self.blocked.push(lane);
                return Err(error);
            }
        }
        while let Some(mut lane) = self.idle.pop() {
            if let Some(reason) = lane.blocked() {
                let error = failure::blocked(reason);
                self.blocked.push(lane);
                return Err(error);
            }
            if lane.is_usable() {
                return Ok(Some(lane));
            }
        }
        Ok(None)
    }
}

fn lost() -> SinkError {
    SinkError::new(FailureKind::Unavailable, "the connection to RabbitMQ is lost")
}

/// The answers of a call, as far as they are known.
struct Answers(Vec<Option<Result<(), SinkError>>>);

impl Answers {
    fn unanswered(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|index| self.0[*index].is_none()).collect()
    }

    /// Answers some of those that have no answer yet with an error.
    fn give(&mut self, error: &SinkError, is_meant: impl Fn(usize) -> bool) {
        for index in self.unanswered().into_iter().filter(|index| is_meant(*index)) {
            self.0[index] = Some(Err(error.clone()));
        }
    }

    /// How large a message can be, if that is what an answer of the server says.
    fn limit(&self) -> Option<usize> {
        let errors = self.0.iter().flatten().filter_map(|answer| answer.as_ref().err());
        let rejections = errors.filter(|error| error.kind == FailureKind::Rejected);
        let limits = rejections.filter_map(|error| failure::size_in(&error.message));
        limits.map(|(_, most)| most).min()
    }

    /// Everything; what has no answer yet gets this error.
    fn complete(self, error: &SinkError) -> Vec<Result<(), SinkError>> {
        self.0.into_iter().map(|answer| answer.unwrap_or_else(|| Err(error.clone()))).collect()
    }
}

#[async_trait]
impl Sink for RabbitMqSink {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            name: "rabbitmq",
            ordered_by_key: false,
            deduplicates: false,
            event_bytes_max: self.event_bytes_max(),
            batch_events_max: BATCH_EVENTS_MAX,
            batch_bytes_max: BATCH_BYTES_MAX,
            calls_max: self.options.connections,
        }
    }

    /// Connects anew, and asks for the exchange if the topic names no field. If there is
    /// none yet, the connection is left to the next call.
    async fn check(&self) -> Result<Vec<String>, SinkError> {
        let mut lane = Lane::open(&self.connector).await?;
        let mut cautions = Vec::new();
        if let Some(topic) = &self.options.pipeline.topic
            && !lane.has_exchange(topic).await?
        {
            if !self.options.create_missing {
                return Err(failure::no_exchange(topic, self.connector.place()));
            }
            cautions.push(format!(
                "the exchange {topic} is made with the first event, and then no queue takes \
                 events from it; make it and bind a queue to it"
            ));
        }
        let is_of_use = self.lanes().idle.is_empty();
        if is_of_use {
            self.keep(lane);
        } else {
            lane.close().await;
        }
        Ok(cautions)
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let event_bytes_max = self.event_bytes_max();
        let pipeline = &self.options.pipeline;
        let refusal = |message| properties::refusal(message, event_bytes_max, pipeline).map(Err);
        let mut answers = Answers(messages.iter().map(refusal).collect());
        if answers.unanswered().is_empty() {
            return answers.complete(&lost());
        }
        let _turn = self.turns.acquire().await.expect("it is never closed");
        let mut lane = match self.lane().await {
            Ok(lane) => lane,
            Err(error) => return answers.complete(&error),
        };
        self.send(&mut lane, messages, &mut answers).await;
        match answers.limit() {
            // The server has closed the channel: there is nothing else to keep of the lane.
            Some(event_bytes_max) => *self.limit() = Some(Limit::new(event_bytes_max, lane)),
            None => self.keep(lane),
        }
        answers.complete(&lost().with_company(true))
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        let lanes = std::mem::take(&mut *self.lanes());
        join_all(lanes.idle.into_iter().map(Lane::close)).await;
        Ok(())
    }
}

impl std::fmt::Debug for RabbitMqSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMqSink")
            .field("servers", &self.options.servers_shown)
            .finish_non_exhaustive()
    }
}
