//! The outbox: the durable ledger of events, in the application's own database.
//!
//! An event is written in the transaction that changes what the event is about, so that both
//! are committed or neither is. Hence events can be written to a [`Transaction`] only, and not
//! to a connection or a pool, where each statement would be a transaction of its own.

use uuid::Uuid;

use crate::error::WriteError;
use crate::event::{Event, ToEvent};
use crate::events::Events;
use crate::schema::{InvalidTableName, TableName};

/// An open transaction of a database client: the seam where a client joins.
///
/// Clients differ in whether a call blocks or is awaited; [`Written`](Self::Written) is what
/// makes both of them answer to the same calls.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction, and events can only be written in one",
    label = "begin a transaction and pass that",
    note = "`let mut tx = conn.transaction()?` with rusqlite, \
            `let mut tx = pool.begin().await?` with sqlx; then `outbox.publish(&mut tx, …)`",
    note = "each client is behind a feature of postrider: `rusqlite`, `sqlx-sqlite`"
)]
pub trait Transaction {
    /// What a call gives back: `Result<T, WriteError>`, or a future of it.
    type Written<'t, T: Send + 't>
    where
        Self: 't;

    /// Gives back a result that is known already.
    fn answer<'t, T: Send + 't>(result: Result<T, WriteError>) -> Self::Written<'t, T>
    where
        Self: 't;

    /// Writes events in the order given, all of them or none, and gives back `written`.
    fn insert<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        events: Vec<Event>,
        written: T,
    ) -> Self::Written<'t, T>;
}

/// Writes events to an outbox table. Cheap to make and to clone; it holds a name and nothing
/// else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outbox {
    table: TableName,
}

impl Outbox {
    /// The outbox in the table `outbox`.
    pub fn new() -> Self {
        Self::default()
    }

    /// The outbox in a table of another name.
    pub fn in_table(name: impl Into<String>) -> Result<Self, InvalidTableName> {
        Ok(Self { table: TableName::new(name)? })
    }

    /// The table's name.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// Writes one event and gives back its id. It is published once the transaction commits.
    ///
    /// With an asynchronous client the answer is a future: `.await` it.
    ///
    /// # Errors
    ///
    /// Nothing is written if the event is invalid or the database refuses it.
    pub fn publish<'t, Tx: Transaction>(
        &'t self,
        tx: &'t mut Tx,
        event: &(impl ToEvent + ?Sized),
    ) -> Tx::Written<'t, Uuid> {
        self.write(tx, Events::none().and(event), |events| events[0].id())
    }

    /// Writes several events in order and gives back their ids.
    ///
    /// # Errors
    ///
    /// Nothing is written if one of the events is invalid or the database refuses it.
    pub fn publish_all<'t, Tx: Transaction, E: ToEvent>(
        &'t self,
        tx: &'t mut Tx,
        events: impl IntoIterator<Item = E>,
    ) -> Tx::Written<'t, Vec<Uuid>> {
        self.write(tx, Events::of(events), |events| events.iter().map(Event::id).collect())
    }

    /// Writes the events and gives back what `answer` makes of them.
    pub(crate) fn write<'t, Tx: Transaction, T: Send + 't>(
        &'t self,
        tx: &'t mut Tx,
        events: Events,
        answer: impl FnOnce(&[Event]) -> T,
    ) -> Tx::Written<'t, T> {
        match events.into_result() {
            Ok(events) => {
                let answer = answer(&events);
                // Now and not in the client's future, which may run in another context.
                #[cfg(feature = "opentelemetry")]
                let events = crate::trace_context::captured(events);
                tx.insert(&self.table, events, answer)
            }
            Err(invalid) => Tx::answer(Err(invalid.into())),
        }
    }
}
