//! How a connection comes about: to the first server that takes it.
//!
//! The stream is made here and handed to lapin, which then drives it in a thread of its own. So
//! each step has its time, several servers can be tried, the TLS is ours, and there is a way to
//! end a connection at once: its [`Plug`].

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lapin::tcp::{AsyncTcpStream, RustlsConnector};
use lapin::uri::{
    AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo, SASLMechanism,
};
use lapin::{Connection, ConnectionProperties, runtime};
use tokio::net::lookup_host;
use tokio::time::{Instant, timeout_at};
use tracing::dispatcher::{self, Dispatch};

use super::failure::{self, Place};
use super::options::{Auth, CheckedOptions};
use crate::sink::{FailureKind, SinkError};
use crate::sinks::Secret;
use crate::sinks::broker_url::Server;

/// What it takes to connect.
pub(super) struct Connector {
    servers: Vec<Server>,
    place: Place,
    password: Secret,
    auth: Auth,
    tls: Option<RustlsConnector>,
    /// For each server.
    timeout: Duration,
    /// For an answer over a connection that there is.
    answer_timeout: Duration,
    heartbeat_seconds: u16,
    /// What the server shows the connection as.
    name: String,
}

/// Pulled when it is dropped: the connection is ended, whatever state it is in. Left to lapin, one
/// that is blocked or whose server is silent would never end, and keep its thread.
pub(super) struct Plug(TcpStream);

impl Drop for Plug {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Connector {
    /// Reads the files of TLS.
    pub(super) fn new(options: &CheckedOptions) -> Result<Self, SinkError> {
        let tls = options.tls.as_ref().map(|tls| tls.client_config()).transpose()?;
        let name = match options.pipeline.name.as_str() {
            "" => "postrider".to_owned(),
            name => format!("postrider {name}"),
        };
        Ok(Self {
            servers: options.servers.clone(),
            place: Place { vhost: options.vhost.clone(), user: options.user.clone() },
            password: options.password.clone(),
            auth: options.auth,
            tls: tls.map(|config| Arc::new(config).into()),
            timeout: options.connect_timeout,
            answer_timeout: options.confirm_timeout,
            heartbeat_seconds: options.heartbeat_seconds,
            name,
        })
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn answer_timeout(&self) -> Duration {
        self.answer_timeout
    }

    /// Connects to the first server that takes it.
    pub(super) async fn connect(&self) -> Result<(Connection, Plug), SinkError> {
        let mut failures = Vec::new();
        for server in &self.servers {
            match self.connect_to(server).await {
                Ok(connected) => return Ok(connected),
                // The other servers would say the same.
                Err(error) if error.kind == FailureKind::Misconfigured => return Err(error),
                Err(error) => failures.push(error.message),
            }
        }
        Err(SinkError::new(FailureKind::Unavailable, failures.join("; ")))
    }

    async fn connect_to(&self, server: &Server) -> Result<(Connection, Plug), SinkError> {
        let shown = server.to_string();
        let deadline = Instant::now() + self.timeout;
        let late =
            |what: &str| failure::unavailable(&shown, &format!("{what} within {:?}", self.timeout));
        let runtime = runtime::default_runtime()
            .map_err(|error| failure::connecting(&error, &shown, &self.place, ""))?;
        let opening = async {
            let found = lookup_host((server.host.as_str(), server.port)).await?;
            let addresses: Vec<SocketAddr> = found.collect();
            let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
            let AsyncTcpStream::Plain(plain) = &stream else {
                return Err(io::Error::other("the stream is not a plain one"));
            };
            let plug = Plug(plain.get_ref().as_fd().try_clone_to_owned()?.into());
            let stream = match &self.tls {
                Some(tls) => stream.into_rustls(tls, &server.host).await?,
                None => stream,
            };
            Ok((stream, plug))
        };
        let (stream, plug) = timeout_at(deadline, opening)
            .await
            .map_err(|_| late("no connection"))?
            .map_err(|error| failure::broken(&error, &shown))?;
        let stream = Mutex::new(Some(stream));
        let hand_over = async move |_, _| {
            silence();
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            // It is asked for once: nothing here is connected again.
            stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
        };
        let greeting =
            Connection::connector(self.uri(server), runtime, hand_over, self.properties());
        let connection = timeout_at(deadline, greeting)
            .await
            .map_err(|_| late("no answer"))?
            .map_err(|error| failure::connecting(&error, &shown, &self.place, self.hint()))?;
        Ok((connection, plug))
    }

    /// What may be wrong if the server hangs up and does not say why.
    fn hint(&self) -> &'static str {
        match (self.auth, &self.tls) {
            (Auth::External, _) => {
                "; if it does not know EXTERNAL, run rabbitmq-plugins enable \
                 rabbitmq_auth_mechanism_ssl and set auth_mechanisms.1 = EXTERNAL in rabbitmq.conf"
            }
            (Auth::Plain, Some(_)) => {
                "; if it asks for a certificate, see certificate_file and key_file of tls"
            }
            (Auth::Plain, None) => "; if it is the port for TLS, write amqps://",
        }
    }

    fn uri(&self, server: &Server) -> AMQPUri {
        let mechanism = match self.auth {
            Auth::External => SASLMechanism::External,
            Auth::Plain => SASLMechanism::Plain,
        };
        let userinfo = AMQPUserInfo {
            username: self.place.user.clone(),
            password: self.password.expose().to_owned(),
        };
        AMQPUri {
            // The stream is encrypted already, if it should be.
            scheme: AMQPScheme::AMQP,
            authority: AMQPAuthority { userinfo, host: server.host.clone(), port: server.port },
            vhost: self.place.vhost.clone(),
            query: AMQPQueryString {
                heartbeat: Some(self.heartbeat_seconds),
                auth_mechanism: Some(mechanism),
                ..AMQPQueryString::default()
            },
        }
    }

    fn properties(&self) -> ConnectionProperties {
        ConnectionProperties::default()
            .with_connection_name(self.name.as_str().into())
            .with_client_property("product".into(), "postrider".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into())
    }
}

/// Turns off the log of this thread, which is lapin's own: it writes whole messages, with their
/// payloads, to the log when they come back. What matters becomes an error of ours.
fn silence() {
    std::mem::forget(dispatcher::set_default(&Dispatch::none()));
}
