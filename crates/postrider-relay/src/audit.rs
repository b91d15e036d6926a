//! Audits a database for the mistakes that the pattern cannot see by itself: a transaction that
//! changed business tables and wrote no event, and one that wrote events and changed nothing.
//!
//! An [`Audit`] tells of the transactions of a database, from its log; [`judge`] says of each of
//! them, without any I/O, what is wrong with it; a [`Report`] keeps what was found, grouped and
//! bounded. [`run`] joins them.
//!
//! What the log cannot tell is not said: neither who wrote a transaction, nor whether it changed
//! tables that were not named. Of rows nothing is kept but how many there were, and of events
//! their ids, types and keys.

mod judgement;
mod report;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until, timeout};

pub use self::judgement::{Finding, FindingKind, Judgement, Rules, judge};
pub use self::report::{Example, GROUPS_MAX, Group, Report};
use crate::shutdown::Shutdown;
use crate::source::SourceError;

/// How many events of a transaction are kept to be shown, and how many of their types.
pub const EVENTS_KEPT_MAX: usize = 3;
/// See [`EVENTS_KEPT_MAX`].
pub const TYPES_KEPT_MAX: usize = 8;
/// Longest time until what was committed before the end has been read.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// Tells of the transactions of one database, from its log.
#[async_trait]
pub trait Audit: Send {
    /// What is watched.
    fn watched(&self) -> &Watched;

    /// The transactions that committed since the last call, in the order of their commits; waits
    /// if there are none. Nothing is lost if this is given up.
    async fn next(&mut self) -> Result<Seen, SourceError>;

    /// Asks to be told by [`Seen::is_end`] when all is read that was committed before this call.
    async fn mark_end(&mut self) -> Result<(), SourceError>;

    /// Removes what the audit has made in the database.
    async fn close(self: Box<Self>) -> Result<(), SourceError>;
}

/// What is to be watched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// The tables.
    pub tables: Vec<NamedTable>,
    /// Publications that are there already and have these tables and the outbox. With none, the
    /// audit makes its own, and removes it at the end.
    pub publications: Vec<String>,
}

/// A table as an operator names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTable {
    /// Its schema; without one, the search path says which.
    pub schema: Option<String>,
    /// Its name, as the database has it.
    pub name: String,
    /// What needs an event.
    pub needs_event: Operations,
}

/// What is done to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Rows were added.
    Insert,
    /// Rows were changed.
    Update,
    /// Rows were removed.
    Delete,
    /// It was emptied.
    Truncate,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Insert, Self::Update, Self::Delete, Self::Truncate];

    /// The name, as SQL has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Truncate => "truncate",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.as_str() == name)
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operations([bool; 4]);

impl Operations {
    /// All there are.
    pub const ALL: Self = Self([true; 4]);

    /// Whether it has one.
    pub fn has(self, operation: Operation) -> bool {
        self.0[operation as usize]
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Those it has, in order.
    pub fn iter(self) -> impl Iterator<Item = Operation> {
        Operation::ALL.into_iter().filter(move |operation| self.has(*operation))
    }

    /// Those of it that the other one has not.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        self.iter().filter(|operation| !other.has(*operation)).collect()
    }
}

impl FromIterator<Operation> for Operations {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        let mut set = Self::default();
        operations.into_iter().for_each(|operation| set.0[operation as usize] = true);
        set
    }
}

/// What an audit watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Schema and name of the outbox, quoted.
    pub outbox: String,
    /// The tables, as they were named.
    pub tables: Vec<WatchedTable>,
    /// Everything that is committed after this position is seen.
    pub since_lsn: String,
    /// What the operator should know before it begins.
    pub notes: Vec<String>,
}

/// A table that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedTable {
    /// Schema and name, quoted.
    pub name: String,
    /// What needs an event.
    pub needs_event: Operations,
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Transactions that have committed.
    pub transactions: Vec<Transaction>,
    /// All is read that was committed before the end was [marked](Audit::mark_end).
    pub is_end: bool,
}

