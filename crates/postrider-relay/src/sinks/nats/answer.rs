//! What a stream's answer means for the pipeline.

use std::borrow::Cow;

use async_nats::{Message, StatusCode};
use serde::Deserialize;

use crate::sink::{FailureKind, SinkError};

/// What was answered to a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A stream has it, now or already before.
    Kept,
    /// Nobody listens to the subject.
    NoResponders,
    /// A stream does not want it.
    Refused { stream: Option<String>, error: ApiError },
    /// Whoever said this is no stream: anybody may listen to a subject and answer.
    Unrelated,
}

/// An error of JetStream.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(super) struct ApiError {
    /// Like those of HTTP.
    #[serde(default)]
    pub(super) code: u16,
    /// See `server/errors.json` of nats-server.
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    pub(super) description: String,
}

impl ApiError {
    pub(super) const NOT_ENABLED: u32 = 10076;
    pub(super) const NOT_ENABLED_FOR_ACCOUNT: u32 = 10039;
    pub(super) const STREAM_NAME_IN_USE: u32 = 10058;
    pub(super) const STREAM_NOT_FOUND: u32 = 10059;
    const ACCOUNT_LIMITS: u32 = 10002;
    const DUPLICATE_IN_PROCESS: u32 = 10158;
    const HEADERS_TOO_LARGE: u32 = 10097;
    const SEALED: u32 = 10109;
    const STORE_FAILED: u32 = 10077;
    const TOO_LARGE: u32 = 10054;
    const WRONG_STREAM: u32 = 10060;

    /// The account, or the whole server, has no streams.
    pub(super) fn is_not_enabled(&self) -> bool {
        matches!(self.err_code, Self::NOT_ENABLED | Self::NOT_ENABLED_FOR_ACCOUNT)
    }
}

#[derive(Deserialize)]
struct PubAck<'a> {
    #[serde(default, borrow)]
    stream: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    error: Option<ApiError>,
}

impl Answer {
    pub(super) fn read(message: &Message) -> Self {
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return Self::NoResponders;
        }
        let Ok(ack) = serde_json::from_slice::<PubAck<'_>>(&message.payload) else {
            return Self::Unrelated;
        };
        let stream = (!ack.stream.is_empty()).then_some(ack.stream);
        match (ack.error, stream) {
            (Some(error), stream) => Self::Refused { stream: stream.map(Cow::into_owned), error },
            (None, Some(_)) if ack.seq > 0 => Self::Kept,
            (None, _) => Self::Unrelated,
        }
    }
}

/// The verdict on a message that a stream does not want.
pub(super) fn refusal(
    error: &ApiError,
    stream: Option<&str>,
    expected: Option<&str>,
    subject: &str,
    body_bytes: usize,
) -> SinkError {
    use FailureKind::{Failed, Misconfigured, Rejected, Throttled, Unavailable};

    let name = stream.unwrap_or("NAME");
    let the_stream = stream.map_or("the stream".to_owned(), |name| format!("the stream {name}"));
    let ApiError { code, err_code, description } = error;
    let (kind, message) = match *err_code {
        ApiError::WRONG_STREAM => {
            let expected = expected.unwrap_or("NAME");
            let message = format!(
                "{subject} is not taken by the stream {expected} but by another one; set stream to \
                 what `nats stream ls --subject {subject}` says"
            );
            (Misconfigured, message)
        }
        ApiError::SEALED => (Misconfigured, format!("{the_stream} is sealed and takes no more")),
        ApiError::TOO_LARGE => {
            let message = format!(
                "the message has {body_bytes} bytes and headers, more than {the_stream} takes \
                 (`nats stream edit {name} --max-msg-size=…`)"
            );
            (Rejected, message)
        }
        ApiError::HEADERS_TOO_LARGE => {
            (Rejected, format!("{the_stream} does not take so many headers: {description}"))
        }
        ApiError::STORE_FAILED if description.starts_with("maximum ") => {
            let message = format!(
                "{the_stream} is full ({description}); let consumers catch up, or raise its limits \
                 with `nats stream edit {name}`"
            );
            (Throttled, message)
        }
        ApiError::ACCOUNT_LIMITS => {
            (Throttled, format!("the account is full: {description}; raise its JetStream limits"))
        }
        // It was sent twice within a moment and the first copy is about to be stored.
        ApiError::DUPLICATE_IN_PROCESS => (Throttled, format!("{the_stream}: {description}")),
        _ if error.is_not_enabled() => (Misconfigured, not_enabled(description)),
        _ if *code == 429 => (Throttled, format!("{the_stream} is overloaded: {description}")),
        ApiError::STORE_FAILED => {
            (Unavailable, format!("{the_stream} cannot store anything: {description}"))
        }
        _ if *code >= 500 => (Unavailable, format!("{the_stream}: {description} ({err_code})")),
        _ => (Failed, format!("{the_stream} refused it: {description} ({err_code})")),
    };
    let about_topic = matches!(*err_code, ApiError::SEALED | ApiError::WRONG_STREAM);
    SinkError { about_topic, ..SinkError::new(kind, message) }
}

