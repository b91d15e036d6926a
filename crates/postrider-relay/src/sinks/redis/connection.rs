//! One connection to Redis, made when it is first needed and made anew after it was lost.
//!
//! All calls share it. A call that is given up leaves its command behind, which the server runs
//! or never gets, but whole; its answer is thrown away. A connection that has failed or that has
//! kept a call waiting for too long is not used again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, RedisConnectionInfo, RedisError, Value, cmd, from_redis_value,
    parse_redis_value, pipe,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::failure::{answered, ends_connection, not_connected, timed_out, unreachable};
use crate::sink::{FailureKind, SinkError};
use crate::sinks::broker_url::Server;
use crate::sinks::last_try::LastTry;
use crate::sinks::{Secret, TlsOptions};

/// When a silent connection is asked whether it is still there, how often, and how long something
/// sent may stay without an acknowledgement.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_COUNT: u32 = 3;
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(15);

/// Answers at the beginning are short.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Where the server is, and who we are.
#[derive(Clone, Debug)]
pub(super) struct Login {
    pub(super) server: Server,
    pub(super) database: u32,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) tls: Option<TlsOptions>,
    /// What the server calls us.
    pub(super) name: String,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
}

/// Makes connections and keeps the current one.
pub(super) struct Connector {
    login: Login,
    place: Mutex<Place>,
    /// The largest value that the server takes, as far as it has told.
    value_bytes_max: AtomicUsize,
}

/// Where the connection is kept.
#[derive(Default)]
struct Place {
    connection: Option<Arc<Connection>>,
    last_try: LastTry,
}

