//! A connection that was made: to which server, and how it ends.

use std::time::Duration;

use postrider_replication::{SqlCanceller, SqlConnection, connect_sql};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::Location;
use super::super::cluster::Origin;
use super::super::error::{connect_error, open_error};
use super::super::location::Server;
use crate::source::{SourceError, SourceErrorKind};

/// The oldest server that has what the statements use: `int8multirange`.
const SERVER_VERSION_MIN: i32 = 14;
/// Longest time to end a connection, or to have a statement cancelled.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a statement that was cancelled has to end.
const CANCEL_EVERY: Duration = Duration::from_millis(200);
/// Everything there is to know about a server before it is used, in one round trip.
const CHECK: &str = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
     current_setting('server_version_num')::int4 / 10000, getdatabaseencoding()::text";

/// A server that was found fit.
pub(super) struct Reached {
    client: Client,
    wire: SqlConnection,
    canceller: SqlCanceller,
    tls: MakeRustlsConnect,
    origin: Origin,
}

impl Reached {
    /// Tries the servers in order and takes the first that can be used.
    pub(super) async fn connect(
        location: &Location,
        application_name: &str,
    ) -> Result<Self, SourceError> {
        let (servers, tls) = read_files(location, application_name).await?;
        let several = servers.len() > 1;
        let mut errors = Vec::new();
        for server in &servers {
            let limit = location.connect_timeout();
            let attempt = Self::connect_to(location, server, tls.clone(), several);
            match timeout(limit, attempt).await {
                Ok(Ok(reached)) => return Ok(reached),
                Ok(Err(error)) => errors.push(error),
                Err(_) => errors.push(SourceError::new(
                    SourceErrorKind::Unavailable,
                    format!(
                        "cannot connect to {location}: no answer within {} s",
                        limit.as_secs_f32()
                    ),
                )),
            }
        }
        // While one of them may come back, waiting can help.
        let unavailable =
            errors.iter().position(|error| error.kind == SourceErrorKind::Unavailable);
        Err(errors.swap_remove(unavailable.unwrap_or(0)))
    }

    async fn connect_to(
        location: &Location,
        server: &Server,
        mut tls: MakeRustlsConnect,
        several: bool,
    ) -> Result<Self, SourceError> {
        let failed = |err| connect_error(location, err);
        let connecting = connect_sql(&server.config, &mut tls, server.auth).await;
        let (client, mut wire, canceller) = connecting.map_err(|err| open_error(location, err))?;
        let checked = async {
            let facts = Facts::of(&client).await.map_err(failed)?;
            match facts.problem(location, several) {
                Some(problem) => Err(problem),
                None => Origin::of(&client).await.map_err(failed),
            }
        };
        let origin = tokio::select! {
            biased;
            origin = checked => origin?,
            ended = &mut wire => {
                ended.map_err(failed)?;
                let message = format!("{location} closed the connection");
                return Err(SourceError::new(SourceErrorKind::Unavailable, message));
            }
        };
        Ok(Self { client, wire, canceller, tls, origin })
    }

    /// The client alone. The task that serves it ends when it is dropped.
    pub(super) fn into_client(self) -> Client {
        let Self { client, wire, .. } = self;
        // What ends it is told to whoever waits for an answer.
        tokio::spawn(async move { drop(wire.await) });
        client
    }
}

/// Reads the files that the URL names, for which no other task has to wait.
pub(in super::super) async fn read_files(
    location: &Location,
    application_name: &str,
) -> Result<(Vec<Server>, MakeRustlsConnect), SourceError> {
    let location = location.clone();
    let application_name = application_name.to_owned();
    let reading = spawn_blocking(move || {
        let servers = location.servers(&application_name).map_err(|err| {
            SourceError::new(SourceErrorKind::Misconfigured, "cannot read the file of passwords")
                .with_source(err)
                .with_hint("passfile must name a file that the relay can read")
        })?;
        Ok((servers, location.tls().connector()?))
    });
    reading.await.unwrap_or_else(|err| {
        Err(SourceError::new(SourceErrorKind::Unavailable, "cannot read the files of the URL")
            .with_source(err))
    })
}

/// What a server says of itself.
struct Facts {
    is_replica: bool,
    is_read_only: bool,
    version: i32,
    encoding: String,
}

