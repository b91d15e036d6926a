//! What every database client must do for a consumer: an event's effect happens once.
//!
//! The harnesses are those of the [writer suite](super::writer).

mod batches;
mod claims;
mod deliveries;
mod messages;
#[cfg(feature = "postgres")]
pub mod postgres;
mod pruning;
mod refusals;
mod watermarks;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use postrider::{Claim, Event, Key, Sequence, WriteError};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::writer::{Capabilities, End, Subject, TestClient};
use super::{Case, Clock, Doing};

/// Connects the client under test, on any thread.
pub type Connector = Arc<dyn Fn() -> Doing<Box<dyn TestClient>> + Send + Sync>;

/// An open transaction of a client under test.
#[async_trait(?Send)]
pub trait OpenInbox {
    /// Claims an event.
    async fn once(&mut self, consumer: &str, event_id: Uuid) -> Result<Claim, WriteError>;
    /// Claims several events.
    async fn once_all(
        &mut self,
        consumer: &str,
        event_ids: &[Uuid],
    ) -> Result<Vec<Claim>, WriteError>;
    /// Moves a watermark.
    async fn advance(
        &mut self,
        consumer: &str,
        key: &Key,
        version: u64,
    ) -> Result<Sequence, WriteError>;
    /// Keeps an event for later.
    async fn store(&mut self, consumer: &str, event: &Event) -> Result<Claim, WriteError>;
    /// Keeps an event as dead.
    async fn bury(
        &mut self,
        consumer: &str,
        event: &Event,
        error: &str,
        attempts: u32,
    ) -> Result<(), WriteError>;
    /// Makes dead events alive.
    async fn revive(&mut self, consumer: &str, event_id: Option<Uuid>) -> Result<u64, WriteError>;
    /// Removes old claims.
    async fn prune(
        &mut self,
        consumer: &str,
        older_than: Duration,
        limit: u32,
    ) -> Result<u64, WriteError>;
    /// Runs a statement that every database understands.
    async fn execute(&mut self, sql: &str);
    /// Ends the transaction.
    async fn end(self: Box<Self>, end: End);
    /// Loses the connection with the transaction open. The client is of no use afterwards.
    async fn lose(self: Box<Self>);
}

/// A row of `inbox_messages`, as the database has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRow {
    /// `consumer`.
    pub consumer: String,
    /// `event_id`.
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
    /// `stored_at`.
    pub stored_at: SystemTime,
    /// `due_at`.
    pub due_at: SystemTime,
    /// `attempts`.
    pub attempts: u32,
    /// `error`.
    pub error: Option<String>,
    /// `dead`.
    pub dead: bool,
}

/// Every case.
pub fn cases() -> Vec<Case<Subject, Capabilities>> {
    let mut cases = claims::cases();
    cases.extend(batches::cases());
    cases.extend(deliveries::cases());
    cases.extend(watermarks::cases());
    cases.extend(messages::cases());
    cases.extend(pruning::cases());
    cases.extend(refusals::cases());
    cases
}

/// Does one thing in a transaction of a client.
macro_rules! in_transaction {
    ($client:expr, $end:expr, $call:ident($($argument:expr),*)) => {{
        let mut inbox = $client.begin().await;
        let answer = inbox.$call($($argument),*).await;
        inbox.end($end).await;
        answer.expect(concat!(stringify!($call), " works"))
    }};
}
use in_transaction;

/// An event of an order.
fn event(order: u32) -> Event {
    let event = Event::builder("Order", order.to_string(), "OrderPaid").json("x").build();
    event.expect("the event is valid")
}

/// Notes that a consumer has applied something.
async fn apply(inbox: &mut dyn OpenInbox, consumer: &str, amount: u32) {
    let note = format!("INSERT INTO ledger (consumer, amount) VALUES ('{consumer}', {amount})");
    inbox.execute(&note).await;
}

/// How often a consumer has applied something, and the sum of it.
async fn applied(database: &Subject, consumer: &str) -> (i64, i64) {
    let of = |what| {
        format!(
            "SELECT CAST(coalesce({what}, 0) AS bigint) FROM ledger WHERE consumer = '{consumer}'"
        )
    };
    (database.number(&of("count(*)")).await, database.number(&of("sum(amount)")).await)
}

/// How many claims there are.
async fn claim_count(database: &Subject) -> i64 {
    database.number("SELECT count(*) FROM inbox").await
}

/// Works on a thread of its own, because a client may block it.
fn on_thread<T: Send + 'static>(
    database: &Subject,
    work: impl AsyncFnOnce(Connector) -> T + Send + 'static,
) -> oneshot::Receiver<T> {
    let (sender, receiver) = oneshot::channel();
    let connect = database.connector();
    std::thread::spawn(move || {
        let result = Clock::Real.runtime().block_on(work(connect));
        // The case may have failed in the meantime.
        let _ = sender.send(result);
    });
    receiver
}
