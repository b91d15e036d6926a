//! Subscribes to the events that a consumer keeps in its own database: the stored form of the
//! inbox, which takes deliveries in at once and handles them later.
//!
//! # Design
//!
//! - **Order.** Of each key only the first message may be taken, and those that follow it without
//!   a gap along with it. A message is *leased* by moving its due time, so a key whose first
//!   message is not due is with somebody, who works on its messages in their order.
//! - **Cost.** The first messages are found by going from key to key in the index, never by looking
//!   through the messages of a key. Each look goes on where the last one has ended, so keys take
//!   turns, and those that are under way are passed once in a round.
//! - **Several instances.** The first message is locked before those after it are looked at, and
//!   whoever comes second passes the key over.
//! - **A crash** leaves messages leased; they are due again after the visibility.

#[cfg(feature = "sqlx-postgres")]
mod postgres;
#[cfg(feature = "sqlx-sqlite")]
mod sqlite;
mod table;

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;
use uuid::Uuid;

use self::table::{Key, Look, Table, first_key};
use crate::subscription::{Received, Subscription, SubscriptionError};

const VISIBILITY: Duration = Duration::from_secs(60);
/// The pause after nothing was found, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// The most messages that are taken at once.
const TAKEN_MAX: usize = 1024;
/// The most keys that one look goes over.
const KEYS_MAX: usize = 4096;

/// A subscription to the messages of one consumer, in a pool of sqlx.
pub struct Stored<P> {
    pool: P,
    consumer: String,
    visibility: Duration,
    /// The last key that was looked at.
    after: Mutex<Key>,
    /// Something may have become the first of its key.
    removed: Notify,
}

/// A message that was taken.
#[derive(Clone, Copy, Debug)]
pub struct StoredHandle {
    event_id: Uuid,
}

impl<P> Stored<P> {
    /// Reads what is [stored](postrider::Inbox::store) for the consumer of this name, which is the
    /// name that the [`Consumer`](crate::Consumer) has, too.
    pub fn subscribe(pool: P, consumer: &str) -> Self {
        Self {
            pool,
            consumer: consumer.to_owned(),
            visibility: VISIBILITY,
            after: Mutex::new(first_key()),
            removed: Notify::new(),
        }
    }

    /// After which time another instance takes a message, unless it is still worked on. Defaults
    /// to 60 s.
    #[must_use]
    pub fn with_visibility(mut self, visibility: Duration) -> Self {
        self.visibility = visibility;
        self
    }
}

impl<P: Table> Stored<P> {
    /// Takes what is due, if there is any: goes from key to key, once around.
    async fn take(
        &self,
        after: &mut Key,
        max: usize,
    ) -> Result<Vec<Received<StoredHandle>>, SubscriptionError> {
        let max = max.clamp(1, TAKEN_MAX);
        let mut is_whole_round = *after == first_key();
        loop {
            let look = Look { after, keys_max: KEYS_MAX, due_max: max };
            let heads = self.pool.look(&self.consumer, look).await?;
            let keys: Vec<_> =
                heads.iter().filter(|head| head.is_due).map(|head| &head.key).collect();
            let is_end = heads.len() < KEYS_MAX && keys.len() < max;
            let taken = match max.checked_div(keys.len()) {
                Some(of_key) => {
                    self.pool.lease(&self.consumer, &keys, of_key, self.visibility).await?
                }
                None => Vec::new(),
            };
            *after = match heads.into_iter().next_back() {
                Some(last) if !is_end => last.key,
                _ => first_key(),
            };
            if !taken.is_empty() || (is_end && is_whole_round) {
                let received = |message: table::Message| Received {
                    handle: StoredHandle { event_id: message.event_id },
                    incoming: message.into_incoming(&self.consumer),
                };
                return Ok(taken.into_iter().map(received).collect());
            }
            is_whole_round |= is_end;
        }
    }
}

#[async_trait]
impl<P: Table> Subscription for Stored<P> {
    type Handle = StoredHandle;

    fn name(&self) -> &'static str {
        "stored"
    }

    fn visibility(&self) -> Option<Duration> {
        Some(self.visibility)
    }

    async fn receive(&self, max: usize) -> Result<Vec<Received<StoredHandle>>, SubscriptionError> {
        let mut after = self.after.lock().await;
        let mut pause = PAUSE_MIN;
        loop {
            let taken = self.take(&mut after, max).await?;
            if !taken.is_empty() {
                return Ok(taken);
            }
            if timeout(pause, self.removed.notified()).await.is_err() {
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    async fn acknowledge(&self, handles: Vec<StoredHandle>) -> Result<(), SubscriptionError> {
        let removed = self.pool.remove(&self.consumer, &ids(&handles)).await;
        self.removed.notify_one();
        removed
    }

    async fn release(&self, handles: Vec<StoredHandle>) -> Result<(), SubscriptionError> {
        self.pool.set_due(&self.consumer, &ids(&handles), Duration::ZERO).await
    }

    async fn extend(&self, handles: &[StoredHandle]) -> Result<(), SubscriptionError> {
        self.pool.set_due(&self.consumer, &ids(handles), self.visibility).await
    }
}

impl<P> std::fmt::Debug for Stored<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stored").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

fn ids(handles: &[StoredHandle]) -> Vec<Uuid> {
    handles.iter().map(|handle| handle.event_id).collect()
}
