//! The parameters after the `?` of a URL, with the names and meanings that they have for `psql`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use postrider_replication::AuthMethods;
use tokio_postgres::config::ChannelBinding;

use super::{InvalidLocation, decode};
use crate::sources::postgres::tls::{Roots, TlsMode, TlsSettings};
use crate::suggestion::nearest;

/// Longest time to connect to one server, unless the URL says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that can be asked for.
const CONNECT_TIMEOUT_SECS_MAX: u64 = 600;
/// How long a connection is silent before the other side is asked whether it is still there.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(10);
/// How long to wait before it is asked again.
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(5);
/// How often it is asked.
const KEEPALIVES_COUNT: u32 = 3;
/// How long what was sent may stay without an acknowledgement.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) const NAMES: [&str; 23] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "dbname",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "options",
    "passfile",
    "password",
    "port",
    "require_auth",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslrootcert",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
];

/// The parameters as they are written. May hold a password.
pub(super) struct Written(BTreeMap<&'static str, String>);

impl Written {
    pub(super) fn parse(query: &str) -> Result<Self, InvalidLocation> {
        let mut written = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name)?;
            let value = decode(value)?;
            match NAMES.iter().find(|known| **known == name) {
                Some(known) if value.is_empty() => {
                    let problem = "has no value; write one or remove the parameter";
                    return Err(InvalidLocation::Value { name: known, problem });
                }
                Some(known) => written.insert(*known, value),
                None => return Err(unknown(name)),
            };
        }
        Ok(Self(written))
    }

    pub(super) fn take(&mut self, name: &'static str) -> Option<String> {
        debug_assert!(NAMES.contains(&name), "{name} cannot be written");
        self.0.remove(name)
    }

    /// What `parse` makes of a parameter; `problem` says what else can be written.
    fn value<T>(
        &mut self,
        name: &'static str,
        problem: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, InvalidLocation> {
        let parse = |value: String| parse(&value).ok_or(InvalidLocation::Value { name, problem });
        self.take(name).map(parse).transpose()
    }

    /// A number of `unit`s, where 0 stands for what the system does by itself.
    fn duration(
        &mut self,
        name: &'static str,
        unit: Duration,
        default: Duration,
    ) -> Result<Option<Duration>, InvalidLocation> {
        let parse = |value: &str| value.parse::<u32>().ok().map(|number| unit * number);
        let duration = self.value(name, "is not a whole number", parse)?.unwrap_or(default);
        Ok(Some(duration).filter(|duration| !duration.is_zero()))
    }
}

fn unknown(name: String) -> InvalidLocation {
    let hint = match name.as_str() {
        "currentSchema" | "schema" | "search_path" => {
            "write options=-csearch_path%3Dapp to find tables in the schema app".to_owned()
        }
        "keepalives_retries" => "write keepalives_count".to_owned(),
        "ssl" => "write sslmode".to_owned(),
        _ => match nearest(&name, NAMES) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("these are known: {}", NAMES.join(", ")),
        },
    };
    InvalidLocation::UnknownParameter { name, hint }
}

/// What a URL says beyond where the servers are and who connects.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) application_name: Option<String>,
    pub(super) channel_binding: ChannelBinding,
    pub(super) connect_timeout: Duration,
    pub(super) keepalives: Keepalives,
    pub(super) options: Option<String>,
    pub(super) passfile: Option<PathBuf>,
    pub(super) require_auth: RequireAuth,
    pub(super) tcp_user_timeout: Option<Duration>,
    pub(super) tls: TlsSettings,
}

/// By which methods a server may be told who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequireAuth {
    /// By these, whatever is known of the server.
    Only(AuthMethods),
    /// By those that are safe with the server, but for these.
    Not(AuthMethods),
}

const REQUIRE_AUTH_PROBLEM: &str = "is not a list of password, md5, scram-sha-256, gss, sspi, \
     oauth and none, with commas between them, each once, and with a ! before all of them or none";

impl RequireAuth {
    fn parse(list: &str) -> Option<Self> {
        let is_negated = list.starts_with('!');
        let mut methods = !AuthMethods::ALL;
        for name in list.split(',') {
            let name = match is_negated {
                true => name.strip_prefix('!')?,
                false => name,
            };
            let method = AuthMethods::from_name(name)?;
            if methods.has(method) {
                return None;
            }
            methods = methods | method;
        }
        Some(if is_negated { Self::Not(methods) } else { Self::Only(methods) })
    }

    /// What is permitted, given what is safe.
    pub(super) fn of(self, safe: AuthMethods) -> AuthMethods {
        match self {
            Self::Only(methods) => methods,
            Self::Not(methods) => safe & !methods,
        }
    }
}

/// How to find out that the other side of a silent connection is gone. `None` is what the system
/// does by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keepalives {
    pub(super) used: bool,
    pub(super) idle: Option<Duration>,
    pub(super) interval: Option<Duration>,
    pub(super) count: Option<u32>,
}

