//! What every database client must do to write events.

mod messages;
#[cfg(feature = "postgres")]
pub mod postgres;
mod transactions;
mod writes;

use std::error::Error as StdError;
use std::time::SystemTime;

use async_trait::async_trait;
use postrider::{Event, Events, InvalidEvent, LostCommit, Outcome, ToEvent, WriteError};
use uuid::Uuid;

use super::Case;
use super::inbox::{Connector, KeptRow, OpenInbox};

/// What an application's closure fails with.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A database with an outbox, an inbox, a table of orders and one of what consumers have applied,
/// `ledger`, made for one case.
#[async_trait(?Send)]
pub trait TestDatabase {
    /// Connects the client under test, on any thread.
    fn connector(&self) -> Connector;
    /// Connects the client under test.
    async fn client(&self) -> Box<dyn TestClient> {
        self.connector()().await
    }
    /// Runs statements that every database understands.
    async fn run(&self, sql: &str);
    /// The only number of the only row.
    async fn number(&self, sql: &str) -> i64;
    /// What consumers keep in the inbox, in the order in which it came.
    async fn kept(&self) -> Vec<KeptRow>;
    /// Whether somebody waits for somebody else in the inbox; true where it cannot be seen.
    async fn someone_waits(&self) -> bool {
        true
    }
    /// The ids in the outbox, in order.
    async fn ids(&self) -> Vec<Uuid>;
    /// The only row of the outbox.
    async fn only_row(&self) -> WrittenRow;
    /// How many orders there are.
    async fn orders(&self) -> u32;
    /// Drops the tables of outbox and inbox, and what there is of functions.
    async fn unmigrate(&self);
    /// Makes the database refuse every event from now on.
    async fn refuse_events(&self, why: Why);
    /// How many statements have written to the outbox.
    async fn insert_statements(&self) -> u32 {
        unreachable!("only where one statement writes a batch")
    }
    /// Keeps what is written to the log from now on.
    async fn watch_log(&self) {
        unreachable!("only where there is a log")
    }
    /// The events that were written to the log alone since, in order.
    async fn messages(&self) -> Vec<Message> {
        unreachable!("only where there is a log")
    }
    /// Connects the client under test so that its connection is lost at the next COMMIT.
    async fn client_losing_commit(&self, lost: Lost) -> Box<dyn TestClient> {
        unreachable!("only where a commit can be lost: {lost:?}")
    }
}

/// Why a database refuses an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A row violates a constraint.
    Constraint,
    /// A trigger cannot make sense of a value.
    Value,
}

/// When a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Before the server has committed.
    Before,
    /// After the server has committed, and before it has said so.
    After,
}

/// A client under test. Each call but `begin` is a transaction, which ends as told even after an
/// error.
#[async_trait(?Send)]
pub trait TestClient {
    /// Publishes one event.
    async fn publish(&mut self, event: &Event, end: End) -> Result<Uuid, WriteError>;
    /// Publishes several events in one call.
    async fn publish_all(
        &mut self,
        events: &[&dyn ToEvent],
        end: End,
    ) -> Result<Vec<Uuid>, WriteError>;
    /// Publishes one event in the log alone.
    async fn publish_message(&mut self, _: &dyn ToEvent, _: End) -> Result<Uuid, WriteError> {
        unreachable!("only where there is a log")
    }
    /// Publishes one event in the transaction, which commits, and one in a savepoint.
    async fn publish_nested(&mut self, outer: &Event, inner: &Event, end_inner: End);
    /// Begins a transaction in which the inbox is used.
    async fn begin(&mut self) -> Box<dyn OpenInbox + '_>;
    /// Adds an order by `transact`, with a closure that ends with `result`.
    async fn transact(&mut self, result: Result<Events, BoxError>) -> Result<(), BoxError>;
    /// What became of a commit.
    async fn was_written(&mut self, commit: &LostCommit) -> Result<Outcome, WriteError> {
        unreachable!("only where a commit can be lost: {commit:?}")
    }
}

/// What a client and its database can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The database refuses an event whose id it has.
    pub refuses_known_ids: bool,
    /// A batch is written in one statement.
    pub one_statement_per_batch: bool,
    /// The database is a server, with a clock of its own.
    pub has_clock: bool,
    /// Events can be written to a log alone.
    pub has_log: bool,
    /// The client's `transact` can lose the connection while it commits.
    pub loses_commits: bool,
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// For good.
    Commit,
    /// As if it had never been.
    Rollback,
}

/// A row of the outbox, as the database has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRow {
    /// `id`.
    pub id: String,
    /// `aggregate_type`.
    pub aggregate_type: String,
    /// `aggregate_id`.
    pub aggregate_id: String,
    /// `event_type`.
    pub event_type: String,
    /// `event_version`.
    pub event_version: u32,
    /// `payload`.
    pub payload: Vec<u8>,
    /// `content_type`.
    pub content_type: String,
    /// `headers`, as JSON.
    pub headers: String,
    /// `topic`.
    pub topic: Option<String>,
    /// `occurred_at`.
    pub occurred_at: SystemTime,
    /// `created_at`.
    pub created_at: SystemTime,
    /// `deliver_after`.
    pub deliver_after: Option<SystemTime>,
    /// Whether `published_at` is set.
    pub published: bool,
}

/// An event in the log that is in no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is, but for the payload.
    pub fields: serde_json::Value,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Message {
    pub(crate) fn id(&self) -> Uuid {
        let id = self.fields["id"].as_str().expect("a message has an id");
        id.parse().expect("an id is a UUID")
    }
}

/// What a case is tried on.
pub type Subject = Box<dyn TestDatabase>;

/// Every case.
pub fn cases() -> Vec<Case<Subject, Capabilities>> {
    let mut cases = writes::cases();
    cases.extend(transactions::cases());
    cases.extend(messages::cases());
    cases
}

/// An event of a type.
fn event(event_type: &str) -> Event {
    let event = Event::builder("Order", "42", event_type).json("x").build();
    event.expect("the event is valid")
}

/// Becomes an event with a payload of that many bytes.
struct OfSize(usize);

impl ToEvent for OfSize {
    fn to_event(&self) -> Result<Event, InvalidEvent> {
        Event::builder("Order", "42", "OfSize").payload(vec![b'x'; self.0], "text/plain").build()
    }
}
