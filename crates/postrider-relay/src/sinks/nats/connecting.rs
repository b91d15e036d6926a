//! How a connection comes about.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_nats::{ConnectError, ConnectErrorKind, ConnectOptions, ReconnectToServer, ServerAddr};
use tokio::time::timeout;

use super::connection::Connection;
use super::options::{CheckedOptions, Identity};
use super::said::Listener;
use super::{misconfigured, unavailable};
use crate::sink::{FailureKind, SinkError};
use crate::sinks::TlsOptions;
use crate::sinks::broker_url::Server;

/// A connection is given up when the third ping in a row is due and none was answered: after
/// three quarters of the time for confirmations.
const PINGS_PER_ACK_TIMEOUT: u32 = 4;
/// Where no server ever is, and the kernel says so at once.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// Connects to the first server that lets us.
pub(super) async fn connect(options: &CheckedOptions) -> Result<Connection, SinkError> {
    let mut worst: Option<SinkError> = None;
    for server in &options.servers {
        match connect_to(server, options).await {
            Ok(connection) => return Ok(connection),
            // What an operator can mend tells more than that another server is away.
            Err(error) => {
                if worst.as_ref().is_none_or(|worst| worst.kind != FailureKind::Misconfigured) {
                    worst = Some(error);
                }
            }
        }
    }
    Err(worst.expect("a URL names at least one server"))
}

async fn connect_to(server: &Server, options: &CheckedOptions) -> Result<Connection, SinkError> {
    let address: ServerAddr = format!("nats://{server}")
        .parse()
        .map_err(|_| misconfigured(format!("{server} is not the address of a server")))?;
    let listener = Listener::default();
    let hearing = listener.clone();
    let connecting = with_identity(&options.identity)
        .await?
        .connection_timeout(options.connect_timeout)
        .custom_inbox_prefix(&options.inbox_prefix)
        .event_callback(move |event| {
            hearing.hear(event);
            std::future::ready(())
        })
        .name(format!("postrider {}", options.pipeline.name).trim_end())
        .ping_interval(options.ack_timeout / PINGS_PER_ACK_TIMEOUT)
        // The sink has looked at them already.
        .skip_subject_validation(true)
        .require_tls(options.tls.is_some());
    let connecting = match &options.tls {
        Some(tls) => connecting.tls_client_config(tls.client_config()?),
        // The server may demand it. If the system trusts nobody, that shows then.
        None => match TlsOptions::default().client_config() {
            Ok(config) => connecting.tls_client_config(config),
            Err(_) => connecting,
        },
    };
    let connecting = if options.tls_first { connecting.tls_first() } else { connecting };
    let connecting = only_once(connecting, &address).connect(addresses(&address));
    // The client's own time is for each address that the name has.
    let connected = timeout(options.connect_timeout, connecting).await.map_err(|_| {
        let longest = options.connect_timeout;
        unavailable(format!("cannot connect to {server}: timed out after {longest:?}"))
    })?;
    let client = connected.map_err(|error| failure(&error, server, options))?;
    Ok(Connection::new(client, server.to_string(), listener))
}

/// Makes the client end with its connection, instead of connecting again: the one try that it
/// cannot be kept from leads nowhere.
fn only_once(connecting: ConnectOptions, address: &ServerAddr) -> ConnectOptions {
    let (address, nowhere) = (address.clone(), nowhere());
    let is_first = Arc::new(AtomicBool::new(true));
    connecting.ignore_discovered_servers().max_reconnects(1).reconnect_to_server_callback(
        move |_, _| {
            let address = if is_first.swap(false, Relaxed) { &address } else { &nowhere };
            let to = ReconnectToServer { addr: address.clone(), delay: Some(Duration::ZERO) };
            std::future::ready(Some(to))
        },
    )
}

fn addresses(address: &ServerAddr) -> Vec<ServerAddr> {
    vec![address.clone(), nowhere()]
}

fn nowhere() -> ServerAddr {
    NOWHERE.parse().expect("it is an address")
}

async fn with_identity(identity: &Identity) -> Result<ConnectOptions, SinkError> {
    Ok(match identity {
        Identity::None => ConnectOptions::new(),
        Identity::Credentials(path) => {
            let read = ConnectOptions::with_credentials_file(path).await;
            read.map_err(|error| {
                misconfigured(format!(
                    "cannot use credentials_file {}: {error}; it is made by `nsc generate creds`",
                    path.display()
                ))
            })?
        }
        Identity::Nkey(seed) => ConnectOptions::with_nkey(seed.expose().to_owned()),
        Identity::Token(token) => ConnectOptions::with_token(token.expose().to_owned()),
        Identity::User(user, password) => {
            ConnectOptions::with_user_and_password(user.clone(), password.expose().to_owned())
        }
    })
}

/// What a connection that did not come about means.
fn failure(error: &ConnectError, server: &Server, options: &CheckedOptions) -> SinkError {
    let text = error.to_string();
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match error.kind() {
        ConnectErrorKind::Authentication => misconfigured(format!(
            "cannot sign in to {server} with nkey_seed or credentials_file: they hold no seed of a \
             user, which begins with SU"
        )),
        ConnectErrorKind::AuthorizationViolation => misconfigured(refused(server, options)),
        // The words of a server whose user has expired or was revoked.
        _ if has(&["Authentication Expired", "Authentication Revoked"]) => {
            misconfigured(format!("{}: {text}", refused(server, options)))
        }
        // The words of `rustls::Error`.
        _ if has(&["invalid peer certificate"]) => misconfigured(format!(
            "the certificate of {server} is not trusted: {text}; name whom to trust with \
             tls = {{ ca_file = \"…\" }}"
        )),
        _ if has(&["InvalidContentType"]) => {
            misconfigured(format!("{server} does not speak TLS: {text}; let it, or leave tls out"))
        }
        _ if has(&["CertificateRequired", "BadCertificate", "UnknownCA", "DecryptError"]) => {
            misconfigured(format!(
                "{server} does not accept the relay's certificate: {text}; name one with \
                 tls = {{ certificate_file = \"…\", key_file = \"…\" }}"
            ))
        }
        _ => unavailable(format!("cannot connect to {server}: {text}")),
    }
}

fn refused(server: &Server, options: &CheckedOptions) -> String {
    let who = match &options.identity {
        Identity::None => {
            "a relay that does not say who it is; set username and password, token, \
                           nkey_seed or credentials_file"
        }
        Identity::Credentials(_) => "the user of credentials_file",
        Identity::Nkey(_) => "the user of nkey_seed; add its public key to the server's users",
        Identity::Token(_) => "the token",
        Identity::User(_, _) => "the user name or the password",
    };
    format!("{server} refuses {who}")
}