/// A transaction that has committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Its number, without the epoch.
    pub xid: u32,
    /// When it was committed, by the server's clock.
    pub committed_at: SystemTime,
    /// Where its commit is in the log.
    pub lsn: String,
    /// It came to the server from another one, by replication: its events are that one's.
    pub is_replicated: bool,
    /// What it did to the watched tables, by their place in [`Watched::tables`].
    pub changes: BTreeMap<usize, Counts>,
    /// The events that it wrote.
    pub events: WrittenEvents,
}

/// How often something was done to a table: rows, and for `Truncate` statements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; 4]);

impl Counts {
    /// Counts one more.
    pub fn add(&mut self, operation: Operation) {
        self.0[operation as usize] += 1;
    }

    /// Adds those of others.
    pub fn add_all(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// How often.
    pub fn of(self, operation: Operation) -> u64 {
        self.0[operation as usize]
    }

    /// What was done at all.
    pub fn operations(self) -> Operations {
        Operation::ALL.into_iter().filter(|operation| self.of(*operation) > 0).collect()
    }
}

/// The events of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenEvents {
    /// How many.
    pub count: u64,
    /// The first of them, at most [`EVENTS_KEPT_MAX`].
    pub first: Vec<WrittenEvent>,
    /// Aggregate types and event types, at most [`TYPES_KEPT_MAX`], sorted.
    pub types: Vec<(String, String)>,
}

/// An event, without its contents. What cannot be read is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WrittenEvent {
    /// Its id.
    pub event_id: String,
    /// The type of its aggregate.
    pub aggregate_type: String,
    /// The id of its aggregate.
    pub aggregate_id: String,
    /// Its type.
    pub event_type: String,
}

impl WrittenEvents {
    /// Counts one, and keeps it if it is among the first.
    pub fn add(&mut self, event: WrittenEvent) {
        self.count += 1;
        let kind = (event.aggregate_type.clone(), event.event_type.clone());
        if let Err(place) = self.types.binary_search(&kind)
            && self.types.len() < TYPES_KEPT_MAX
        {
            self.types.insert(place, kind);
        }
        if self.first.len() < EVENTS_KEPT_MAX {
            self.first.push(event);
        }
    }
}

/// Watches for a time, or until it is stopped, and answers what was found, also before an error.
///
/// What was committed before the end is read, unless that takes too long: [`Report::is_complete`].
/// `tell` hears of each finding, and whether it is the first of its kind; it answers whether to go
/// on.
pub async fn run(
    audit: &mut dyn Audit,
    rules: Rules,
    time: Option<Duration>,
    shutdown: &mut Shutdown,
    mut tell: impl FnMut(&Finding, bool) -> bool,
) -> (Report, Result<(), SourceError>) {
    let started = Instant::now();
    let deadline = time.and_then(|time| started.checked_add(time));
    let mut report = Report::new(audit.watched().clone());
    let watched = async {
        loop {
            let seen = tokio::select! {
                biased;
                () = shutdown.requested() => break,
                () = until(deadline) => break,
                seen = audit.next() => seen?,
            };
            if !take(seen.transactions, rules, &mut report, &mut tell) {
                return Ok(());
            }
        }
        audit.mark_end().await?;
        let finished = timeout(FINISH_MAX, async {
            loop {
                let seen = audit.next().await?;
                if !take(seen.transactions, rules, &mut report, &mut tell) {
                    return Ok(());
                }
                if seen.is_end {
                    report.is_complete = true;
                    return Ok(());
                }
            }
        });
        finished.await.unwrap_or(Ok(()))
    };
    let watched = watched.await;
    report.time = started.elapsed();
    (report, watched)
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Judges transactions; answers whether to go on.
fn take(
    transactions: Vec<Transaction>,
    rules: Rules,
    report: &mut Report,
    tell: &mut impl FnMut(&Finding, bool) -> bool,
) -> bool {
    for transaction in transactions {
        let judgement = judge(transaction, &report.watched.tables, rules);
        if let Some((finding, is_first)) = report.add(judgement)
            && !tell(&finding, is_first)
        {
            return false;
        }
    }
    true
}
