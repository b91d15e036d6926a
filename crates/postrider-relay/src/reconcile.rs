//! The safety net: finds events that should have been published by now and were not, without
//! trusting what relays think of their progress.
//!
//! It looks at rows: those that no pipeline has marked although they are old, those that are set
//! aside although it is their turn, and those that a cursor still has before it. What a cursor has
//! behind it leaves nothing in rows that could be compared with it: nobody but the broker knows
//! whether it has arrived, and [`verification`](crate::verification) asks that.

pub(crate) mod schedule;

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use postrider::Key;

use crate::config::{PipelineConfig, Progress};
use crate::source::SourceError;

/// Most events of each kind that one look names.
pub const LIMIT: usize = 1_000;

/// What the pipeline that marks or removes rows wants: only these aggregate types, or all if there
/// are none.
pub fn aggregate_types(pipelines: &[PipelineConfig]) -> Vec<String> {
    let marking = pipelines.iter().find(|it| it.progress != Progress::Cursor);
    marking.map(|it| it.aggregate_types.clone()).unwrap_or_default()
}

/// Finds events that were missed, and gives them back to relays.
#[async_trait]
pub trait Reconcile: Send + Sync {
    /// Events that should have been published for so long, at most `limit` of each kind. Only of
    /// these aggregate types, unless there are none, where rows are marked or removed.
    async fn missed(
        &self,
        older_than: Duration,
        aggregate_types: &[String],
        limit: usize,
    ) -> Result<Vec<Missed>, SourceError>;

    /// Gives back what relays would never find by themselves, the forgotten: it is handed out at
    /// once, in the order of its key. Safe while relays run. Answers how many events that were.
    ///
    /// Rows of the outbox stay where they are: a relay may have them in memory, or be about to read
    /// them, and the rest of their key with them.
    async fn give_back(&self, missed: &[Missed]) -> Result<u64, SourceError>;
}

/// An event that should have been published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    /// What is wrong with it.
    pub kind: MissedKind,
    /// The pipeline that should have published it.
    pub pipeline: String,
    /// Its number in the order of the outbox.
    pub position: i64,
    /// Its id.
    pub event_id: String,
    /// Its key.
    pub key: Key,
    /// When it was written, or when it was its turn.
    pub since: SystemTime,
}

/// What is wrong with an event that was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissedKind {
    /// It is set aside, the first of its key, and nothing would ever hand it out.
    Forgotten,
    /// It is set aside, and was due long ago.
    Overdue,
    /// It is not marked, and a later event of its key was published when it was old already.
    Overtaken,
    /// It is not marked, and neither is what follows of its key, as far as that was looked at.
    Unpublished,
}

impl MissedKind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Forgotten, Self::Overdue, Self::Overtaken, Self::Unpublished];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Forgotten => "forgotten",
            Self::Overdue => "overdue",
            Self::Overtaken => "overtaken",
            Self::Unpublished => "unpublished",
        }
    }

    /// Why such an event is not published, and what helps.
    pub fn why(self) -> &'static str {
        match self {
            Self::Forgotten => "nothing hands it out by itself: give it back with --publish",
            Self::Overdue => "no relay has taken it: start one, or look why it stands still",
            Self::Overtaken => {
                "relays went past it, and come back to it once they are idle: else start one anew"
            }
            Self::Unpublished => "no relay has come to it: start one, or look why it stands still",
        }
    }

    /// What is wrong, in words.
    pub fn what(self) -> &'static str {
        match self {
            Self::Forgotten => "nothing would ever hand it out",
            Self::Overdue => "it was due long ago, and no relay has taken it",
            Self::Overtaken => "relays went past it",
            Self::Unpublished => "no relay has come to it",
        }
    }

    /// Whether a relay finds it by itself, as soon as one runs.
    pub fn comes_by_itself(self) -> bool {
        matches!(self, Self::Overdue | Self::Unpublished)
    }
}

impl fmt::Display for MissedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