struct Connection {
    commands: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connector {
    pub(super) fn new(login: Login) -> Self {
        Self { login, place: Mutex::default(), value_bytes_max: AtomicUsize::new(usize::MAX) }
    }

    pub(super) fn value_bytes_max(&self) -> usize {
        self.value_bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn server(&self) -> &Server {
        &self.login.server
    }

    /// Who we are for the server.
    pub(super) fn user(&self) -> &str {
        self.login.user.as_deref().unwrap_or("default")
    }

    /// Runs commands, with one answer for each; an error of the server is an answer.
    pub(super) async fn run(&self, commands: Vec<Cmd>) -> Result<Vec<Value>, SinkError> {
        let connection = self.connection().await?;
        let answers = send(connection.commands.clone(), commands).await;
        if answers.as_ref().map_or(true, |answers| answers.iter().any(ends_connection)) {
            self.forget(&connection).await;
        }
        answers.map_err(|error| self.no_answer(&error))
    }

    /// Ends the connection.
    pub(super) async fn close(&self) {
        self.place.lock().await.connection.take();
    }

    /// Connects, unless there is a connection.
    pub(super) async fn ready(&self) -> Result<(), SinkError> {
        self.connection().await.map(drop)
    }

    async fn connection(&self) -> Result<Arc<Connection>, SinkError> {
        let asked_at = Instant::now();
        let mut place = self.place.lock().await;
        if let Some(connection) = &place.connection
            && !connection.driver.is_finished()
        {
            return Ok(Arc::clone(connection));
        }
        place.last_try.since(asked_at)?;
        place.connection = None;
        let login = &self.login;
        let made = timeout(login.connect_timeout, login.connect()).await;
        let late = || not_connected(&login.server, login.connect_timeout, login.tls.is_some());
        let made = made.unwrap_or_else(|_| Err(late()));
        let (made, limit) = made.inspect_err(|error| place.last_try.failed(error))?;
        self.value_bytes_max.store(limit.unwrap_or(usize::MAX), Ordering::Relaxed);
        Ok(Arc::clone(place.connection.insert(Arc::new(made))))
    }

    async fn forget(&self, connection: &Arc<Connection>) {
        let current = &mut self.place.lock().await.connection;
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
    }

    fn no_answer(&self, error: &RedisError) -> SinkError {
        if error.is_timeout() {
            return timed_out(&self.login.server, self.login.response_timeout);
        }
        // It had come about: maybe it has ended because of one of the messages under way.
        let lost = unreachable(&self.login.server, error);
        let is_lost = lost.kind == FailureKind::Unavailable;
        lost.with_company(is_lost)
    }
}

impl Login {
    async fn connect(&self) -> Result<(Connection, Option<usize>), SinkError> {
        let Server { host, port } = &self.server;
        let no_connection = |error: io::Error| unreachable(&self.server, &error);
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(no_connection)?;
        watch_over(&stream).map_err(no_connection)?;
        let Some(tls) = &self.tls else { return self.begin(stream).await };
        // Read each time, so that certificates can be exchanged.
        let connector = TlsConnector::from(Arc::new(tls.client_config()?));
        let name = ServerName::try_from(host.clone());
        let name = name.map_err(|error| no_connection(io::Error::other(error)))?;
        self.begin(connector.connect(name, stream).await.map_err(no_connection)?).await
    }

    /// Says who we are and which database we mean, before anything else is sent: the library
    /// would not tell a server that is full from a password that is wrong.
    async fn begin<S>(&self, mut stream: S) -> Result<(Connection, Option<usize>), SinkError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut required = Vec::new();
        if let Some(password) = &self.password {
            let mut auth = cmd("AUTH");
            auth.arg(self.user.as_deref()).arg(password.expose());
            required.push(auth);
        }
        // A user with few rights may not select what is selected anyway.
        if self.database != 0 {
            required.push(cmd("SELECT").arg(self.database).take());
        }
        for command in required {
            if let Value::ServerError(error) = self.ask(&mut stream, &command).await? {
                return Err(answered(&self.server, &error));
            }
        }
        // What may be forbidden, and can be done without.
        let named = self.ask(&mut stream, cmd("CLIENT").arg("SETNAME").arg(&self.name)).await?;
        if let Value::ServerError(error) = named
            && error.code() == "NOAUTH"
        {
            return Err(answered(&self.server, &error));
        }
        let limit = cmd("CONFIG").arg("GET").arg("proto-max-bulk-len").take();
        let limit = match self.ask(&mut stream, &limit).await? {
            Value::Array(pair) => {
                pair.into_iter().nth(1).and_then(|max| from_redis_value(max).ok())
            }
            _ => None,
        };
        let nobody = RedisConnectionInfo::default().set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(self.response_timeout));
        let made = MultiplexedConnection::new_with_config(&nobody, stream, config).await;
        let (commands, driver) = made.map_err(|error| unreachable(&self.server, &error))?;
        Ok((Connection { commands, driver: tokio::spawn(driver) }, limit))
    }

    /// Sends one command and waits for its answer.
    async fn ask(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        command: &Cmd,
    ) -> Result<Value, SinkError> {
        let no_answer = |error: io::Error| unreachable(&self.server, &error);
        // A server that hangs up may have said why.
        let sent = stream.write_all(&command.get_packed_command()).await;
        let sent = match sent {
            Ok(()) => stream.flush().await,
            Err(error) => Err(error),
        };
        let mut said = Vec::new();
        loop {
            let count = stream.read_buf(&mut said).await.map_err(no_answer)?;
            if let Ok(answer) = parse_redis_value(&said) {
                return Ok(answer);
            }
            if count == 0 || said.len() > ANSWER_BYTES_MAX {
                let error = sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                return Err(no_answer(error));
            }
        }
    }
}

/// Sends commands in one piece.
async fn send(
    mut connection: MultiplexedConnection,
    mut commands: Vec<Cmd>,
) -> Result<Vec<Value>, RedisError> {
    if let (Some(command), true) = (commands.first(), commands.len() == 1) {
        return connection.send_packed_command(command).await.map(|answer| vec![answer]);
    }
    let count = commands.len();
    let mut pipeline = pipe();
    for command in commands.drain(..) {
        pipeline.add_command(command);
    }
    connection.send_packed_commands(&pipeline, 0, count).await
}

/// Makes the system notice when the other side is gone.
fn watch_over(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE);
    let keepalive = keepalive.with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_COUNT);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    Ok(())
}
