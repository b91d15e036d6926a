//! One connection to PostgreSQL, made when it is first needed and made anew after it was lost.
//!
//! # Design
//!
//! - **Deadlines.** Every statement has to be answered within [`STATEMENT_TIMEOUT`]. One that is
//!   not is cancelled as far as that goes, and the connection with it is thrown away: nobody
//!   knows in what state it is. A call waits no longer for its turn, either.
//! - **Nothing is sent twice.** A connection that the server has closed is replaced before a
//!   statement is sent, without a word. A statement that may have been sent is never repeated
//!   here; whoever asked is told that the server is unavailable.
//! - **One server.** The connections of a [group](Connection::group) lead to one server, on one
//!   timeline. After a failover they are lost for good, and whoever used them starts anew.
//! - **Poolers.** Statements have no name and sessions no state, so that each transaction may
//!   run on another server connection.
//! - **Cancelling.** A call that is given up leaves the connection usable: its answer is read and
//!   dropped. A transaction that is given up ends with its connection, which rolls it back.

mod session;
mod streaming;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

pub(super) use self::session::read_files;
use self::session::{Reached, Session};
pub(super) use self::streaming::streaming;
use super::Location;
use super::cluster::Origin;
use super::error::Trouble;
use crate::source::{SourceError, SourceErrorKind};

/// Longest time until a statement is answered.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
const COMMIT: &str = "COMMIT";

/// A parameter of a statement, with its type.
pub(super) type Param<'p> = (&'p (dyn ToSql + Sync), Type);
/// The parameters of a statement.
pub(super) type Params<'p> = &'p [Param<'p>];

/// One connection, made when first needed and made anew after it was lost.
pub(super) struct Connection {
    location: Location,
    application_name: String,
    deadline: Duration,
    session: Mutex<Option<Session>>,
    /// The server to which every session has to lead, once there was one.
    origin: Option<Arc<OnceLock<Origin>>>,
    /// It could be made once. From then on what stands in its way is taken to pass: a password
    /// that is being exchanged, a server that is not the primary yet.
    worked: AtomicBool,
}

impl Connection {
    /// A connection that is not made yet. The server shows it as `postrider <purpose>`.
    pub(super) fn new(location: Location, purpose: &str) -> Self {
        Self {
            location,
            application_name: application_name(purpose),
            deadline: STATEMENT_TIMEOUT,
            session: Mutex::new(None),
            origin: None,
            worked: AtomicBool::new(false),
        }
    }

    /// Connections of which no session ever leads to another server than the first one did,
    /// nor to the same after a failover: that is [`Lost`](SourceErrorKind::Lost).
    pub(super) fn group<const N: usize>(location: &Location, purposes: [&str; N]) -> [Self; N] {
        let origin = Arc::default();
        purposes.map(|purpose| {
            let origin = Some(Arc::clone(&origin));
            Self { origin, ..Self::new(location.clone(), purpose) }
        })
    }

    /// The same connection to whatever server there is now.
    pub(super) fn to_any_server(&self) -> Self {
        let (location, application_name) = (self.location.clone(), self.application_name.clone());
        Self { application_name, ..Self::new(location, "") }
    }

    /// Where it leads, by its session of now.
    pub(super) async fn origin(&self) -> Result<Origin, Trouble> {
        let held = self.connected().await?;
        Ok(held.session.as_ref().map(|session| session.origin.clone()).unwrap_or_default())
    }

    /// Where it leads.
    pub(super) fn location(&self) -> &Location {
        &self.location
    }

    /// The rows that a statement answers.
    pub(super) async fn query(&self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Trouble> {
        self.connected().await?.query(sql, params).await
    }

    /// The rows that a statement answers with settings that hold for it alone. All of it is sent
    /// at once, so that it takes no longer and leaves nothing open when it is given up.
    pub(super) async fn query_with(
        &self,
        settings: &str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Trouble> {
        self.connected().await?.query_with(settings, sql, params).await
    }

    /// How many rows a statement changed.
    pub(super) async fn execute(&self, sql: &str, params: Params<'_>) -> Result<u64, Trouble> {
        self.connected().await?.execute(sql, params).await
    }

    /// Begins a transaction. Until it ends, every other call waits.
    pub(super) async fn begin(&self) -> Result<Transaction<'_>, Trouble> {
        // From here on a dropped future drops the transaction too.
        let mut transaction = Transaction { held: self.connected().await?, state: State::Open };
        transaction.held.batch(BEGIN).await?;
        Ok(transaction)
    }

    /// Says good-bye to the server. A later call connects anew.
    pub(super) async fn close(&self) {
        if let Some(session) = self.session.lock().await.take() {
            session.close().await;
        }
    }

    async fn connected(&self) -> Result<Held<'_>, Trouble> {
        let mut session = timeout(self.deadline, self.session.lock())
            .await
            .map_err(|_| Trouble::TimedOut { after: self.deadline })?;
        if session.as_ref().is_some_and(|session| session.is_stuck(self.deadline))
            && let Some(stuck) = session.take()
        {
            stuck.abandon();
        }
        if session.as_ref().is_none_or(Session::is_closed) {
            *session = Some(self.connect().await?);
        }
        Ok(Held { session, deadline: self.deadline })
    }

    async fn connect(&self) -> Result<Session, SourceError> {
        match Reached::connect(&self.location, &self.application_name).await {
            Ok(reached) => {
                self.worked.store(true, Ordering::Relaxed);
                let session = Session::new(reached);
                self.refuse_other(&session.origin)?;
                Ok(session)
            }
            Err(mut error) => {
                let worked = self.worked.load(Ordering::Relaxed);
                if worked && error.kind == SourceErrorKind::Misconfigured {
                    error.kind = SourceErrorKind::Unavailable;
                }
                Err(error)
            }
        }
    }

    fn refuse_other(&self, origin: &Origin) -> Result<(), SourceError> {
        let Some(first) = &self.origin else { return Ok(()) };
        if !first.get_or_init(|| origin.clone()).differs(origin) {
            return Ok(());
        }
        let location = &self.location;
        let message = format!(
            "{location} was failed over: what was known of the old primary says nothing about the \
             new one"
        );
        Err(SourceError::new(SourceErrorKind::Lost, message))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("location", &self.location)
            .field("application_name", &self.application_name)
            .finish_non_exhaustive()
    }
}

/// A plain client for migrations, with its task running.
pub(super) async fn client(location: &Location) -> Result<Client, Trouble> {
    Ok(Reached::connect(location, &application_name("migrate")).await?.into_client())
}

/// How the server shows a connection.
pub(super) fn application_name(purpose: &str) -> String {
    format!("postrider {purpose}")
}

/// A transaction. Dropped before it was committed, it is rolled back by closing the connection.
pub(super) struct Transaction<'c> {
    held: Held<'c>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// A statement failed: the server would answer a commit by rolling back, and call it fine.
    Failed,
    Committed,
}

