//! Where a PostgreSQL database is and how to reach it, from a URL that `psql` would understand
//! as well: `postgres://user:password@host:port/database?sslmode=verify-full`.
//!
//! Four things are stricter than in `psql`. A server on another machine has to prove who it is,
//! unless `sslmode` says otherwise. One that has not is told the password neither in clear text
//! nor as an MD5 hash, unless `require_auth` names that. A URL whose parts cannot be told apart for certain is
//! refused, because a part of a password could be taken for a host and be shown. And a parameter
//! that is not known is refused, because a misspelt `sslmode` must not pass in silence.

mod parameters;
mod passfile;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use postrider_replication::{AuthMethods, AuthPolicy};
use tokio_postgres::config::{Config, Host, SslMode, SslNegotiation};

use self::parameters::{Parameters, Written};
use super::tls::{TlsMode, TlsSettings};
use crate::secret::Secret;

/// The port that is meant where none is written.
const PORT: u16 = 5432;
/// What is left as it is when a part of a URL is shown.
const SHOWN_AS_IS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A PostgreSQL database: which servers, which database, which user, and how to connect.
///
/// It is shown without its password and its parameters. These parameters are known; they mean
/// what they mean for `psql`, unless it says otherwise here:
///
/// | parameter | default | |
/// |---|---|---|
/// | `application_name` | `postrider …` | by what name the server shows connections |
/// | `channel_binding` | `prefer` | `disable`, `prefer`, `require` |
/// | `connect_timeout` | 10 | seconds for each server, until it has answered the first query |
/// | `host`, `hostaddr`, `port`, `dbname`, `user`, `password` | | instead of those before the `?` |
/// | `keepalives`, `keepalives_idle`, `keepalives_interval`, `keepalives_count` | 1, 10, 5, 3 | in seconds |
/// | `options` | | settings of the session, such as `-csearch_path%3Dapp` |
/// | `passfile` | | a file of passwords, read for each connection |
/// | `require_auth` | | a list of methods by which the server may be told who connects; without it, to a server that is neither verified nor on this machine, neither `password` nor `md5` |
/// | `sslcert`, `sslkey` | | the client's certificate and key, read for each connection |
/// | `sslmode` | `verify-full` | `disable`, `prefer`, `require`, `verify-ca`, `verify-full`; `prefer` is the default if every host is a socket, `localhost` or a loopback address |
/// | `sslnegotiation` | `postgres` | `postgres`, `direct` |
/// | `sslrootcert` | `system` | for `verify-full` the system's authorities; or a file, which makes `prefer` and `require` verify, too |
/// | `target_session_attrs` | | a relay always takes the primary |
/// | `tcp_user_timeout` | 15000 | milliseconds |
#[derive(Clone, PartialEq, Eq)]
pub struct Location {
    user: Option<String>,
    password: Option<Secret>,
    addresses: Vec<Address>,
    database: String,
    parameters: Parameters,
}

/// One of the servers that may be the one to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    host: Host,
    /// Connect to this, and take `host` only for the name in the server's certificate.
    ip: Option<IpAddr>,
    port: u16,
}

