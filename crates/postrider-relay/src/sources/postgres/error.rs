//! What PostgreSQL's errors mean for the relay.
//!
//! The server's messages are passed on where they name things of the schema or the server. Its
//! details and hints, and messages about values, can quote rows: they never leave this file.

use std::error::Error as _;
use std::time::Duration;
use std::{fmt, io};

use postrider::schema::TableName;
use postrider_replication::{RefusedAuth, RefusedMessage};
use rustls::CertificateError;
use tokio_postgres::error::{DbError, Severity, SqlState};

use super::Location;
use crate::shell::word;
use crate::source::{NotPermitted, SourceError, SourceErrorKind};

/// What can go wrong while the database is used.
pub(super) enum Trouble {
    /// The server, or the way to it.
    Postgres(tokio_postgres::Error),
    /// What was found cannot be used.
    Refused(SourceError),
    /// There was no answer in time.
    TimedOut {
        /// How long it was waited for.
        after: Duration,
    },
}

impl Trouble {
    pub(super) fn while_doing(self, doing: &str) -> SourceError {
        match self {
            Self::Postgres(err) => source_error(doing, err),
            Self::Refused(error) => error,
            Self::TimedOut { after } => {
                let message = format!("cannot {doing}: no answer within {} s", after.as_secs_f32());
                SourceError::new(SourceErrorKind::Unavailable, message).with_hint(
                    "look for a transaction that holds a lock, or a server or network that is \
                     overloaded",
                )
            }
        }
    }

    /// Whether the server answered with this code.
    pub(super) fn is(&self, code: &SqlState) -> bool {
        matches!(self, Self::Postgres(err) if err.code() == Some(code))
    }

    /// Whether there is nothing left to go on with.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Refused(error) if error.kind == SourceErrorKind::Lost)
    }

    /// Whether the connection on which it happened is of no use any more.
    pub(super) fn ends_connection(&self) -> bool {
        match self {
            Self::Postgres(err) => match err.as_db_error() {
                Some(err) => {
                    let fatal = [Some(Severity::Fatal), Some(Severity::Panic)];
                    fatal.contains(&err.parsed_severity())
                        // The server became a replica: another one is the primary.
                        || *err.code() == SqlState::READ_ONLY_SQL_TRANSACTION
                }
                None => err.is_closed() || io_error(err).is_some(),
            },
            Self::Refused(_) => false,
            Self::TimedOut { .. } => true,
        }
    }
}

impl fmt::Debug for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(err) => match err.as_db_error() {
                Some(err) => write!(f, "Postgres({:?})", Answer::of(err)),
                None => write!(f, "Postgres({err:?})"),
            },
            Self::Refused(error) => write!(f, "Refused({error:?})"),
            Self::TimedOut { after } => write!(f, "TimedOut({after:?})"),
        }
    }
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(err: tokio_postgres::Error) -> Self {
        Self::Postgres(err)
    }
}

impl From<SourceError> for Trouble {
    fn from(error: SourceError) -> Self {
        Self::Refused(error)
    }
}

/// The tables are not there, or not as they should be.
pub(super) fn not_migrated(
    location: &Location,
    outbox: &TableName,
    what: impl Into<String>,
) -> SourceError {
    let shown = location.to_string();
    let mut command = match Location::parse(&shown).as_ref() == Ok(location) {
        true => format!("postrider migrate --from {shown}"),
        // A password or parameters are not shown: without them it would not be the same.
        false => "postrider migrate --from \"$POSTRIDER_SOURCE__URL\"".to_owned(),
    };
    if *outbox != TableName::default() {
        command.push_str(&format!(" --table {}", word(outbox.as_str())));
    }
    SourceError::new(SourceErrorKind::Misconfigured, what).with_hint(format!("run `{command}`"))
}