/// There are no streams at all.
pub(super) fn not_enabled(description: &str) -> String {
    format!(
        "{description}; enable JetStream: jetstream {{ store_dir: \"…\" }} in the server's \
         configuration, and jetstream: enabled for the relay's account"
    )
}

#[cfg(test)]
mod tests {
    use async_nats::Subject;

    use super::*;

    fn read(payload: &str, status: Option<StatusCode>) -> Answer {
        Answer::read(&Message {
            subject: Subject::from_static("_INBOX.x"),
            reply: None,
            payload: payload.to_owned().into(),
            headers: None,
            status,
            description: None,
            length: 0,
        })
    }

    #[test]
    fn only_a_stream_can_confirm() {
        assert_eq!(read(r#"{"stream":"S","seq":1}"#, None), Answer::Kept);
        assert_eq!(read(r#"{"stream":"S","seq":1,"duplicate":true}"#, None), Answer::Kept);
        assert_eq!(read(r#"{"stream":"S","seq":1,"domain":"d","x":[1]}"#, None), Answer::Kept);
        assert_eq!(read("", Some(StatusCode::NO_RESPONDERS)), Answer::NoResponders);
        for unrelated in ["", "ok", "1", "{}", r#"{"stream":"S"}"#, r#"{"seq":1}"#, "\u{0}"] {
            assert_eq!(read(unrelated, None), Answer::Unrelated, "{unrelated}");
        }
        let error = r#"{"code":400,"err_code":10060,"description":"no"}"#;
        let Answer::Refused { stream, error } =
            read(&format!(r#"{{"stream":"S","seq":0,"error":{error}}}"#), None)
        else {
            panic!("it is an error")
        };
        assert_eq!((stream.as_deref(), error.err_code), (Some("S"), 10060));
    }

    #[test]
    fn each_refusal_has_its_kind() {
        use FailureKind::*;
        for (code, err_code, description, kind, words) in [
            (400, 10060, "x", Misconfigured, "not taken by the stream E"),
            (400, 10109, "x", Misconfigured, "the stream S is sealed"),
            (503, 10039, "not enabled", Misconfigured, "enable JetStream"),
            (400, 10054, "x", Rejected, "the message has 77 bytes"),
            (400, 10097, "x", Rejected, "so many headers"),
            (503, 10077, "maximum messages exceeded", Throttled, "nats stream edit S"),
            (503, 10077, "maximum bytes exceeded", Throttled, "the stream S is full"),
            (400, 10002, "x", Throttled, "the account is full"),
            (409, 10158, "x", Throttled, "x"),
            (429, 10167, "too many requests", Throttled, "overloaded"),
            (503, 10077, "no space left on device", Unavailable, "no space left"),
            (503, 10023, "insufficient resources", Unavailable, "insufficient resources"),
            (500, 10047, "insufficient storage", Unavailable, "insufficient storage"),
            (400, 1, "new", Failed, "refused it: new (1)"),
        ] {
            let error = ApiError { code, err_code, description: description.to_owned() };
            let error = refusal(&error, Some("S"), Some("E"), "a.b", 77);
            assert_eq!(error.kind, kind, "{err_code}: {error}");
            assert!(error.message.contains(words), "{error}");
            assert_eq!(error.about_topic, matches!(err_code, 10060 | 10109), "{error}");
        }
    }
}