impl Address {
    /// Whether what is sent to it stays on this machine.
    fn is_local(&self) -> bool {
        match (&self.host, self.ip) {
            (_, Some(ip)) => ip.is_loopback(),
            (Host::Unix(_), None) => true,
            (Host::Tcp(name), None) => {
                name.eq_ignore_ascii_case("localhost")
                    || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }
}

/// How to connect to one of the servers.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) config: Config,
    /// What it may ask for.
    pub(super) auth: AuthPolicy,
}

impl Location {
    /// Reads `postgres://user:password@host:port/database?parameter=value&…`. `postgresql://` is
    /// the same. There can be several hosts, separated by commas; a Unix socket is named by its
    /// directory, as `?host=/run/postgresql`.
    pub fn parse(url: &str) -> Result<Self, InvalidLocation> {
        let rest = ["postgres://", "postgresql://"]
            .into_iter()
            .find_map(|scheme| url.strip_prefix(scheme))
            .ok_or(InvalidLocation::Scheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (user_part, hosts) = match authority.split_once('@') {
            Some((user_part, hosts)) => (user_part, hosts),
            None => ("", authority),
        };
        // Any of these can be the rest of a password.
        if hosts.contains('@') || database.contains(['/', '@']) || query.contains('@') {
            return Err(InvalidLocation::Unescaped);
        }
        let (user, password) = user_part.split_once(':').unwrap_or((user_part, ""));

        let mut written = Written::parse(query)?;
        let (names, ports) = match written.take("host") {
            Some(names) => (names.split(',').map(str::to_owned).collect(), Vec::new()),
            None if hosts.is_empty() => (Vec::new(), Vec::new()),
            None => hosts_with_ports(hosts)?,
        };
        let ports = match written.take("port") {
            Some(ports) => ports.split(',').map(parse_port).collect::<Result<_, _>>()?,
            None => ports,
        };
        let ips = match written.take("hostaddr") {
            Some(ips) => ips.split(',').map(parse_ip).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        let addresses = addresses(names, ports, ips)?;
        let is_local = addresses.iter().all(Address::is_local);
        let database = written.take("dbname").map_or_else(|| decode(database), Ok)?;
        if database.is_empty() {
            return Err(InvalidLocation::NoDatabase);
        }
        let user = written.take("user").map_or_else(|| decode(user), Ok)?;
        let password = written.take("password").map_or_else(|| decode(password), Ok)?;
        Ok(Self {
            user: Some(user).filter(|user| !user.is_empty()),
            password: Some(password).filter(|it| !it.is_empty()).map(Secret::new),
            addresses,
            database,
            parameters: Parameters::new(&mut written, is_local)?,
        })
    }

    /// The name of the database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The same, with sessions that find tables in this schema alone.
    pub(super) fn with_search_path(&self, schema: &str) -> Self {
        let mut location = self.clone();
        let options = location.parameters.options.get_or_insert_default();
        if !options.is_empty() {
            options.push(' ');
        }
        options.push_str("-csearch_path=");
        options.push_str(schema);
        location
    }

    /// How to connect to each of the servers, in order, and what each of them may ask for.
    pub(super) fn servers(&self, application_name: &str) -> std::io::Result<Vec<Server>> {
        let configs = self.configs(application_name)?;
        let servers = configs.into_iter().zip(&self.addresses);
        let server = |(config, address)| Server { config, auth: self.auth(address) };
        Ok(servers.map(server).collect())
    }

    /// A server that could be somebody else is not told the password, nor what is as good.
    fn auth(&self, address: &Address) -> AuthPolicy {
        let Parameters { require_auth, tls, .. } = &self.parameters;
        let unverified = !(AuthMethods::MD5 | AuthMethods::PASSWORD);
        let safe = |is_safe: bool| if is_safe { AuthMethods::ALL } else { unverified };
        AuthPolicy {
            encrypted: require_auth.of(safe(address.is_local() || tls.verifies())),
            plain: require_auth.of(safe(address.is_local())),
        }
    }

    /// How to connect to each of the servers, in order. The files that the URL names are read
    /// now, so that what was exchanged in them is used by the next connection.
    fn configs(&self, application_name: &str) -> std::io::Result<Vec<Config>> {
        let password_file = self.parameters.passfile.as_deref().filter(|_| self.password.is_none());
        let passwords = password_file.map(passfile::PasswordFile::read).transpose()?;
        let configs = self.addresses.iter().map(|address| {
            let mut config = self.config(address, application_name);
            let found = passwords.as_ref().and_then(|file| {
                let host = match &address.host {
                    Host::Tcp(host) => host,
                    // This is how `psql` looks for a socket.
                    Host::Unix(_) => "localhost",
                };
                file.find(host, address.port, &self.database, self.user.as_deref().unwrap_or(""))
            });
            if let Some(password) = &found {
                config.password(password.expose());
            }
            config
        });
        Ok(configs.collect())
    }

    /// Longest time to connect to one server, until it has answered the first query.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.parameters.connect_timeout
    }

    /// How connections are encrypted.
    pub(super) fn tls(&self) -> &TlsSettings {
        &self.parameters.tls
    }

    fn config(&self, address: &Address, application_name: &str) -> Config {
        let parameters = &self.parameters;
        let mut config = Config::new();
        match &address.host {
            Host::Tcp(host) => config.host(host),
            Host::Unix(directory) => config.host_path(directory),
        };
        if let Some(ip) = address.ip {
            config.hostaddr(ip);
        }
        config
            .port(address.port)
            .dbname(&self.database)
            .channel_binding(parameters.channel_binding);
        if let Some(user) = &self.user {
            config.user(user);
        }
        if let Some(password) = &self.password {
            config.password(password.expose());
        }
        if let Some(options) = &parameters.options {
            config.options(options);
        }
        config.application_name(parameters.application_name.as_deref().unwrap_or(application_name));
        // A name can have several addresses; one that does not answer leaves time for another.
        config.connect_timeout(parameters.connect_timeout / 2);
        config.ssl_mode(match (&address.host, parameters.tls.mode) {
            // PostgreSQL has no TLS on a socket, whatever is asked for.
            (Host::Unix(_), _) | (_, TlsMode::Disable) => SslMode::Disable,
            (_, TlsMode::Prefer) => SslMode::Prefer,
            (_, TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull) => SslMode::Require,
        });
        if parameters.tls.direct {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        let keepalives = &parameters.keepalives;
        config.keepalives(keepalives.used);
        if let Some(idle) = keepalives.idle {
            config.keepalives_idle(idle);
        }
        if let Some(interval) = keepalives.interval {
            config.keepalives_interval(interval);
        }
        if let Some(count) = keepalives.count {
            config.keepalives_retries(count);
        }
        if let Some(timeout) = parameters.tcp_user_timeout {
            config.tcp_user_timeout(timeout);
        }
        config
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgres://")?;
        if let Some(user) = &self.user {
            write!(f, "{}@", escaped(user))?;
        }
        for (index, address) in self.addresses.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match &address.host {
                Host::Tcp(host) if host.contains(':') => write!(f, "[{host}]")?,
                Host::Tcp(host) => write!(f, "{}", escaped(host))?,
                Host::Unix(directory) => write!(f, "{}", escaped(&directory.to_string_lossy()))?,
            }
            if address.port != PORT {
                write!(f, ":{}", address.port)?;
            }
        }
        write!(f, "/{}", escaped(&self.database))
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

/// Why a URL does not say where a database is. Never says more of the URL than the name of a
/// parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLocation {
    /// It is not a URL of PostgreSQL.
    #[error(
        "the URL does not begin with postgres://; write postgres://user:password@host/database"
    )]
    Scheme,
    /// Its parts cannot be told apart.
    #[error(
        "the URL has a special character that is not escaped; in a user name, a password or the \
         name of a database write / as %2F, @ as %40, ? as %3F and % as %25"
    )]
    Unescaped,
    /// There is no host in it.
    #[error("the URL names no host; write postgres://user:password@host/database")]
    NoHost,
    /// There is no database in it.
    #[error("the URL names no database; write postgres://user:password@host/database")]
    NoDatabase,
    /// The ports or the addresses are not one for each host.
    #[error("the URL has not as many {what} as hosts; give one for each host")]
    Counts {
        /// Of what there are too many or too few.
        what: &'static str,
    },
    /// There is no such parameter.
    #[error("the URL has an unknown parameter {name:?}; {hint}")]
    UnknownParameter {
        /// Its name.
        name: String,
        /// What may have been meant.
        hint: String,
    },
    /// A parameter, or the port, cannot have this value.
    #[error("{name} in the URL {problem}")]
    Value {
        /// Its name.
        name: &'static str,
        /// What is wrong with it, and what can be written.
        problem: &'static str,
    },
}