/// Turns an error of PostgreSQL into what the pipeline can act on.
pub(super) fn source_error(doing: &str, err: tokio_postgres::Error) -> SourceError {
    // Neither the server nor the network: what was answered is not what was asked for.
    let otherwise = (
        SourceErrorKind::Unsafe,
        Some("a table of the outbox is not as it should be; undo what was changed in it by hand"),
    );
    with_meaning(format!("cannot {doing}"), meaning(&err).unwrap_or(otherwise), err)
}

/// Why there is no connection, if it was not there, not encrypted or not logged in.
pub(super) fn open_error(location: &Location, err: postrider_replication::Error) -> SourceError {
    use SourceErrorKind::{Misconfigured, Unavailable};
    use postrider_replication::Error;
    let (kind, hint) = match err {
        Error::Authentication(err) => match err.downcast::<tokio_postgres::Error>() {
            Ok(err) => return connect_error(location, *err),
            Err(other) => {
                let message = format!("cannot connect to {location}");
                let mut error = SourceError::new(Misconfigured, message);
                error.source = Some(other);
                return error;
            }
        },
        Error::Io(ref err) => meaning_of_io(err),
        Error::Tls(ref err) => match err.downcast_ref::<io::Error>() {
            Some(err) => meaning_of_io(err),
            None => (Misconfigured, Some(NO_TLS_HINT)),
        },
        _ => (Unavailable, None),
    };
    let error = SourceError::new(kind, format!("cannot connect to {location}")).with_source(err);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

const NO_TLS_HINT: &str = "turn on TLS in the server; or choose another sslmode than verify-full, \
     which is the default for a server on another machine: sslmode=disable sends everything in \
     plain text, and sslmode=prefer encrypts if the server can";

/// Why there is no connection.
pub(super) fn connect_error(location: &Location, err: tokio_postgres::Error) -> SourceError {
    let meaning = meaning_of_pooler(&err).or_else(|| meaning(&err)).unwrap_or_else(|| {
        let hint = match err.source().map(ToString::to_string).as_deref() {
            Some("password missing") => "give a password in the URL or with passfile=<file>",
            _ => "check the user, the password and sslmode in the URL",
        };
        (SourceErrorKind::Misconfigured, Some(hint))
    });
    with_meaning(format!("cannot connect to {location}"), meaning, err)
}

type Meaning = (SourceErrorKind, Option<&'static str>);

fn with_meaning(message: String, (kind, hint): Meaning, err: tokio_postgres::Error) -> SourceError {
    let error = SourceError::new(kind, message);
    let error = match err.as_db_error() {
        Some(answer) if answer.code() == &SqlState::INSUFFICIENT_PRIVILEGE => {
            error.with_source(NotPermitted(Answer::of(answer).to_string()))
        }
        Some(answer) => error.with_source(Answer::of(answer)),
        None => error.with_source(err),
    };
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

/// What the server said, as far as it can be repeated.
#[derive(Debug)]
struct Answer {
    code: String,
    message: Option<String>,
}

impl Answer {
    fn of(err: &DbError) -> Self {
        let code = err.code().code();
        // Data exceptions quote the data, and functions of others say what they like.
        let quotes_values = code.starts_with("22") || code.starts_with("P0");
        let message = (!quotes_values).then(|| err.message().to_owned());
        Self { code: code.to_owned(), message }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.message {
            Some(message) => write!(f, "{message} (SQLSTATE {})", self.code),
            None => write!(f, "the server refused it with SQLSTATE {}", self.code),
        }
    }
}

impl std::error::Error for Answer {}

/// What an answer of the server or trouble of the network means.
fn meaning(err: &tokio_postgres::Error) -> Option<Meaning> {
    if let Some(answer) = err.as_db_error() {
        return Some(meaning_of_code(answer.code().code()));
    }
    if err.is_closed() {
        return Some((SourceErrorKind::Unavailable, None));
    }
    io_error(err).map(meaning_of_io)
}

fn meaning_of_io(err: &io::Error) -> Meaning {
    if let Some(refused) = err.get_ref().and_then(|err| err.downcast_ref::<RefusedMessage>()) {
        return (SourceErrorKind::Misconfigured, Some(refused_hint(refused)));
    }
    match tls_error(err) {
        Some(err) => (SourceErrorKind::Misconfigured, Some(tls_hint(err))),
        None => {
            let hint = "start the server, or check host and port in the URL";
            let is_refused = err.kind() == io::ErrorKind::ConnectionRefused;
            (SourceErrorKind::Unavailable, is_refused.then_some(hint))
        }
    }
}

fn refused_hint(refused: &RefusedMessage) -> &'static str {
    match refused {
        RefusedMessage::Auth(refused) => auth_hint(*refused),
        _ => {
            "check host and port in the URL: PostgreSQL answers no statement of a relay with that much"
        }
    }
}

/// What to do if a server asks for what it is not told.
pub(super) fn auth_hint(refused: RefusedAuth) -> &'static str {
    match refused {
        RefusedAuth::Password => {
            "have the server verified by sslmode=verify-full, or let it use scram-sha-256; or, if \
             nobody can stand in for it, write require_auth=password in the URL"
        }
        RefusedAuth::Md5 => {
            "have the server verified by sslmode=verify-full, or let it use scram-sha-256; or, if \
             nobody can stand in for it, write require_auth=md5 in the URL"
        }
        RefusedAuth::Unasked => {
            "add none to require_auth in the URL, or let pg_hba.conf of the server ask for a password"
        }
        RefusedAuth::Iterations { .. } => {
            "check host and port in the URL, and scram_iterations of the server"
        }
        _ => "add the method of pg_hba.conf to require_auth in the URL, or change it on the server",
    }
}

/// What pgbouncer means: it has one code for whatever is wrong with a client.
fn meaning_of_pooler(err: &tokio_postgres::Error) -> Option<Meaning> {
    let answer = err.as_db_error().filter(|answer| answer.code().code() == "08P01")?;
    let says = |text: &str| answer.message().contains(text);
    let hint = if says("authentication failed") || says("no such user") {
        "check the user and the password, and whether the pooler knows them"
    } else if says("startup parameter") {
        "the pooler does not pass options on; leave them out of the URL, and give the role a \
         search_path instead: ALTER ROLE … SET search_path"
    } else {
        return None;
    };
    Some((SourceErrorKind::Misconfigured, Some(hint)))
}

fn meaning_of_code(code: &str) -> Meaning {
    use SourceErrorKind::{Misconfigured, Unavailable, Unsafe};
    match code {
        "25006" => (
            Unavailable,
            Some("the server takes no writes: it became a replica, or was set to read only"),
        ),
        "28P01" => (Misconfigured, Some("check the user and the password")),
        "3D000" => (Misconfigured, Some("check the name of the database in the URL")),
        "42501" => (
            Misconfigured,
            Some("connect as a role with the rights that `postrider migrate roles` grants"),
        ),
        "3F000" | "42703" | "42883" | "42P01" => (
            Misconfigured,
            Some("run `postrider migrate --from <database url>`, or check the search_path"),
        ),
        "53100" => (Unavailable, Some("free some disk space on the server")),
        "53300" => (Unavailable, Some("the server has no connection left; raise max_connections")),
        "55P03" | "40P01" => {
            (Unavailable, Some("look for other transactions that lock the tables of the outbox"))
        }
        "57014" => {
            (Unavailable, Some("the statement was cancelled, by an operator or statement_timeout"))
        }
        "XX001" | "XX002" => {
            (Unsafe, Some("the server found damaged data; recover or restore the database"))
        }
        _ => match code.get(..2).unwrap_or_default() {
            "28" => (Misconfigured, Some("check the user, and pg_hba.conf on the server")),
            "22" | "23" | "44" | "P0" => (
                Misconfigured,
                Some("look for a constraint, a trigger or a changed column in the outbox tables"),
            ),
            // A feature or a syntax that this server has not, or a table of another shape.
            "0A" | "42" | "54" => (Misconfigured, None),
            _ => (Unavailable, None),
        },
    }
}

/// The trouble of the network below an error.
fn io_error(err: &tokio_postgres::Error) -> Option<&io::Error> {
    err.source()?.downcast_ref()
}

/// The trouble of TLS below that.
fn tls_error(err: &io::Error) -> Option<&rustls::Error> {
    err.get_ref()?.downcast_ref()
}

fn tls_hint(err: &rustls::Error) -> &'static str {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, UnknownIssuer,
    };
    match err {
        rustls::Error::InvalidCertificate(reason) => match reason {
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. } => {
                "renew the server's certificate, or set the clock"
            }
            NotValidForName | NotValidForNameContext { .. } => {
                "the host in the URL must be a subject alternative name of the server's \
                 certificate; use a host that is, or sslmode=verify-ca"
            }
            UnknownIssuer => {
                "name the certificate of the authority that signed the server's with \
                 sslrootcert=<file>"
            }
            _ => "check the server's certificate",
        },
        rustls::Error::AlertReceived(_) => {
            "the server ended the handshake; check the client certificate (sslcert and sslkey)"
        }
        _ => "check that the server is PostgreSQL with TLS 1.2 or 1.3",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_means_waiting_or_acting() {
        use SourceErrorKind::{Misconfigured, Unavailable, Unsafe};
        let cases = [
            // Failed connections, failovers, restarts, cancelled or deadlocked statements.
            ("08000 08003 08006 08P01 25006 25P03 40001 40P01 55P03 57014", Unavailable),
            ("57P01 57P02 57P03 57P04 57P05 53000 53100 53200 53300 58030 XX000", Unavailable),
            // Passwords, names, rights, tables of another shape, constraints and triggers.
            ("28000 28P01 3D000 3F000 42501 42601 42703 42804 42883 42P01", Misconfigured),
            ("0A000 22P02 22001 23502 23505 23514 P0001", Misconfigured),
            ("XX001 XX002", Unsafe),
            // None that exists.
            ("ZZ999 \u{e4}", Unavailable),
        ];
        for (codes, kind) in cases {
            for code in codes.split(' ') {
                assert_eq!(meaning_of_code(code).0, kind, "{code}");
            }
        }
    }

    #[test]
    fn tables_that_are_missing_are_made_by_a_command_without_secrets() {
        let hint = |url: &str, table: &str| {
            let (location, table) = (Location::parse(url).unwrap(), TableName::new(table).unwrap());
            not_migrated(&location, &table, "there is none").hint.unwrap()
        };
        let open = "postgres://me@host/app";
        assert_eq!(hint(open, "outbox"), "run `postrider migrate --from postgres://me@host/app`");
        assert_eq!(
            hint(open, "events"),
            "run `postrider migrate --from postgres://me@host/app --table events`"
        );
        for secret in ["postgres://me:canary@host/app", "postgres://me@host/app?sslmode=require"] {
            let expected = "run `postrider migrate --from \"$POSTRIDER_SOURCE__URL\"`";
            assert_eq!(hint(secret, "outbox"), expected);
        }
    }

    #[test]
    fn what_takes_too_long_is_unavailable() {
        let trouble = Trouble::TimedOut { after: Duration::from_secs(30) };
        assert!(trouble.ends_connection());
        let error = trouble.while_doing("read the outbox");
        assert_eq!(error.kind, SourceErrorKind::Unavailable);
        assert_eq!(error.message, "cannot read the outbox: no answer within 30 s");
        let refused = SourceError::new(SourceErrorKind::Unsafe, "no");
        assert_eq!(Trouble::from(refused).while_doing("read").message, "no");
    }
}