impl Transaction<'_> {
    /// The rows that a statement answers.
    pub(super) async fn query(
        &mut self,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Trouble> {
        let answer = self.held.query(sql, params).await;
        self.noted(answer)
    }

    /// How many rows a statement changed.
    pub(super) async fn execute(&mut self, sql: &str, params: Params<'_>) -> Result<u64, Trouble> {
        let answer = self.held.execute(sql, params).await;
        self.noted(answer)
    }

    /// Runs several statements without parameters.
    pub(super) async fn batch(&mut self, sql: &str) -> Result<(), Trouble> {
        let answer = self.held.batch(sql).await;
        self.noted(answer)
    }

    /// Makes it durable. After an error nobody knows whether it is.
    pub(super) async fn commit(mut self) -> Result<(), Trouble> {
        if self.state == State::Failed {
            return Err(lost("the transaction failed before it was committed"));
        }
        self.held.batch(COMMIT).await?;
        self.state = State::Committed;
        Ok(())
    }

    fn noted<T>(&mut self, answer: Result<T, Trouble>) -> Result<T, Trouble> {
        if answer.is_err() {
            self.state = State::Failed;
        }
        answer
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.state != State::Committed
            && let Some(session) = self.held.session.take()
            && session.is_waiting()
        {
            session.abandon();
        }
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

/// The connection while one call has it.
struct Held<'c> {
    session: MutexGuard<'c, Option<Session>>,
    deadline: Duration,
}

impl Held<'_> {
    async fn query(&mut self, sql: &str, params: Params<'_>) -> Result<Vec<Row>, Trouble> {
        let deadline = self.deadline;
        let answer = within(deadline, self.asked()?.query_typed(sql, params)).await;
        self.answered(answer)
    }

    async fn execute(&mut self, sql: &str, params: Params<'_>) -> Result<u64, Trouble> {
        let deadline = self.deadline;
        let answer = within(deadline, self.asked()?.execute_typed(sql, params)).await;
        self.answered(answer)
    }

    async fn query_with(
        &mut self,
        settings: &str,
        sql: &str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, Trouble> {
        let begin = format!("{BEGIN}; {settings}");
        let deadline = self.deadline;
        let client = self.asked()?;
        let answers = async {
            let (begun, rows, committed) = tokio::join!(
                client.batch_execute(&begin),
                client.query_typed(sql, params),
                client.batch_execute(COMMIT),
            );
            begun?;
            let rows = rows?;
            committed.map(|()| rows)
        };
        let answer = within(deadline, answers).await;
        self.answered(answer)
    }

    async fn batch(&mut self, sql: &str) -> Result<(), Trouble> {
        let deadline = self.deadline;
        let answer = within(deadline, self.asked()?.batch_execute(sql)).await;
        self.answered(answer)
    }

    /// The client, to be asked something.
    fn asked(&mut self) -> Result<&Client, Trouble> {
        match &mut *self.session {
            Some(session) => Ok(session.asked(Instant::now())),
            None => Err(lost("the connection was lost within the transaction")),
        }
    }

    fn answered<T>(&mut self, answer: Result<T, Trouble>) -> Result<T, Trouble> {
        let Some(session) = &mut *self.session else { return answer };
        match &answer {
            Err(Trouble::TimedOut { .. }) => {
                if let Some(session) = self.session.take() {
                    session.abandon();
                }
            }
            Err(trouble) if trouble.ends_connection() => *self.session = None,
            _ => session.answered(),
        }
        answer
    }
}

/// What a statement answers that has one row, and in it whether something is so.
pub(super) fn is_so(rows: &[Row]) -> Result<bool, Trouble> {
    let row = rows.first().ok_or_else(|| lost("the server answered without a row"))?;
    Ok(row.try_get(0)?)
}

async fn within<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Trouble> {
    match timeout(deadline, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Trouble::TimedOut { after: deadline }),
    }
}

fn lost(message: &str) -> Trouble {
    SourceError::new(SourceErrorKind::Unavailable, message).into()
}