/// A part of a URL as it can be written.
fn escaped(part: &str) -> impl fmt::Display {
    utf8_percent_encode(part, SHOWN_AS_IS)
}

/// The text that an escaped part of a URL stands for.
fn decode(part: &str) -> Result<String, InvalidLocation> {
    let is_escape =
        |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if !part.split('%').skip(1).all(is_escape) {
        return Err(InvalidLocation::Unescaped);
    }
    let text = percent_decode_str(part).decode_utf8().map_err(|_| InvalidLocation::Unescaped)?;
    // The protocol ends a text with a zero byte.
    if text.contains('\0') {
        return Err(InvalidLocation::Unescaped);
    }
    Ok(text.into_owned())
}

/// The hosts and the ports of `host:port,host:port`.
fn hosts_with_ports(hosts: &str) -> Result<(Vec<String>, Vec<u16>), InvalidLocation> {
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[') {
            Some(bracketed) => {
                let (name, rest) = bracketed.split_once(']').ok_or(InvalidLocation::NoHost)?;
                let port = rest.strip_prefix(':');
                if port.is_none() && !rest.is_empty() {
                    return Err(InvalidLocation::NoHost);
                }
                (name, port)
            }
            None => match host.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (host, None),
            },
        };
        names.push(decode(name)?);
        ports.push(parse_port(port.unwrap_or_default())?);
    }
    Ok((names, ports))
}

fn parse_port(port: &str) -> Result<u16, InvalidLocation> {
    if port.is_empty() {
        return Ok(PORT);
    }
    let problem = "is not a number from 1 to 65535; if the password has a special character, \
                   escape it: / as %2F, @ as %40, ? as %3F";
    let parsed = port.parse().ok().filter(|port| *port > 0);
    parsed.ok_or(InvalidLocation::Value { name: "a port", problem })
}

fn parse_ip(ip: &str) -> Result<IpAddr, InvalidLocation> {
    let problem = "is not a numeric address, such as 10.0.0.1";
    ip.parse().map_err(|_| InvalidLocation::Value { name: "hostaddr", problem })
}

/// One address for each host, or for each numeric address where there are no hosts.
fn addresses(
    mut names: Vec<String>,
    ports: Vec<u16>,
    ips: Vec<IpAddr>,
) -> Result<Vec<Address>, InvalidLocation> {
    if names.is_empty() {
        names = ips.iter().map(IpAddr::to_string).collect();
    }
    if names.is_empty() || names.iter().any(String::is_empty) {
        return Err(InvalidLocation::NoHost);
    }
    if !ips.is_empty() && ips.len() != names.len() {
        return Err(InvalidLocation::Counts { what: "addresses" });
    }
    if ports.len() > 1 && ports.len() != names.len() {
        return Err(InvalidLocation::Counts { what: "ports" });
    }
    let address = |(index, name): (usize, String)| Address {
        host: match name.starts_with('/') {
            true => Host::Unix(Path::new(&name).to_owned()),
            false => Host::Tcp(name),
        },
        ip: ips.get(index).copied(),
        port: ports.get(index).or(ports.first()).copied().unwrap_or(PORT),
    };
    Ok(names.into_iter().enumerate().map(address).collect())
}