impl Facts {
    async fn of(client: &Client) -> Result<Self, tokio_postgres::Error> {
        let answer = client.query_typed_one(CHECK, &[]).await?;
        Ok(Self {
            is_replica: answer.try_get(0)?,
            is_read_only: answer.try_get(1)?,
            version: answer.try_get(2)?,
            encoding: answer.try_get(3)?,
        })
    }

    /// Why the server cannot be used.
    fn problem(&self, location: &Location, several: bool) -> Option<SourceError> {
        use SourceErrorKind::{Misconfigured, Unavailable};
        let problem = if self.version < SERVER_VERSION_MIN {
            SourceError::new(
                Misconfigured,
                format!("{location} is PostgreSQL {}, which is too old", self.version),
            )
            .with_hint(format!("use PostgreSQL {SERVER_VERSION_MIN} or newer"))
        } else if self.is_replica && several {
            // There may be a primary again in a moment.
            SourceError::new(Unavailable, format!("no server of {location} is the primary"))
                .with_hint("promote one of them, or add the primary to the URL")
        } else if self.is_replica {
            SourceError::new(Misconfigured, format!("{location} is a replica"))
                .with_hint("connect to the primary; or name all servers: postgres://one,two/…")
        } else if self.is_read_only {
            SourceError::new(Misconfigured, format!("{location} takes no writes"))
                .with_hint("default_transaction_read_only is on for this server, database or role")
        } else if self.encoding == "SQL_ASCII" {
            // Text there is bytes of any kind: one that is not UTF-8 would stop the relay.
            SourceError::new(Misconfigured, format!("{location} has the encoding SQL_ASCII"))
                .with_hint("keep the outbox in a database with the encoding UTF8")
        } else {
            return None;
        };
        Some(problem)
    }
}

/// A connection in use, served by a task of its own that ends with it.
pub(super) struct Session {
    client: Client,
    /// The server to which it leads, or led when it was made.
    pub(super) origin: Origin,
    abandon: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// Since when an answer is due.
    unanswered: Option<Instant>,
}

impl Session {
    pub(super) fn new(reached: Reached) -> Self {
        let Reached { client, wire, canceller, tls, origin } = reached;
        let (abandon, abandoned) = oneshot::channel();
        let task = tokio::spawn(serve(wire, abandoned, canceller, tls));
        Self { client, origin, abandon, task, unanswered: None }
    }

    /// The server has closed it, or it was cut.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// An answer is due for so long that it will not come.
    pub(super) fn is_stuck(&self, deadline: Duration) -> bool {
        self.unanswered.is_some_and(|since| since.elapsed() >= deadline)
    }

    /// An answer is due.
    pub(super) fn is_waiting(&self) -> bool {
        self.unanswered.is_some()
    }

    pub(super) fn asked(&mut self, now: Instant) -> &Client {
        self.unanswered.get_or_insert(now);
        &self.client
    }

    pub(super) fn answered(&mut self) {
        self.unanswered = None;
    }

    /// Gives it up, and what is under way with it.
    pub(super) fn abandon(self) {
        // If the task has ended there is nothing left to give up.
        let _ = self.abandon.send(());
    }

    /// Ends it and waits until it has.
    pub(super) async fn close(self) {
        let Self { client, abandon, task, .. } = self;
        drop((client, abandon));
        drop(task.await);
    }
}

/// Carries what is said on a connection until it ends. When nobody needs it any more it has
/// [`FAREWELL_TIMEOUT`] to end in an orderly way; when it was abandoned, the statement under way
/// is cancelled within that time.
async fn serve(
    mut wire: SqlConnection,
    abandoned: oneshot::Receiver<()>,
    canceller: SqlCanceller,
    mut tls: MakeRustlsConnect,
) {
    let abandoned = tokio::select! {
        // What ended it is told to whoever waits for an answer.
        _ = &mut wire => return,
        abandoned = abandoned => abandoned.is_ok(),
    };
    // There is nobody left to tell how either went.
    if abandoned {
        // What was asked behind the statement that hangs may hang as well.
        let ending = async {
            loop {
                drop(canceller.cancel(&mut tls).await);
                if timeout(CANCEL_EVERY, &mut wire).await.is_ok() {
                    return;
                }
            }
        };
        drop(timeout(FAREWELL_TIMEOUT, ending).await);
    } else {
        drop(timeout(FAREWELL_TIMEOUT, wire).await);
    }
}
