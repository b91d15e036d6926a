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

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use self::table::{Key, Look, Message, Table, first_key};
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
    place: Mutex<Place>,
    /// Something may have become the first of its key.
    removed: Notify,
}

struct Place {
    /// The last key that was looked at.
    after: Key,
    /// What is being leased, whether somebody waits for it or not.
    leasing: Option<JoinHandle<Result<Vec<Message>, SubscriptionError>>>,
    /// What was leased and not received.
    ready: VecDeque<Message>,
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
        let place = Place { after: first_key(), leasing: None, ready: VecDeque::new() };
        Self {
            pool,
            consumer: consumer.to_owned(),
            visibility: VISIBILITY,
            place: Mutex::new(place),
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

impl<P: Table + Clone> Stored<P> {
    /// Takes what is due, if there is any: goes from key to key, once around.
    async fn take(&self, place: &mut Place, max: usize) -> Result<(), SubscriptionError> {
        let max = max.clamp(1, TAKEN_MAX);
        let mut is_whole_round = place.after == first_key();
        loop {
            let look = Look { after: &place.after, keys_max: KEYS_MAX, due_max: max };
            let heads = self.pool.look(&self.consumer, look).await?;
            let count = heads.len();
            let last = heads.last().map(|head| head.key.clone());
            let due = heads.into_iter().filter(|head| head.is_due);
            let keys: Vec<_> = due.map(|head| head.key).collect();
            let is_end = count < KEYS_MAX && keys.len() < max;
            place.after = last.filter(|_| !is_end).unwrap_or_else(first_key);
            if let Some(of_key) = max.checked_div(keys.len()) {
                place.leasing = Some(tokio::spawn(lease(
                    self.pool.clone(),
                    self.consumer.clone(),
                    keys,
                    of_key,
                    self.visibility,
                )));
                place.leased().await?;
            }
            if !place.ready.is_empty() || (is_end && is_whole_round) {
                return Ok(());
            }
            is_whole_round |= is_end;
        }
    }
}

impl Place {
    /// Waits for what is being leased.
    async fn leased(&mut self) -> Result<(), SubscriptionError> {
        let Some(leasing) = &mut self.leasing else { return Ok(()) };
        let leased = leasing.await;
        self.leasing = None;
        let ended = |error| SubscriptionError::new("the messages were not taken", error);
        self.ready.extend(leased.map_err(ended)??);
        Ok(())
    }
}

async fn lease<P: Table>(
    pool: P,
    consumer: String,
    keys: Vec<Key>,
    of_key: usize,
    visibility: Duration,
) -> Result<Vec<Message>, SubscriptionError> {
    pool.lease(&consumer, &keys, of_key, visibility).await
}

#[async_trait]
impl<P: Table + Clone> Subscription for Stored<P> {
    type Handle = StoredHandle;

    fn name(&self) -> &'static str {
        "stored"
    }

    fn visibility(&self) -> Option<Duration> {
        Some(self.visibility)
    }

    async fn receive(&self, max: usize) -> Result<Vec<Received<StoredHandle>>, SubscriptionError> {
        let mut place = self.place.lock().await;
        place.leased().await?;
        let mut pause = PAUSE_MIN;
        while place.ready.is_empty() {
            self.take(&mut place, max).await?;
            if place.ready.is_empty() && timeout(pause, self.removed.notified()).await.is_err() {
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        let count = place.ready.len().min(max);
        let received = |message: Message| Received {
            handle: StoredHandle { event_id: message.event_id },
            incoming: message.into_incoming(&self.consumer),
        };
        Ok(place.ready.drain(..count).map(received).collect())
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

    /// Gives back what was leased and not received.
    async fn close(&self) {
        let mut place = self.place.lock().await;
        // Otherwise it is due after the visibility.
        let _ = place.leased().await;
        let left: Vec<_> = place.ready.drain(..).map(|message| message.event_id).collect();
        if !left.is_empty() {
            let _ = self.pool.set_due(&self.consumer, &left, Duration::ZERO).await;
        }
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
