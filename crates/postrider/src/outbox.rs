//! The outbox: the durable ledger of events, in the application's own database.
//!
//! An event is written in the transaction that changes what the event is about, so that both
//! are committed or neither is. Hence events can be written to a [`Transaction`] only, and not
//! to a connection or a pool, where each statement would be a transaction of its own.

use std::pin::Pin;

use uuid::Uuid;

use crate::commit::{AskOutcome, LostCommit, Outcome};
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
            `let mut tx = pool.begin().await?` with sqlx, \
            `let mut tx = client.transaction().await?` with tokio-postgres; \
            then `outbox.publish(&mut tx, …)`",
    note = "with diesel-async: `outbox.publish(conn, …)` inside `conn.transaction(async |conn| …)`",
    note = "each client is behind a feature of postrider: `diesel-async`, `rusqlite`, \
            `sqlx-postgres`, `sqlx-sqlite`, `tokio-postgres`"
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

/// An open transaction of a client of PostgreSQL, whose server can keep an event in its log alone.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction on PostgreSQL, and only there an event can be \
               written to the log alone",
    label = "begin a transaction and pass that; on SQLite use `publish`",
    note = "`let mut tx = pool.begin().await?` with sqlx, \
            `let mut tx = client.transaction().await?` with tokio-postgres; \
            then `outbox.publish_message(&mut tx, …)`",
    note = "each client is behind a feature of postrider: `diesel-async`, `sqlx-postgres`, \
            `tokio-postgres`"
)]
pub trait LogTransaction: Transaction {
    /// Writes an event to the log, and gives back `written`.
    fn emit<'t, T: Send + 't>(
        &'t mut self,
        table: &'t TableName,
        event: Event,
        written: T,
    ) -> Self::Written<'t, T>;
}

/// A call that is awaited.
pub type Answer<'t, T> = Pin<Box<dyn Future<Output = Result<T, WriteError>> + Send + 't>>;

/// What transactions are begun on by a client that is awaited: `&pool` with sqlx, `&mut client`
/// with tokio-postgres.
#[diagnostic::on_unimplemented(
    message = "`transact_async` cannot begin a transaction on `{Self}`",
    label = "pass `&pool` with sqlx, `&mut client` with tokio-postgres",
    note = "each client is behind a feature of postrider: `sqlx-postgres`, `sqlx-sqlite`, \
            `tokio-postgres`"
)]
pub trait Begin: Sized {
    /// The transaction.
    type Tx<'t>: Transaction;

    /// Begins a transaction that is rolled back if it is dropped.
    fn begin<'t>(self) -> Answer<'t, Self::Tx<'t>>
    where
        Self: 't;

    /// Writes the events, if there are any, and commits.
    fn finish<'t>(tx: Self::Tx<'t>, table: &'t TableName, events: Vec<Event>) -> Answer<'t, ()>;
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

    /// Writes one event to the server's log alone, and to no table, and gives back its id. It is
    /// published once the transaction commits, by pipelines with `mode = "cdc"`. Only PostgreSQL
    /// has this.
    ///
    /// No row has to be removed later, and none is there to be read again: should a pipeline's
    /// replication slot be lost, the events in it are lost, too. [`publish`](Self::publish) is
    /// safe from that.
    ///
    /// ```
    /// # #[cfg(feature = "sqlx-postgres")]
    /// # async fn see(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// # use postrider::{Event, Outbox};
    /// let mut tx = pool.begin().await?;
    /// let seen = Event::builder("Product", "7", "ProductSeen").build()?;
    /// Outbox::new().publish_message(&mut tx, &seen).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing is written if the event is invalid or the database refuses it, as it does while no
    /// relay has a slot.
    pub fn publish_message<'t, Tx: LogTransaction>(
        &'t self,
        tx: &'t mut Tx,
        event: &(impl ToEvent + ?Sized),
    ) -> Tx::Written<'t, Uuid> {
        match prepared(Events::none().and(event)).map(|mut events| events.remove(0)) {
            Ok(event) => {
                let id = event.id();
                tx.emit(&self.table, event, id)
            }
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }

    /// Runs a transaction and publishes the events that the closure returns with its value:
    /// what `transact` does for a client that blocks.
    ///
    /// It commits if the closure returns `Ok` and the events are written, and is rolled back
    /// otherwise, also if the future is dropped. On SQLite the transaction takes the write lock
    /// at its start (`BEGIN IMMEDIATE`), so it never fails half way because another writer came
    /// first.
    ///
    /// ```
    /// # #[cfg(feature = "sqlx-sqlite")]
    /// # async fn pay(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// # use postrider::{Event, Outbox, events};
    /// Outbox::new()
    ///     .transact_async(&pool, async |tx| {
    ///         sqlx::query("UPDATE orders SET paid = true WHERE id = 42").execute(&mut **tx).await?;
    ///         let paid = Event::builder("Order", "42", "OrderPaid").build()?;
    ///         Ok(((), events![paid]))
    ///     })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The closure's own error, into which a [`WriteError`] of the outbox is converted. With
    /// [`WriteError::Unknown`] the transaction may have been committed.
    pub async fn transact_async<B: Begin, T, E: From<WriteError>>(
        &self,
        database: B,
        work: impl AsyncFnOnce(&mut B::Tx<'_>) -> Result<(T, Events), E>,
    ) -> Result<T, E> {
        let mut tx = database.begin().await?;
        let (value, events) = work(&mut tx).await?;
        let events = prepared(events)?;
        B::finish(tx, &self.table, events).await?;
        Ok(value)
    }

    /// Finds out what became of a transaction whose COMMIT had no answer, from
    /// [`WriteError::Unknown`]: `&pool` with sqlx, `&client` with tokio-postgres.
    ///
    /// ```
    /// # #[cfg(feature = "sqlx-postgres")]
    /// # async fn settle(pool: sqlx::PgPool, outbox: postrider::Outbox, error: postrider::WriteError)
    /// # -> Result<bool, postrider::WriteError> {
    /// # use postrider::{Outcome, WriteError};
    /// let try_again = match error {
    ///     WriteError::Unknown { commit, .. } => {
    ///         outbox.was_written(&pool, &commit).await? == Outcome::NotWritten
    ///     }
    ///     _ => true,
    /// };
    /// # Ok(try_again)
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The question itself failed; ask again.
    pub async fn was_written(
        &self,
        database: &impl AskOutcome,
        commit: &LostCommit,
    ) -> Result<Outcome, WriteError> {
        database.outcome(&self.table, commit).await
    }

    /// Writes the events and gives back what `answer` makes of them.
    pub(crate) fn write<'t, Tx: Transaction, T: Send + 't>(
        &'t self,
        tx: &'t mut Tx,
        events: Events,
        answer: impl FnOnce(&[Event]) -> T,
    ) -> Tx::Written<'t, T> {
        // Now and not in the client's future, which may run in another context.
        match prepared(events) {
            Ok(events) => {
                let answer = answer(&events);
                tx.insert(&self.table, events, answer)
            }
            Err(invalid) => Tx::answer(Err(invalid)),
        }
    }
}

/// The events as they are to be written, or why one of them cannot be.
fn prepared(events: Events) -> Result<Vec<Event>, WriteError> {
    let events = events.into_result()?;
    #[cfg(feature = "opentelemetry")]
    let events = crate::trace_context::captured(events);
    Ok(events)
}
