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
mod reading;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline};

use self::commands::Group;
use self::entries::Id;
use self::failure::failed;
use self::reading::{CLAIM_EVERY_MAX, Reading};
use crate::subscription::{Received, Subscription, SubscriptionError};

/// How long the server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
const VISIBILITY: Duration = Duration::from_secs(30);

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
        self.ask(&pipeline).await
    }

    async fn ask<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Result<T, SubscriptionError> {
        let mut connection = match &mut *self.telling.lock().await {
            Some(connection) => connection.clone(),
            empty => empty.insert(self.connect().await?).clone(),
        };
        let answer = pipeline.query_async(&mut connection).await;
        if answer.is_err() {
            *self.telling.lock().await = None;
        }
        answer.map_err(failed)
    }

    /// Lets others take over at once what is left, also what came by a read that nobody waited for.
    async fn release_all(&self) -> Result<(), SubscriptionError> {
        let mut pipeline = redis::pipe();
        for stream in &self.streams {
            pipeline.add_command(self.group.pending(stream));
        }
        // Ids, consumers, milliseconds and deliveries.
        let pending: Vec<Vec<(String, String, u64, u64)>> = self.ask(&pipeline).await?;
        let mut handles = Vec::new();
        for (stream, entries) in self.streams.iter().zip(pending) {
            let ids = entries.iter().filter_map(|(id, ..)| Id::read(id.as_bytes()));
            handles.extend(ids.map(|id| RedisHandle { stream: Arc::clone(stream), id }));
        }
        self.release(handles).await
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
            empty => empty.insert(Reading::open(self).await?),
        };
        match reading.read(self, max).await {
            Ok(received) => {
                self.under_way().extend(received.iter().map(|one| one.handle.clone()));
                Ok(received)
            }
            Err(error) => {
                *place = None;
                Err(error)
            }
        }
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
        // Otherwise others take over after the visibility.
        let _ = self.release_all().await;
        *self.telling.lock().await = None;
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Redis");
        shown.field("group", &self.group).field("streams", &self.streams).finish_non_exhaustive()
    }
}
