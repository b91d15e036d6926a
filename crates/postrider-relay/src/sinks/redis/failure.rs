//! What an error of Redis, or the lack of an answer, means for the pipeline.
//!
//! Errors name the server and the first word of its answer, which is a code. Of the rest they
//! show what cannot hold anything of an event.

use std::error::Error;
use std::time::Duration;

use redis::{ServerError, Value};

use crate::shell;
use crate::sink::{FailureKind, SinkError};
use crate::sinks::broker_url::Server;

/// What the script says of a stream that is not there.
const NO_STREAM: &str = "NOSTREAM";
const NO_PERMISSION: &str = "NOPERM";

/// Whether a connection is of no use after this answer. After a failover, for example, the name
/// of the server leads to another one.
pub(super) fn ends_connection(answer: &Value) -> bool {
    match answer {
        Value::ServerError(error) => match error.code() {
            "READONLY" | "MASTERDOWN" | "NOAUTH" => true,
            _ => details(error).starts_with("Protocol error"),
        },
        // What the script has met with.
        Value::Array(parts) => {
            matches!(&parts[..], [_, _, Value::BulkString(said)] if said.starts_with(b"READONLY"))
        }
        _ => false,
    }
}

/// The verdict on an error that the server has answered with.
pub(super) fn answered(server: &Server, error: &ServerError) -> SinkError {
    verdict(server, None, error.code(), details(error))
}

/// The same, if it was about one stream.
pub(super) fn refused(server: &Server, stream: &str, error: &ServerError) -> SinkError {
    verdict(server, Some(stream), error.code(), details(error))
}

/// The verdict on a key that the script could not use, by what Redis said of it.
pub(super) fn unusable(server: &Server, key: &str, said: &str) -> SinkError {
    let (code, details) = said.split_once(' ').unwrap_or((said, ""));
    verdict(server, Some(key), code, details)
}

/// The verdict on a stream that is not there.
pub(super) fn missing(server: &Server, stream: &str) -> SinkError {
    unusable(server, stream, NO_STREAM)
}

/// The verdict on a key that is not a stream.
pub(super) fn no_stream(server: &Server, key: &str) -> SinkError {
    unusable(server, key, "WRONGTYPE")
}

/// The verdict on a right that is missing, by what Redis said of it.
pub(super) fn not_permitted(server: &Server, said: &str) -> SinkError {
    verdict(server, None, NO_PERMISSION, said)
}

