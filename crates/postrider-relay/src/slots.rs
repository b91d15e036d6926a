//! What keeps a server's log for the pipelines of an outbox: its replication slots.
//!
//! A relay that reads the log makes its slot by itself, and drops one that is of no use. So an
//! operator looks at slots, makes one ahead of a relay, or drops one that nobody reads any more
//! and that fills the server's disk. Nothing is changed while a relay has the pipeline.
//!
//! It is a trait of its own, so that [`Source`](crate::source::Source) stays small, and that a
//! database without slots need not say so for each call.

use async_trait::async_trait;

use crate::shutdown::Shutdown;
use crate::source::SourceError;

/// Looks at the slots of one outbox, makes and drops them.
#[async_trait]
pub trait Slots: Send + Sync {
    /// The slots of all pipelines that have ever read the outbox, by the name of the pipeline.
    async fn show(&self) -> Result<Vec<PipelineSlot>, SourceError>;

    /// Makes a slot for a pipeline: the next relay that reads the log goes on with it, so that
    /// events which only the log has are kept from now on, and it is never given up. One that can
    /// be relied on stays as it is. Waits for transactions that are open.
    async fn create(&self, pipeline: &str, shutdown: &Shutdown) -> Result<Created, SourceError>;

    /// Fails while a relay runs the pipeline: then its slot is neither made nor dropped.
    async fn refuse_in_use(&self, pipeline: &str) -> Result<(), SourceError>;

    /// Drops the slot of a pipeline, and forgets where it was in the log. What only the log had
    /// and was not delivered is gone; the rest is read from the table by the next relay.
    async fn drop_slot(&self, pipeline: &str) -> Result<Dropped, SourceError>;
}

/// A slot that a pipeline has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its name.
    pub slot: String,
    /// Everything that is committed after this position comes from it.
    pub lsn: String,
    /// False if it was there before.
    pub is_new: bool,
}

/// What a pipeline has no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The name of the slot.
    pub slot: String,
    /// There was a slot, or a checkpoint that relied on one.
    pub was_there: bool,
    /// The pipeline had had events that are in no table.
    pub log_only: bool,
}

/// A pipeline and its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineSlot {
    /// The pipeline's name.
    pub pipeline: String,
    /// Its slot, or that it has none.
    pub slot: SlotStatus,
}

/// How the slot of a pipeline stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// Its name, also if there is none.
    pub name: String,
    /// What it is good for.
    pub state: SlotState,
    /// What the server says of the log that it keeps: `reserved`, `extended`, `unreserved` or
    /// `lost`.
    pub wal_status: Option<String>,
    /// The process of the server that reads it.
    pub active_pid: Option<i32>,
    /// Up to where the server was told that nothing is needed any more.
    pub confirmed_flush_lsn: Option<String>,
    /// Where the checkpoint says to go on.
    pub checkpoint_lsn: Option<String>,
    /// How much of the log is kept for it, in bytes.
    pub retained_bytes: Option<u64>,
    /// How much more may be written before it is lost, in bytes; `None` if there is no limit.
    pub safe_bytes: Option<u64>,
    /// How far it is behind the end of the log, in bytes.
    pub lag_bytes: Option<u64>,
    /// The pipeline may have had events that are in no table: without its slot it refuses to go on.
    pub log_only: bool,
}

/// What a slot is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// There is none, and none is expected.
    None,
    /// It is being made, which waits for transactions that are open.
    Making,
    /// The table is read first, up to where it begins.
    ReadsTable,
    /// Events come from the log.
    Streams,
    /// There should be one, and there is none.
    Missing,
    /// The server has given it up.
    Lost,
    /// It was made anew, or read by others.
    Moved,
    /// The publication is not the one that it was.
    Unpublished,
    /// There is one, and the checkpoint does not say so.
    Stray,
}

impl SlotState {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Making => "making",
            Self::ReadsTable => "reads_table",
            Self::Streams => "streams",
            Self::Missing => "missing",
            Self::Lost => "lost",
            Self::Moved => "moved",
            Self::Unpublished => "unpublished",
            Self::Stray => "stray",
        }
    }

    /// Why it is of no use; `None` if it is of use, or none is needed.
    pub fn why_of_no_use(self) -> Option<&'static str> {
        match self {
            Self::None | Self::Making | Self::ReadsTable | Self::Streams => None,
            Self::Missing => Some("it is gone"),
            Self::Lost => Some("the server has given it up"),
            Self::Moved => Some("it was made anew, or read by others"),
            Self::Unpublished => Some("the publication was changed"),
            Self::Stray => Some("the checkpoint does not know it"),
        }
    }
}
