//! A replication connection before the stream is started.

use std::fmt;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::io::AsyncWriteExt as _;
use tokio_postgres::Config;
use tokio_postgres::tls::MakeTlsConnect;

use crate::auth::AuthPolicy;
use crate::commands::{self, Flow, PgOutput, SlotOptions};
use crate::login::{Session, log_in};
use crate::reader::Reader;
use crate::replication::Replication;
use crate::socket::{Socket, open};
use crate::wire::{ANSWER_BYTES_MAX, Wire, body, server_error};
use crate::{Error, Lsn};

/// The columns of a row, as text.
pub type Row = Vec<Option<String>>;

/// A connection of the kind that replication takes. Dropped, it is closed.
///
/// A call that is given up leaves an answer under way, so that no other call is possible.
pub struct Connection {
    wire: Wire,
    config: Config,
    session: Session,
    /// The answer to a call was not read to its end.
    is_answering: bool,
}

impl Connection {
    /// Connects and logs in as tokio-postgres would, with the same configuration. It has to have
    /// one host; `target_session_attrs` is not looked at. The connect timeout is for each address
    /// of the host; a limit to the login is the caller's. Whatever the server asks for is answered,
    /// the password in clear text as well: see [`connect_if`](Self::connect_if).
    pub async fn connect<T>(config: &Config, tls: T) -> Result<Self, Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        Self::connect_if(AuthPolicy::ANY, config, tls).await
    }

    /// The same, if the server asks for nothing but what `auth` permits. Otherwise the error is
    /// [`Error::Authentication`] with a [`RefusedAuth`](crate::RefusedAuth) in it.
    pub async fn connect_if<T>(auth: AuthPolicy, config: &Config, mut tls: T) -> Result<Self, Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let mut opened = open(config, &mut tls).await?;
        opened.socket.shrink_on_loopback()?;
        let binding = opened.binding.take();
        let mut wire = Wire::new(opened);
        let session = log_in(&mut wire, config, binding, auth).await?;
        wire.logged_in();
        Ok(Self { wire, config: config.clone(), session, is_answering: false })
    }

    /// The version of the server, as in `server_version_num`: 150018 for 15.18.
    pub fn server_version(&self) -> u32 {
        self.session.server_version
    }

    /// What cancels a call on this connection.
    pub fn canceller(&self) -> Canceller {
        let Session { process_id, secret_key, .. } = self.session;
        Canceller { config: self.config.clone(), process_id, secret_key }
    }

    /// The rows that a statement, or a command of replication, answers. All of them are kept in
    /// memory, up to 16 MiB; a server that answers more is not listened to any longer.
    pub async fn query(&mut self, sql: &str) -> Result<Vec<Row>, Error> {
        self.ask(sql).await?;
        let mut rows = Vec::new();
        let mut failed = None;
        let mut bytes = 0;
        loop {
            let message = self.wire.message().await?;
            bytes += message.len();
            if bytes > ANSWER_BYTES_MAX {
                return Err(Error::too_long(message[0], bytes, ANSWER_BYTES_MAX));
            }
            match message[0] {
                // A row's description, the end of a statement, a notice, a setting.
                b'T' | b'C' | b'I' | b'N' | b'S' => {}
                b'D' => rows.push(row(Reader::new(body(&message)))?),
                b'E' => failed = Some(self.refused(server_error(&message))?),
                b'Z' => {
                    self.is_answering = false;
                    return failed.map_or(Ok(rows), Err);
                }
                tag => return Err(Error::unexpected(tag)),
            }
        }
    }

    /// Which server and which database this is, and how far its log has been written.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, Error> {
        let row = self.one(commands::IDENTIFY_SYSTEM).await?;
        let [Some(system_id), Some(timeline), Some(wal_position), database, ..] = row.as_slice()
        else {
            return Err(not_understood());
        };
        Ok(SystemIdentity {
            system_id: system_id.parse().map_err(|_| not_understood())?,
            timeline: timeline.parse().map_err(|_| not_understood())?,
            wal_position: wal_position.parse().map_err(|_| not_understood())?,
            database: database.clone().unwrap_or_default(),
        })
    }

    /// Makes a slot for `pgoutput`.
    ///
    /// The server waits until all transactions have ended that are in progress now. It does not
    /// notice a client that is gone, and makes the slot even then: to give up, use the
    /// [`canceller`](Self::canceller). A `lock_timeout` limits the wait, too.
    pub async fn create_slot(
        &mut self,
        name: &str,
        options: SlotOptions,
    ) -> Result<CreatedSlot, Error> {
        let command = commands::create_slot(name, options, self.server_version());
        match self.one(&command).await?.as_slice() {
            [_, Some(consistent_point), snapshot, ..] => Ok(CreatedSlot {
                consistent_point: consistent_point.parse().map_err(|_| not_understood())?,
                snapshot: snapshot.clone(),
            }),
            _ => Err(not_understood()),
        }
    }

    /// Drops a slot that nobody uses.
    pub async fn drop_slot(&mut self, name: &str) -> Result<(), Error> {
        self.query(&commands::drop_slot(name)).await.map(drop)
    }

    /// Starts the stream of a slot.
    ///
    /// It begins with the first transaction whose commit record starts at `at` or later, but not
    /// before the position that the slot has confirmed. [`Lsn::ZERO`] is just that position.
    pub async fn start(
        mut self,
        slot: &str,
        at: Lsn,
        output: &PgOutput,
        mut flow: Flow,
    ) -> Result<Replication, Error> {
        if let Some(timeout) = self.sender_timeout().await? {
            flow.status_interval = flow.status_interval.min(timeout / 3);
        }
        self.ask(&commands::start(slot, at, output, self.server_version())).await?;
        self.wire.streaming(flow.value_bytes_max);
        loop {
            let message = self.wire.message().await?;
            match message[0] {
                b'W' => return Ok(Replication::start(self.wire, flow)?),
                b'E' => return Err(server_error(&message)),
                b'N' | b'S' => {}
                tag => return Err(Error::unexpected(tag)),
            }
        }
    }

    /// After what silence the server ends a stream.
    async fn sender_timeout(&mut self) -> Result<Option<Duration>, Error> {
        let row = self.one(commands::SENDER_TIMEOUT).await?;
        let setting = row.first().and_then(Option::as_deref).and_then(|text| text.parse().ok());
        let timeout = Duration::from_millis(setting.ok_or_else(not_understood)?);
        Ok(Some(timeout).filter(|timeout| !timeout.is_zero()))
    }

    async fn one(&mut self, sql: &str) -> Result<Row, Error> {
        self.query(sql).await?.into_iter().next().ok_or_else(not_understood)
    }

    async fn ask(&mut self, sql: &str) -> Result<(), Error> {
        let mut message = BytesMut::new();
        frontend::query(sql, &mut message)?;
        if std::mem::replace(&mut self.is_answering, true) {
            let message = "an earlier call was given up, so that this one cannot be answered";
            return Err(Error::Protocol(message.into()));
        }
        Ok(self.wire.send(&message).await?)
    }

    /// An error after which the connection can be used. After a fatal one nothing follows.
    fn refused(&self, error: Error) -> Result<Error, Error> {
        match error {
            Error::Server(server) if !server.is_fatal() => Ok(Error::Server(server)),
            error => Err(error),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("server_version", &self.session.server_version)
            .finish_non_exhaustive()
    }
}