/// The verdict on a server that cannot be reached, or no longer.
pub(super) fn unreachable(server: &Server, error: &(dyn Error + 'static)) -> SinkError {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    // The words of `rustls::Error`.
    let has = |words: &str| texts.iter().any(|text| text.contains(words));
    let misconfigured = |message| SinkError::new(FailureKind::Misconfigured, message);
    if has("invalid peer certificate") {
        return misconfigured(format!(
            "the certificate of {server} is not trusted: {}; name its authority with \
             tls = {{ ca_file = \"…\" }}, and the server as its certificate does",
            texts.last().map_or("", String::as_str)
        ));
    }
    if has("CertificateRequired") || has("received fatal alert") {
        return misconfigured(format!(
            "{server} does not accept us: {}; if it wants a certificate, set \
             tls = {{ certificate_file = \"…\", key_file = \"…\" }}",
            texts.last().map_or("", String::as_str)
        ));
    }
    if has("InvalidContentType") || has("corrupt message") {
        return misconfigured(format!("{server} does not speak TLS there; write redis://"));
    }
    let cause = texts.last().map_or("", String::as_str);
    SinkError::new(FailureKind::Unavailable, format!("no connection to {server}: {cause}"))
}

/// The verdict on a server that has not answered.
pub(super) fn timed_out(server: &Server, timeout: Duration) -> SinkError {
    let message = format!("{server} did not answer within {timeout:?}");
    SinkError::new(FailureKind::Unavailable, message)
}

/// The verdict on a connection that did not come about in time.
pub(super) fn not_connected(server: &Server, timeout: Duration, has_tls: bool) -> SinkError {
    let mut error = timed_out(server, timeout);
    if has_tls {
        error.message.push_str("; if it does not speak TLS, write redis://");
    }
    error
}

/// The verdict on a message that is larger than the server takes.
pub(super) fn too_large(server: &Server, bytes: usize, max: usize) -> SinkError {
    let message =
        format!("the message has {bytes} bytes, {server} takes at most {max} (proto-max-bulk-len)");
    SinkError::new(FailureKind::Rejected, message)
}

/// The verdict on an event for a key that is the relay's own.
pub(super) fn reserved(key: &str) -> SinkError {
    let message = format!(
        "the key {key} is for the ids that a relay remembers, and no stream of events; change the \
         event's topic, or the template `topic`"
    );
    SinkError::new(FailureKind::Rejected, message)
}

/// The verdict on what was to be sent together with that.
pub(super) fn not_sent(server: &Server) -> SinkError {
    let message = format!("not sent to {server}: another message of the call is too large");
    SinkError::new(FailureKind::Unavailable, message)
}

/// The verdict on what follows an event of its key that has failed.
pub(super) fn not_in_order() -> SinkError {
    SinkError::new(FailureKind::Unavailable, "an earlier event of its key failed")
}

/// The verdict on too few replicas.
pub(super) fn too_few_replicas(server: &Server, have: i64, wanted: usize) -> SinkError {
    let message = format!(
        "{have} replicas of {server} have the events, and wait_replicas is {wanted}; look at INFO \
         replication, or set wait_timeout higher"
    );
    SinkError::new(FailureKind::Unavailable, message)
}

/// The verdict on an answer that makes no sense.
pub(super) fn not_understood(server: &Server) -> SinkError {
    let message = format!("{server} answered what Redis never answers; is it another server?");
    SinkError::new(FailureKind::Failed, message)
}

fn verdict(server: &Server, key: Option<&str>, code: &str, details: &str) -> SinkError {
    use FailureKind::{Misconfigured, Throttled, Unavailable};
    let is_about_key = key.is_some();
    let key = key.unwrap_or_default();
    // So Redis before 7.2 says it of a command in a script.
    let is_forbidden = code == "ERR" && details.starts_with("The user executing the script");
    let code = if is_forbidden { NO_PERMISSION } else { code };
    let (kind, advice) = match code {
        NO_STREAM => {
            let message = format!(
                "{server} has no stream {key}; make it with `redis-cli XGROUP CREATE {} GROUP 0 \
                 MKSTREAM`, or set create_missing = true",
                shell::word(key)
            );
            return SinkError::of_topic(message);
        }
        "WRONGTYPE" => {
            let message = format!(
                "{key} of {server} holds something else (`redis-cli TYPE {}` says what); set topic \
                 to another name, or remove it",
                shell::word(key)
            );
            return SinkError::of_topic(message);
        }
        "OOM" => (Throttled, "trim streams (maxlen, retention), or raise maxmemory"),
        "BUSY" => {
            (Unavailable, "another client's script runs; SCRIPT KILL or FUNCTION KILL ends it")
        }
        "CLUSTERDOWN" | "LOADING" | "TRYAGAIN" => (Unavailable, ""),
        "MASTERDOWN" | "READONLY" => {
            (Unavailable, "after a failover the URL must lead to the new primary")
        }
        "MISCONF" => (Unavailable, "it cannot write to its disk; its log says why"),
        "NOREPLICAS" => (Unavailable, "min-replicas-to-write asks for more than there are"),
        "ASK" | "CROSSSLOT" | "MOVED" => {
            (Misconfigured, "it is a node of a cluster, which is not supported")
        }
        "DENIED" => {
            (Misconfigured, "it is in protected mode: give it a password or a bind address")
        }
        "NOAUTH" => (Misconfigured, "set username and password"),
        "WRONGPASS" => (Misconfigured, "check username and password"),
        NO_PERMISSION => (
            Misconfigured,
            "an administrator gives the right with `ACL SETUSER NAME ~STREAM ~{STREAM}:postrider-* \
             +eval +xadd +xtrim +time +smismember +sadd +scard +expire +unlink +rename +wait`",
        ),
        "ERR" if details.starts_with("max number of clients") => (Unavailable, "raise maxclients"),
        "ERR" if details.contains("invalid bulk length") => {
            (Misconfigured, "set event_bytes_max to what proto-max-bulk-len allows")
        }
        "ERR" if details.contains("nknown command") || details.contains("nknown Redis command") => {
            (Misconfigured, "Redis 6.2 or newer is needed, with all its commands")
        }
        "ERR" => (Misconfigured, ""),
        _ => (Unavailable, ""),
    };
    let mut message = format!("{server} answered {code}");
    for part in [shown(details), advice] {
        if !part.is_empty() {
            message.push_str("; ");
            message.push_str(part);
        }
    }
    // What nothing more is known of may be wrong with one stream, and right with others.
    let is_unknown = code == "ERR" && advice.is_empty();
    let about_topic = is_about_key && (is_unknown || code == NO_PERMISSION);
    SinkError { about_topic, ..SinkError::new(kind, message) }
}

fn details(error: &ServerError) -> &str {
    error.details().unwrap_or_default()
}

/// The details of an error, up to where it quotes what was sent.
fn shown(details: &str) -> &str {
    let end = details.find(", with args").unwrap_or(details.len());
    details[..end].trim_end_matches('.')
}

#[cfg(test)]
mod tests;
