//! What an operator has stopped: pipelines, and single keys of them.
//!
//! A pause stands in the database, so that it holds for every relay, also for one that starts
//! later. Relays look at it every second ([`follow`]):
//!
//! - A paused *pipeline* reads and sends nothing more. What is under way comes to its end and is
//!   settled; what was read stays in memory; the lease is kept.
//! - An event of a paused *key* is deferred when it is its turn, and so everything of its key
//!   behind it is queued, as after an event that failed. It counts no attempt. Events that are in
//!   no order (`ordering = "none"`, and those with a `deliver_after`) go on.
//!
//! Whoever resumes a key lets its first event come back at once. A relay may not have heard of it
//! by then, and defer it once more: so it does the same again when it hears of it, and
//! at its next look.

mod follow;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::collections::BTreeSet;
use std::time::SystemTime;

use async_trait::async_trait;
use postrider::Key;

use crate::source::SourceError;

pub use self::follow::{Known, PauseWatch, follow};

/// Stops and resumes the pipelines of one outbox, and keys of them.
#[async_trait]
pub trait Pauses: Send + Sync {
    /// What is stopped, by pipeline and key.
    async fn pauses(&self) -> Result<Vec<Pause>, SourceError>;

    /// Stops a pipeline, or all; or one key in it. Answers whether it was not stopped before; if it
    /// was, a new reason replaces the old one.
    async fn pause(
        &self,
        pipeline: Option<&str>,
        key: Option<&Key>,
        reason: Option<&str>,
    ) -> Result<bool, SourceError>;

    /// Removes the pause of a pipeline, or all of pipelines; or of one key. Answers what was
    /// removed.
    async fn resume(
        &self,
        pipeline: Option<&str>,
        key: Option<&Key>,
    ) -> Result<Vec<Pause>, SourceError>;

    /// Lets the first event of a key that waits for its time, in a pipeline or in all, come back
    /// now.
    async fn hurry(&self, pipeline: Option<&str>, key: &Key) -> Result<(), SourceError>;
}

/// What stands for every pipeline.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const EVERY_PIPELINE: &str = "*";

/// Something that is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The pipeline; `None` is every one.
    pub pipeline: Option<String>,
    /// The key; `None` is the whole pipeline.
    pub key: Option<Key>,
    /// Since when.
    pub since: SystemTime,
    /// Why, in the operator's words.
    pub reason: Option<String>,
}

/// How many of the keys that are stopped are named in a status.
pub const PAUSED_KEYS_SHOWN: usize = 10;

/// The keys that are stopped in a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PausedKeys {
    /// How many there are.
    pub count: u64,
    /// The first of them, up to [`PAUSED_KEYS_SHOWN`].
    pub first: Vec<Key>,
    /// How many of them have events that wait.
    pub waiting: u64,
}

impl PausedKeys {
    /// Those of a pipeline; how many have events that wait is yet to be found out.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn of(pauses: &[Pause], pipeline: &str) -> Self {
        // One that is stopped in every pipeline may be stopped in this one besides.
        let keys: BTreeSet<&Key> = Pause::keys(pauses, pipeline).collect();
        let count = keys.len() as u64;
        Self {
            count,
            first: keys.into_iter().take(PAUSED_KEYS_SHOWN).cloned().collect(),
            waiting: 0,
        }
    }
}

impl Pause {
    /// What stops this pipeline as a whole, if anything does.
    pub fn of_pipeline<'p>(pauses: &'p [Self], pipeline: &str) -> Option<&'p Self> {
        pauses.iter().find(|pause| pause.key.is_none() && pause.concerns(pipeline))
    }

    /// The keys that are stopped in this pipeline.
    pub fn keys<'p>(pauses: &'p [Self], pipeline: &str) -> impl Iterator<Item = &'p Key> {
        pauses
            .iter()
            .filter(move |pause| pause.concerns(pipeline))
            .filter_map(|pause| pause.key.as_ref())
    }

    fn concerns(&self, pipeline: &str) -> bool {
        self.pipeline.as_deref().is_none_or(|name| name == pipeline)
    }

    /// A pause as its row has it.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn of_row(
        pipeline: String,
        (aggregate_type, aggregate_id): (String, String),
        since: SystemTime,
        reason: Option<String>,
    ) -> Self {
        let has_key = !aggregate_type.is_empty();
        Self {
            pipeline: Some(pipeline).filter(|name| name != EVERY_PIPELINE),
            key: has_key.then_some(Key { aggregate_type, aggregate_id }),
            since,
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_every_pipeline_concerns_each() {
        let pause = |pipeline: Option<&str>, id: Option<&str>| Pause {
            pipeline: pipeline.map(str::to_owned),
            key: id.map(|id| Key { aggregate_type: "Order".into(), aggregate_id: id.into() }),
            since: SystemTime::UNIX_EPOCH,
            reason: None,
        };
        let pauses = [pause(Some("a"), None), pause(None, Some("1")), pause(Some("b"), Some("2"))];
        let keys = |pipeline: &str| -> Vec<String> {
            Pause::keys(&pauses, pipeline).map(|key| key.aggregate_id.clone()).collect()
        };
        assert_eq!((keys("a"), keys("b")), (vec!["1".into()], vec!["1".into(), "2".into()]));
        assert!(Pause::of_pipeline(&pauses, "a").is_some());
        assert!(Pause::of_pipeline(&pauses, "b").is_none());
        assert!(Pause::of_pipeline(&[pause(None, None)], "b").is_some());
        let twice =
            [pause(None, Some("1")), pause(Some("a"), Some("1")), pause(Some("a"), Some("2"))];
        let keys = PausedKeys::of(&twice, "a");
        assert_eq!((keys.count, keys.first.len()), (2, 2));
        assert_eq!(PausedKeys::of(&twice, "b").count, 1);
    }
}