/// Which server and which database this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The number of the cluster, which its standby servers share.
    pub system_id: u64,
    /// The timeline, which is another one after a promotion.
    pub timeline: u32,
    /// How far the log has been written.
    pub wal_position: Lsn,
    /// The name of the database.
    pub database: String,
}

/// A slot that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedSlot {
    /// Where it begins: all that is committed later comes.
    pub consistent_point: Lsn,
    /// The snapshot that shows all that was committed before, if it was asked for.
    pub snapshot: Option<String>,
}

/// Cancels what a connection is doing.
pub struct Canceller {
    config: Config,
    process_id: i32,
    secret_key: i32,
}

impl Canceller {
    /// Asks the server to cancel the call that is under way, over a connection of its own. The
    /// call answers with an error if it was not complete before.
    pub async fn cancel<T>(&self, mut tls: T) -> Result<(), Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let mut stream = open(&self.config, &mut tls).await?.stream;
        let mut request = BytesMut::new();
        frontend::cancel_request(self.process_id, self.secret_key, &mut request);
        stream.write_all(&request).await?;
        stream.flush().await?;
        Ok(stream.shutdown().await?)
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").field("process_id", &self.process_id).finish_non_exhaustive()
    }
}

fn not_understood() -> Error {
    Error::Protocol("the server gave an answer that is not understood".into())
}

/// Reads the body of a `DataRow`.
fn row(mut reader: Reader) -> Result<Row, Error> {
    let count = reader.u16()?;
    let mut row = Row::new();
    for _ in 0..count {
        row.push(match usize::try_from(reader.i32()?) {
            Ok(length) => Some(String::from_utf8_lossy(&reader.bytes(length)?).into_owned()),
            // Minus one stands for null.
            Err(_) => None,
        });
    }
    reader.end()?;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use tokio_postgres::NoTls;

    use super::*;

    fn assert_send<F: Future + Send>(future: F) -> F {
        future
    }

    #[tokio::test]
    async fn a_connection_can_be_used_by_any_task() {
        let config = Config::new();
        let connecting = assert_send(Connection::connect(&config, NoTls));
        let Err(Error::Config(_)) = connecting.await else { panic!("it has no host") };
        // Not run, only compiled.
        let _ = |connection: Connection| {
            assert_send(async {
                let mut connection = connection;
                connection.create_slot("", SlotOptions::default()).await?;
                let output = PgOutput::default();
                let replication = connection.start("", Lsn::ZERO, &output, Flow::default()).await?;
                replication.next().await?;
                replication.stop().await
            })
        };
    }

    #[test]
    fn a_row_has_as_many_columns_as_it_says() {
        let read = |body: &'static [u8]| row(Reader::new(body.into()));
        let body = b"\0\x02\xff\xff\xff\xff\0\0\0\x01a";
        assert_eq!(read(body).unwrap(), [None, Some("a".to_owned())]);
        for length in 0..body.len() {
            assert!(read(&body[..length]).is_err());
        }
        assert!(read(b"\0\0a").is_err());
    }
}
