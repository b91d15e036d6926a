//! The contract of reading back: what a broker keeps of some topics, in its order, for whoever
//! wants to verify it.
//!
//! Nothing that stays is changed there: no group, no position, no acknowledgement. Reading ends
//! where the topics ended when it began.

use std::time::SystemTime;

use async_trait::async_trait;
use uuid::Uuid;

use crate::formats::Format;
use crate::sink::SinkError;

/// Reads what a broker keeps.
#[async_trait]
pub trait Readback: Send {
    /// The next messages; those of one key come in the order in which they became durable. Empty
    /// once all that was there has been read.
    async fn next(&mut self) -> Result<Vec<Kept>, SinkError>;

    /// The topics that are left out because they cannot be read. If that is so of all,
    /// reading does not begin.
    fn unreadable(&self) -> &[Unreadable];

    /// What became durable before this time may have been removed by the broker, as it was told.
    /// `None` if everything is still there, as far as is known.
    fn kept_since(&self) -> Option<SystemTime>;
}

/// What is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The topics, subjects or streams.
    pub topics: Vec<String>,
    /// Only what became durable from this time on, where the broker knows.
    pub since: Option<SystemTime>,
    /// How the relay wrote it.
    pub format: Format,
}

/// A topic that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The topic, subject or stream.
    pub topic: String,
    /// Why.
    pub error: SinkError,
}

/// A message that a broker keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The event's id; `None` if it is not a message of a relay in this format.
    pub id: Option<Uuid>,
    /// Its topic.
    pub topic: String,
    /// Where it stands there, such as `3@17`: the offset 17 of the partition 3.
    pub place: String,
    /// When it was sent, where the broker knows.
    pub sent_at: Option<SystemTime>,
    /// A [replay](crate::replay) has sent it.
    pub is_replay: bool,
}
