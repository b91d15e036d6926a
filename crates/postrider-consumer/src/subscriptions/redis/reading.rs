//! How entries come: first what was the consumer's own before, then what others have left lying,
//! then what is new.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::entries::{self, Entry, Id};
use super::failure::failed;
use super::{Redis, RedisHandle};
use crate::subscription::{Received, SubscriptionError};

/// The longest time between looks at what others have left lying. Reading waits no longer.
pub(super) const CLAIM_EVERY_MAX: Duration = Duration::from_secs(1);
/// The most entries of one stream that are read at once.
const COUNT_MAX: usize = 1024;

/// What entries come by.
pub(super) struct Reading {
    connection: MultiplexedConnection,
    /// For each stream, how far the consumer's own entries of before were read, until all were.
    own: Vec<Option<Id>>,
    /// The same for the entries that others have left lying.
    left: Vec<Option<Id>>,
    /// When these are looked for again.
    claim_at: Instant,
    /// What was read and not received.
    ready: VecDeque<Received<RedisHandle>>,
    is_under_way: bool,
}

impl Reading {
    /// Connects, and makes the groups that are missing.
    pub(super) async fn open(redis: &Redis) -> Result<Self, SubscriptionError> {
        let mut connection = redis.connect().await?;
        for stream in &redis.streams {
            let made = redis.group.create(stream).exec_async(&mut connection).await;
            if let Err(error) = made
                && error.code() != Some("BUSYGROUP")
            {
                return Err(failed(error));
            }
        }
        Ok(Self {
            connection,
            own: vec![Some(Id::MIN); redis.streams.len()],
            left: vec![None; redis.streams.len()],
            claim_at: Instant::now(),
            ready: VecDeque::new(),
            is_under_way: false,
        })
    }

    /// Waits for entries, at least one and at most so many.
    pub(super) async fn read(
        &mut self,
        redis: &Redis,
        max: usize,
    ) -> Result<Vec<Received<RedisHandle>>, SubscriptionError> {
        if self.is_under_way {
            // Nobody waited for the last read, and what came by it is the consumer's own now.
            self.ready.clear();
            self.own.fill(Some(Id::MIN));
        }
        self.is_under_way = true;
        while self.ready.is_empty() {
            self.read_once(redis, max).await?;
        }
        self.is_under_way = false;
        let count = self.ready.len().min(max);
        Ok(self.ready.drain(..count).collect())
    }

    async fn read_once(&mut self, redis: &Redis, max: usize) -> Result<(), SubscriptionError> {
        let Redis { group, streams, visibility, .. } = redis;
        let count = (max / streams.len()).clamp(1, COUNT_MAX);
        let now = Instant::now();
        if let Some((index, after)) = first(&self.own) {
            let stream = &streams[index];
            let answer = self.ask(&group.read_own(stream, after, count)).await?;
            let read = entries::of_read(answer).map_err(failed)?;
            let entries: Vec<_> = read.into_iter().flat_map(|(_, entries)| entries).collect();
            self.own[index] = entries.last().map(|last| last.id);
            return self.take_in(redis, stream, entries).await;
        }
        if let Some((index, from)) = first(&self.left) {
            let stream = &streams[index];
            let answer = self.ask(&group.claim(stream, *visibility, from, count)).await?;
            let (next, entries) = entries::of_claim(answer).map_err(failed)?;
            self.left[index] = Some(next).filter(|next| *next != Id::MIN);
            return self.take_in(redis, stream, entries).await;
        }
        if now >= self.claim_at {
            self.claim_at = now + CLAIM_EVERY_MAX.min(*visibility / 2);
            self.left.fill(Some(Id::MIN));
            return Ok(());
        }
        let answer = self.ask(&group.read_new(streams, self.claim_at - now, count)).await?;
        for (stream, entries) in entries::of_read(answer).map_err(failed)? {
            if let Some(stream) = streams.iter().find(|own| ***own == *stream) {
                self.take_in(redis, stream, entries).await?;
            }
        }
        Ok(())
    }

    async fn take_in(
        &mut self,
        redis: &Redis,
        stream: &Arc<str>,
        entries: Vec<Entry>,
    ) -> Result<(), SubscriptionError> {
        let mut removed = Vec::new();
        for entry in entries {
            let handle = RedisHandle { stream: Arc::clone(stream), id: entry.id };
            match entry.into_incoming(stream) {
                None => removed.push(handle.id),
                Some(_) if redis.under_way().contains(&handle) => {}
                Some(incoming) => self.ready.push_back(Received { handle, incoming }),
            }
        }
        // Entries that were trimmed away are of no use to anybody.
        for command in redis.group.acknowledge(stream, &removed) {
            self.ask(&command).await?;
        }
        Ok(())
    }

    async fn ask(&mut self, command: &Cmd) -> Result<Value, SubscriptionError> {
        command.query_async(&mut self.connection).await.map_err(failed)
    }
}

/// The first that is not read to its end.
fn first(progress: &[Option<Id>]) -> Option<(usize, Id)> {
    progress.iter().enumerate().find_map(|(index, id)| Some((index, (*id)?)))
}
