//! Subscribes to streams of Redis or Valkey, as a consumer of a group. It takes Redis 6.2 or later.
//!
//! The group is made if it is missing, at the beginning of its stream; so is the stream. A group
//! with one consumer keeps the order of each key; with several, each gets a part of the entries,
//! whatever their keys are. Whoever wants both spreads the keys over streams and gives each
//! instance its own.
//!
//! An entry that was delivered stays with its consumer until it is acknowledged. So a consumer
//! begins with what it had before, in its order: give an instance the same name when it comes back.
//! What another one has left lying for longer than the visibility is taken over from it.

mod commands;
mod entries;
mod failure;

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Value};

use self::commands::Group;
use self::entries::{Entry, Id};
use self::failure::failed;
use crate::subscription::{Received, Subscription, SubscriptionError};

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
const VISIBILITY: Duration = Duration::from_secs(30);
/// The longest time between looks at what others have left lying. Reading waits no longer.
const CLAIM_EVERY_MAX: Duration = Duration::from_secs(1);
/// The most entries of one stream that are read at once.
const COUNT_MAX: usize = 1024;

/// A subscription to streams.
pub struct Redis {
    client: Client,
    group: Group,
    streams: Vec<Arc<str>>,
    visibility: Duration,
    reading: tokio::sync::Mutex<Option<Reading>>,
    /// For all else: reading waits at the server, and nothing overtakes it there.
    telling: tokio::sync::Mutex<Option<MultiplexedConnection>>,
    under_way: Mutex<HashSet<RedisHandle>>,
}

/// An entry that was delivered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RedisHandle {
    stream: Arc<str>,
    id: Id,
}

/// What entries come by.
struct Reading {
    connection: MultiplexedConnection,
    /// For each stream, how far the consumer's own entries of before were read, until all were.
    own: Vec<Option<Id>>,
    /// The same for the entries that others have left lying.
    left: Vec<Option<Id>>,
    /// When these are looked for again.
    claim_at: Instant,
    /// What was read and not received.
    ready: VecDeque<Received<RedisHandle>>,
}

impl Redis {
    /// Joins a group as the consumer of this name, which no other instance may have.
    pub fn subscribe(
        client: Client,
        group: &str,
        consumer: &str,
        streams: &[&str],
    ) -> Result<Self, SubscriptionError> {
        if group.is_empty() || consumer.is_empty() {
            return Err(SubscriptionError::mistake("name the group, and the consumer in it"));
        }
        if streams.is_empty() {
            return Err(SubscriptionError::mistake("there are no streams; name at least one"));
        }
        Ok(Self {
            client,
            group: Group { name: group.to_owned(), consumer: consumer.to_owned() },
            streams: streams.iter().map(|stream| Arc::from(*stream)).collect(),
            visibility: VISIBILITY,
            reading: tokio::sync::Mutex::default(),
            telling: tokio::sync::Mutex::default(),
            under_way: Mutex::default(),
        })
    }

    /// After which time another consumer takes over an entry, unless it is still worked on.
    /// Defaults to 30 s. It should be the same for the whole group.
    #[must_use]
    pub fn with_visibility(mut self, visibility: Duration) -> Self {
        self.visibility = visibility.max(Duration::from_millis(10));
        self
    }

