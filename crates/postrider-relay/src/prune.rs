//! Removes events that are published and past their retention, optionally into an archive.
//!
//! # What goes
//!
//! A row of the outbox goes when every pipeline that ever read the outbox has it behind it, one of
//! them has published it or set it aside, and it is older than [`PruneOptions::keep`]: since it was published, or, where nothing is written
//! when a row is published (`progress = "cursor"`), since it was written. A pipeline that stands
//! still holds on to what it has not published yet, and [`Pruned::left`] names it. What no pipeline
//! matches stays, unless [`PruneOptions::unmatched`] says that it need not. An outbox that
//! no pipeline has ever read loses nothing. Dead letters do not stand in the outbox: they go when
//! an operator discards them, and never by themselves. That one was discarded is forgotten when
//! that is as long ago.
//!
//! # How
//!
//! Oldest first, in batches of bounded size, each in a transaction of its own, with a pause
//! between them, so that writers and relays get in between. A search ends when it finds nothing
//! more to remove for a while; the next one goes on from there ([`Pruned::left_off`]), and starts
//! over with the oldest when it is through. With an archive, the lines of a
//! batch are on disk under their final name before the batch is committed. A crash in between
//! leaves lines of rows that are still there: the same lines are archived again later.
//!
//! It is a trait of its own, so that [`Source`](crate::source::Source) stays small.

pub mod archive;
mod schedule;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;

use crate::shutdown::Shutdown;
use crate::source::SourceError;

pub use self::schedule::run;

/// Most rows that one statement looks at, and so removes.
pub const BATCH_ROWS_MAX: usize = 5_000;
/// The pause between two batches.
pub const BATCH_PAUSE: Duration = Duration::from_millis(20);
/// A search ends after so many rows of which none could be removed.
pub const FRUITLESS_ROWS_MAX: usize = 50_000;
/// A dry run looks at so many of the oldest rows.
pub const DRY_RUN_ROWS_MAX: usize = 100_000;

/// Looks after the size of one outbox.
#[async_trait]
pub trait Prune: Send + Sync {
    /// Makes room for what is written next: creates partitions ahead, where there are any.
    /// Answers how many.
    async fn upkeep(&self) -> Result<u64, SourceError>;

    /// Removes what may go, until nothing is left to do or a stop is asked for. What was removed
    /// before an error stays removed.
    async fn prune(
        &self,
        options: &PruneOptions,
        shutdown: &Shutdown,
    ) -> Result<Pruned, SourceError>;
}

/// What is to go, and where to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PruneOptions {
    /// How long a published event stays.
    pub keep: Duration,
    /// The folder of the archive, which must exist; without one, what is removed is gone.
    pub archive: Option<PathBuf>,
    /// What no pipeline has published goes as well, once every pipeline is past it: events of
    /// aggregate types that none matches.
    pub unmatched: bool,
    /// Only look, and change nothing.
    pub dry_run: bool,
    /// Where an earlier search left off; without it this one begins with the oldest row.
    pub from: Option<Place>,
}

/// A place in an outbox, as its database counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(pub(crate) String);

/// What was removed, or in a dry run would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// How many rows, without those of partitions that were dropped whole.
    pub rows: u64,
    /// There may be more: a dry run looks at [`DRY_RUN_ROWS_MAX`] rows.
    pub at_least: bool,
    /// The partitions that were dropped whole.
    pub partitions: Vec<String>,
    /// The files of the archive.
    pub archives: Vec<PathBuf>,
    /// Why something past its retention is still there; empty if nothing is known to be.
    pub left: Vec<Left>,
    /// The search ended here, after [`FRUITLESS_ROWS_MAX`] rows in vain, and there may be more
    /// behind it; `None` if it came to the end.
    pub left_off: Option<Place>,
}

/// Why something past its retention is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// No pipeline has read the outbox yet.
    NoPipeline,
    /// This pipeline has not published it yet.
    Pipeline(String),
    /// Somebody else prunes the outbox just now.
    Busy,
    /// No pipeline matches its aggregate type, or did when it came to it.
    Unmatched,
    /// This partition was in use all the time.
    Locked(String),
    /// A stop was asked for before the end.
    Stopped,
}

impl Pruned {
    /// Notes a reason, once.
    pub(crate) fn leave(&mut self, left: Left) {
        if !self.left.contains(&left) {
            self.left.push(left);
        }
    }

    /// Adds what a search found that went on from where this one left off.
    pub fn go_on(&mut self, more: Self) {
        let Self { rows, at_least, partitions, archives, left, left_off } = more;
        self.rows += rows;
        self.at_least |= at_least;
        self.partitions.extend(partitions);
        self.archives.extend(archives);
        left.into_iter().for_each(|left| self.leave(left));
        self.left_off = left_off;
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPipeline => {
                f.write_str("nothing goes before a pipeline has read the outbox; run a relay")
            }
            Self::Pipeline(name) => {
                write!(f, "pipeline {name:?} has not published everything that is old enough")
            }
            Self::Unmatched => f.write_str(
                "events that no pipeline has published stay, because none matches their aggregate \
                 type; add it to `match` of a pipeline, or let them go: unmatched = true in \
                 [prune], or prune --unmatched",
            ),
            Self::Busy => f.write_str("the outbox is being pruned by somebody else just now"),
            Self::Locked(partition) => {
                write!(f, "partition {partition:?} is in use; it is tried again next time")
            }
            Self::Stopped => f.write_str("stopped before the end"),
        }
    }
}
