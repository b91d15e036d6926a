//! The contract of scratch places: what a measurement writes to instead of an outbox and topics
//! that are in use.
//!
//! A place has a name that nothing else has, and everything that is made for it is found by that
//! name. So whatever a process that was killed has left can be removed by another one, and nothing
//! else ever is: see [`ScratchName`].
//!
//! A database is claimed as long as its place is used, by a lock that ends with the process
//! however it ends: a place that can be claimed is nobody's. Brokers have no such lock. But a name
//! says when it was made, and no measurement takes long.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use postrider::Event;

use crate::pipeline::decision::random_jitter;
use crate::sink::{Sink, SinkError};
use crate::source::{Source, SourceError};
use crate::sources::{Mode, Progress};

/// What every name begins with.
const PREFIX: &str = "postrider_bench_";
/// Digits of the time and of what is random.
const DIGITS: usize = 12;
/// No measurement takes longer, with all that is around it: what is older is nobody's.
pub const USED_MAX: Duration = Duration::from_secs(15 * 60);

/// The name of a scratch place: `postrider_bench_` and twelve hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScratchName(String);

impl ScratchName {
    /// A name that nothing has yet.
    pub fn new() -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self(format!("{PREFIX}{:08x}{:04x}", seconds as u32, random_jitter() as u16))
    }

    /// The name that something was made for: what it is called begins with it, written as
    /// [`as_str`](Self::as_str) or as [`topic`](Self::topic) has it.
    pub fn of(thing: &str) -> Option<Self> {
        let (name, rest) = thing.split_at_checked(PREFIX.len() + DIGITS)?;
        if rest.starts_with(|next: char| next.is_ascii_alphanumeric()) {
            return None;
        }
        let name = name.replace('-', "_");
        let digits = name.strip_prefix(PREFIX)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        digits.bytes().all(is_digit).then_some(Self(name))
    }

    /// As schemas and files are called.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As topics, streams and exchanges are called.
    pub fn topic(&self) -> String {
        self.0.replace('_', "-")
    }

    /// Whether it is so old that nobody uses it any more.
    pub fn is_old(&self, now: SystemTime) -> bool {
        let seconds = &self.0[PREFIX.len()..PREFIX.len() + 8];
        let made = u64::from_str_radix(seconds, 16).map(Duration::from_secs).unwrap_or_default();
        now.duration_since(UNIX_EPOCH + made).is_ok_and(|age| age > USED_MAX)
    }
}

impl Default for ScratchName {
    fn default() -> Self {
        Self::new()
    }
}

/// Scratch outboxes of one database, each with two tables of an application beside it.
#[async_trait]
pub trait ScratchDatabase: Send + Sync {
    /// What is made there, given its name: `the schema postrider_bench_…`.
    fn place(&self, name: &ScratchName) -> String;

    /// Looks at the database, and changes nothing.
    async fn examine(&self, mode: Mode) -> Result<Examined, SourceError>;

    /// The places that are there, also those of others.
    async fn list(&self) -> Result<Vec<ScratchName>, SourceError>;

    /// Claims a name, whether there is a place or not; `None` if somebody else has it.
    async fn claim(&self, name: &ScratchName) -> Result<Option<Claim>, SourceError>;

    /// Makes a place, with so many accounts in the application's tables. What is left of one that
    /// could not be made is removed as if it had been.
    async fn make(&self, name: &ScratchName, accounts: u32) -> Result<(), SourceError>;

    /// Removes whatever there is of a place. Who calls it has claimed the name.
    async fn remove(&self, name: &ScratchName) -> Result<(), SourceError>;

    /// A session of an application.
    async fn writer(&self, name: &ScratchName) -> Result<Box<dyn ScratchWriter>, SourceError>;

    /// Reads all rows of the outbox as fast as the client can, and drops them: what no relay can
    /// do better. Answers how many they are.
    async fn read_all(&self, name: &ScratchName) -> Result<u64, SourceError>;

    /// Connects a relay's source to the outbox.
    async fn source(
        &self,
        name: &ScratchName,
        mode: Mode,
        progress: Progress,
    ) -> Result<Box<dyn Source>, SourceError>;

    /// Whether the relay that has connected with [`Mode::Cdc`] has got to the log.
    async fn is_streaming(&self, name: &ScratchName) -> Result<bool, SourceError>;
}

/// What a database is, and what cannot be done there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// The server and the database: `PostgreSQL 17.2, database "shop"`.
    pub what: String,
    /// How many sessions can write at the same time with any gain.
    pub writers: usize,
    /// What is not permitted, or not set up.
    pub missing: Vec<Missing>,
}

/// What keeps a measurement from being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// What there is not.
    pub what: String,
    /// Whether it is a right of the role, and not a setting of the server.
    pub is_right: bool,
    /// The statement or setting that mends it.
    pub fix: String,
}

/// A claim on a name. It ends when this is dropped, or with the process.
pub struct Claim {
    _held: Box<dyn Send + Sync>,
}

impl Claim {
    /// A claim that lasts as long as this does.
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self { _held: Box::new(held) }
    }
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claim")
    }
}

/// A session of an application in a scratch place.
#[async_trait]
pub trait ScratchWriter: Send {
    /// One transaction: a balance is changed, a line is added to the ledger, and events are
    /// written, if there are any. Durable when it is answered.
    async fn transact(&mut self, account: u32, events: &[Event]) -> Result<(), SourceError>;
}

/// Scratch topics of one broker.
#[async_trait]
pub trait ScratchSink: Send + Sync {
    /// What is made there, given its name: `the topic postrider-bench-…`.
    fn place(&self, name: &ScratchName) -> String;

    /// The places that are there, also those of others. A broker that cannot tell answers none.
    async fn list(&self) -> Result<Vec<ScratchName>, SinkError>;

    /// Makes a place. What is left of one that could not be made is removed as if it had been.
    async fn make(&self, name: &ScratchName) -> Result<(), SinkError>;

    /// Connects a sink that publishes to the topic of the name, and only there.
    async fn connect(&self, name: &ScratchName) -> Result<Box<dyn Sink>, SinkError>;

    /// Removes whatever there is of a place.
    async fn remove(&self, name: &ScratchName) -> Result<(), SinkError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_in_whatever_is_called_by_it() {
        let name = ScratchName::new();
        assert_eq!(name.as_str().len(), PREFIX.len() + DIGITS);
        for thing in [
            name.as_str().to_owned(),
            name.topic(),
            format!("{}.db-wal", name.as_str()),
            format!("{}-progress", name.topic()),
        ] {
            assert_eq!(ScratchName::of(&thing), Some(name.clone()), "{thing}");
        }
    }

    #[test]
    fn nothing_else_is_taken_for_one() {
        for other in [
            "",
            "outbox",
            "postrider_bench_",
            "postrider_bench_results",
            "postrider_bench_0123456789a",
            "postrider_bench_0123456789AB",
            "postrider_bench_0123456789abc",
            "postrider_bench_0123456789xy",
            "xpostrider_bench_0123456789ab",
            "postrider_bench_01234567899\u{e4}",
        ] {
            assert_eq!(ScratchName::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_knows_its_age() {
        let (name, now) = (ScratchName::new(), SystemTime::now());
        assert!(!name.is_old(now));
        assert!(!name.is_old(now - Duration::from_secs(60)), "clocks differ");
        assert!(name.is_old(now + USED_MAX + Duration::from_secs(2)));
    }
}