impl Parameters {
    /// `is_local` says that no server is on another machine.
    pub(super) fn new(written: &mut Written, is_local: bool) -> Result<Self, InvalidLocation> {
        const SECOND: Duration = Duration::from_secs(1);
        // The relay connects to the primary, whatever is asked for; it just must not be asked for
        // something else.
        written.value(
            "target_session_attrs",
            "is not any, primary or read-write; a relay needs the primary",
            |value| matches!(value, "any" | "primary" | "read-write").then_some(()),
        )?;
        let keepalives = Keepalives {
            used: written
                .value("keepalives", "is not 0 or 1", |value| match value {
                    "0" => Some(false),
                    "1" => Some(true),
                    _ => None,
                })?
                .unwrap_or(true),
            idle: written.duration("keepalives_idle", SECOND, KEEPALIVES_IDLE)?,
            interval: written.duration("keepalives_interval", SECOND, KEEPALIVES_INTERVAL)?,
            count: written
                .value("keepalives_count", "is not a whole number", |value| value.parse().ok())?
                .or(Some(KEEPALIVES_COUNT))
                .filter(|count| *count > 0),
        };
        Ok(Self {
            application_name: written.take("application_name"),
            channel_binding: written
                .value("channel_binding", "is not disable, prefer or require", channel_binding)?
                .unwrap_or(ChannelBinding::Prefer),
            connect_timeout: written
                .value("connect_timeout", "is not a number of seconds from 1 to 600", |value| {
                    let seconds = value.parse().ok()?;
                    (1..=CONNECT_TIMEOUT_SECS_MAX)
                        .contains(&seconds)
                        .then(|| Duration::from_secs(seconds))
                })?
                .unwrap_or(CONNECT_TIMEOUT),
            keepalives,
            options: written.take("options"),
            passfile: written.take("passfile").map(PathBuf::from),
            require_auth: written
                .value("require_auth", REQUIRE_AUTH_PROBLEM, RequireAuth::parse)?
                .unwrap_or(RequireAuth::Not(!AuthMethods::ALL)),
            tcp_user_timeout: written.duration(
                "tcp_user_timeout",
                Duration::from_millis(1),
                TCP_USER_TIMEOUT,
            )?,
            tls: tls(written, is_local)?,
        })
    }
}

fn channel_binding(value: &str) -> Option<ChannelBinding> {
    match value {
        "disable" => Some(ChannelBinding::Disable),
        "prefer" => Some(ChannelBinding::Prefer),
        "require" => Some(ChannelBinding::Require),
        _ => None,
    }
}

fn tls(written: &mut Written, is_local: bool) -> Result<TlsSettings, InvalidLocation> {
    let roots = written.take("sslrootcert").map(|roots| match roots.as_str() {
        "system" => Roots::System,
        _ => Roots::File(PathBuf::from(roots)),
    });
    let mode = written.value(
        "sslmode",
        "is not disable, prefer, require, verify-ca or verify-full",
        TlsMode::from_name,
    )?;
    // On the way to another machine anybody could stand in for the server and ask for the
    // password. `psql` would answer.
    let mode = mode.unwrap_or(match roots {
        Some(Roots::System) => TlsMode::VerifyFull,
        _ if is_local => TlsMode::Prefer,
        _ => TlsMode::VerifyFull,
    });
    // Half of the servers of the world have a certificate that the system trusts: it means
    // something only together with the name in it.
    let name = "sslmode";
    match (mode, &roots) {
        (TlsMode::VerifyFull, _) | (TlsMode::Disable, None) => {}
        (_, Some(Roots::System)) => {
            let problem = "is too weak for sslrootcert=system; write sslmode=verify-full";
            return Err(InvalidLocation::Value { name, problem });
        }
        (TlsMode::VerifyCa, None) => {
            let problem = "is verify-ca, which needs sslrootcert=<file>; write it, or verify-full";
            return Err(InvalidLocation::Value { name, problem });
        }
        _ => {}
    }
    let certificate = written.take("sslcert").map(PathBuf::from);
    let key = written.take("sslkey").map(PathBuf::from);
    let identity = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => {
            let problem = "needs sslkey=<file> beside it";
            return Err(InvalidLocation::Value { name: "sslcert", problem });
        }
        (None, Some(_)) => {
            let problem = "needs sslcert=<file> beside it";
            return Err(InvalidLocation::Value { name: "sslkey", problem });
        }
    };
    let direct = written
        .value("sslnegotiation", "is not postgres or direct", |value| match value {
            "postgres" => Some(false),
            "direct" => Some(true),
            _ => None,
        })?
        .unwrap_or(false);
    if direct && matches!(mode, TlsMode::Disable | TlsMode::Prefer) {
        let problem = "is direct, which needs sslmode=require or a stronger one";
        return Err(InvalidLocation::Value { name: "sslnegotiation", problem });
    }
    Ok(TlsSettings { mode, roots, identity, direct })
}
