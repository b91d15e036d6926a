//! Whether what a replay has published is there: it is read back from where it went.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use uuid::Uuid;

use crate::formats::Format;
use crate::readback::Scope;
use crate::sink::{Message, Sink, SinkCapabilities, SinkError};
use crate::sinks::SinkSpec;

/// Most events that are looked for, about 32 MiB of memory.
const LOOKED_FOR_MAX: usize = 1_000_000;
/// The clocks of this host and of a broker may differ by so much.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(10 * 60);
/// Most ids that are named.
const EXAMPLES_MAX: usize = 10;

/// A sink that notes what is published through it, to be [looked for](Self::read_back) afterwards.
pub struct Noting<'s> {
    sink: &'s dyn Sink,
    since: SystemTime,
    published: Mutex<Published>,
}

#[derive(Default)]
struct Published {
    ids: HashSet<Uuid>,
    topics: BTreeSet<String>,
}

/// What was found of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmation {
    /// Events that were looked for: those that were published, up to a million.
    pub looked_for: u64,
    /// Those of them that are there.
    pub found: u64,
    /// Some that are not.
    pub missing: Vec<Uuid>,
    /// What became durable before this time may have been removed, as the broker was told.
    pub kept_since: Option<SystemTime>,
}

impl<'s> Noting<'s> {
    /// Notes what is published through a sink from now on.
    pub fn new(sink: &'s dyn Sink) -> Self {
        Self { sink, since: SystemTime::now(), published: Mutex::default() }
    }

    /// Looks for what was published: only for messages that a replay has sent since this began.
    pub async fn read_back(
        &self,
        sink: &SinkSpec,
        format: Format,
    ) -> Result<Confirmation, SinkError> {
        let Published { ids: mut missing, topics } = {
            let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *published)
        };
        let looked_for = missing.len() as u64;
        let since = self.since.checked_sub(CLOCKS_DIFFER_MAX);
        let scope = Scope { topics: topics.into_iter().collect(), since, format };
        let mut readback = sink.read_back(&scope).await?;
        if let Some(unreadable) = readback.unreadable().first() {
            return Err(unreadable.error.clone());
        }
        while !missing.is_empty() {
            let messages = readback.next().await?;
            if messages.is_empty() {
                break;
            }
            for kept in messages.iter().filter(|kept| kept.is_replay) {
                if let Some(id) = kept.id {
                    missing.remove(&id);
                }
            }
        }
        let found = looked_for - missing.len() as u64;
        let missing = missing.into_iter().take(EXAMPLES_MAX).collect();
        Ok(Confirmation { looked_for, found, missing, kept_since: readback.kept_since() })
    }
}

impl Confirmation {
    /// Whether all that was looked for is there.
    pub fn is_complete(&self) -> bool {
        self.found == self.looked_for
    }
}

#[async_trait]
impl Sink for Noting<'_> {
    fn capabilities(&self) -> SinkCapabilities {
        self.sink.capabilities()
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        self.sink.check().await
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let answers = self.sink.publish(messages).await;
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        for (message, _) in messages.iter().zip(&answers).filter(|(_, answer)| answer.is_ok()) {
            if published.ids.len() >= LOOKED_FOR_MAX {
                break;
            }
            published.ids.insert(message.event.id());
            if !published.topics.contains(&message.topic) {
                published.topics.insert(message.topic.clone());
            }
        }
        drop(published);
        answers
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}