    fn under_way(&self) -> MutexGuard<'_, HashSet<RedisHandle>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, handles: &[RedisHandle]) {
        let mut under_way = self.under_way();
        for handle in handles {
            under_way.remove(handle);
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, SubscriptionError> {
        let timeout = Some(CLAIM_EVERY_MAX + TIMEOUT);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(timeout);
        let made = self.client.get_multiplexed_async_connection_with_config(&config).await;
        made.map_err(failed)
    }

    /// Connects for reading, and makes the groups that are missing.
    async fn open(&self) -> Result<Reading, SubscriptionError> {
        let mut connection = self.connect().await?;
        for stream in &self.streams {
            let made = self.group.create(stream).exec_async(&mut connection).await;
            if let Err(error) = made
                && error.code() != Some("BUSYGROUP")
            {
                return Err(failed(error));
            }
        }
        Ok(Reading {
            connection,
            own: vec![Some(Id::MIN); self.streams.len()],
            left: vec![None; self.streams.len()],
            claim_at: Instant::now(),
            ready: VecDeque::new(),
        })
    }

    /// Reads once: what was the consumer's own before, what others have left lying, or what is new.
    async fn read(&self, reading: &mut Reading, max: usize) -> Result<(), SubscriptionError> {
        let count = (max / self.streams.len()).clamp(1, COUNT_MAX);
        let now = Instant::now();
        if let Some((index, after)) = first(&reading.own) {
            let stream = &self.streams[index];
            let answer = ask(reading, &self.group.read_own(stream, after, count)).await?;
            let read = entries::of_read(answer).map_err(failed)?;
            let entries: Vec<_> = read.into_iter().flat_map(|(_, entries)| entries).collect();
            reading.own[index] = entries.last().map(|last| last.id);
            return self.take_in(reading, stream, entries).await;
        }
        if let Some((index, from)) = first(&reading.left) {
            let stream = &self.streams[index];
            let claim = self.group.claim(stream, self.visibility, from, count);
            let answer = ask(reading, &claim).await?;
            let (next, entries) = entries::of_claim(answer).map_err(failed)?;
            reading.left[index] = Some(next).filter(|next| *next != Id::MIN);
            return self.take_in(reading, stream, entries).await;
        }
        if now >= reading.claim_at {
            reading.claim_at = now + CLAIM_EVERY_MAX.min(self.visibility / 2);
            reading.left.fill(Some(Id::MIN));
            return Ok(());
        }
        let wait = reading.claim_at - now;
        let answer = ask(reading, &self.group.read_new(&self.streams, wait, count)).await?;
        for (stream, entries) in entries::of_read(answer).map_err(failed)? {
            if let Some(stream) = self.streams.iter().find(|own| ***own == *stream) {
                self.take_in(reading, stream, entries).await?;
            }
        }
        Ok(())
    }

    async fn take_in(
        &self,
        reading: &mut Reading,
        stream: &Arc<str>,
        entries: Vec<Entry>,
    ) -> Result<(), SubscriptionError> {
        let mut removed = Vec::new();
        for entry in entries {
            let handle = RedisHandle { stream: Arc::clone(stream), id: entry.id };
            match entry.into_incoming(stream) {
                None => removed.push(handle.id),
                Some(_) if self.under_way().contains(&handle) => {}
                Some(incoming) => reading.ready.push_back(Received { handle, incoming }),
            }
        }
        // Entries that were trimmed away are of no use to anybody.
        for command in self.group.acknowledge(stream, &removed) {
            ask(reading, &command).await?;
        }
        Ok(())
    }

    /// Tells the server something about entries, with as few commands as there can be.
    async fn tell(
        &self,
        handles: &[RedisHandle],
        commands: impl Fn(&str, &[Id]) -> Vec<Cmd>,
    ) -> Result<(), SubscriptionError> {
        let mut pipeline = redis::pipe();
        for stream in &self.streams {
            let own = handles.iter().filter(|handle| handle.stream == *stream);
            let ids: Vec<Id> = own.map(|handle| handle.id).collect();
            for command in commands(stream, &ids) {
                pipeline.add_command(command);
            }
        }
        if pipeline.is_empty() {
            return Ok(());
        }
        let mut connection = match &mut *self.telling.lock().await {
            Some(connection) => connection.clone(),
            empty => empty.insert(self.connect().await?).clone(),
        };
        let told = pipeline.query_async::<()>(&mut connection).await;
        if told.is_err() {
            *self.telling.lock().await = None;
        }
        told.map_err(failed)
    }
}

#[async_trait]
impl Subscription for Redis {
    type Handle = RedisHandle;

    fn name(&self) -> &'static str {
        "redis"
    }

    fn visibility(&self) -> Option<Duration> {
        Some(self.visibility)
    }

    async fn receive(&self, max: usize) -> Result<Vec<Received<RedisHandle>>, SubscriptionError> {
        let mut place = self.reading.lock().await;
        let reading = match &mut *place {
            Some(reading) => reading,
            empty => empty.insert(self.open().await?),
        };
        while reading.ready.is_empty() {
            if let Err(error) = self.read(reading, max).await {
                // What was read and not received is the consumer's own now.
                *place = None;
                return Err(error);
            }
        }
        let count = reading.ready.len().min(max);
        let received: Vec<_> = reading.ready.drain(..count).collect();
        self.under_way().extend(received.iter().map(|one| one.handle.clone()));
        Ok(received)
    }

    async fn acknowledge(&self, handles: Vec<RedisHandle>) -> Result<(), SubscriptionError> {
        let told = self.tell(&handles, |stream, ids| self.group.acknowledge(stream, ids)).await;
        self.forget(&handles);
        told
    }

    async fn release(&self, handles: Vec<RedisHandle>) -> Result<(), SubscriptionError> {
        let told = self.tell(&handles, |stream, ids| self.group.release(stream, ids)).await;
        self.forget(&handles);
        told
    }

    async fn extend(&self, handles: &[RedisHandle]) -> Result<(), SubscriptionError> {
        self.tell(handles, |stream, ids| self.group.extend(stream, ids)).await
    }

    async fn close(&self) {
        *self.reading.lock().await = None;
        *self.telling.lock().await = None;
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Redis");
        shown.field("group", &self.group).field("streams", &self.streams).finish_non_exhaustive()
    }
}

async fn ask(reading: &mut Reading, command: &Cmd) -> Result<Value, SubscriptionError> {
    command.query_async(&mut reading.connection).await.map_err(failed)
}

/// The first that is not read to its end.
fn first(progress: &[Option<Id>]) -> Option<(usize, Id)> {
    progress.iter().enumerate().find_map(|(index, id)| Some((index, (*id)?)))
}
