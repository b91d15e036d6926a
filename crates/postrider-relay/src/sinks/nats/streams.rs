//! What JetStream says about streams, and how one is made.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::answer::{ApiError, not_enabled};
use super::connection::{Connection, NoAnswer};
use super::options::CheckedOptions;
use super::{misconfigured, unavailable};
use crate::sink::SinkError;

/// What a stream of the server is like, as far as it matters.
#[derive(Debug, Deserialize)]
pub(super) struct StreamInfo {
    pub(super) config: StreamConfig,
    #[serde(default)]
    pub(super) state: StreamState,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamConfig {
    pub(super) name: String,
    #[serde(default)]
    pub(super) subjects: Option<Vec<String>>,
    #[serde(default)]
    pub(super) retention: String,
    #[serde(default)]
    pub(super) storage: String,
    #[serde(default)]
    pub(super) num_replicas: usize,
    #[serde(default)]
    pub(super) no_ack: bool,
    #[serde(default)]
    pub(super) sealed: bool,
    /// In nanoseconds.
    #[serde(default)]
    pub(super) duplicate_window: u64,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamState {
    #[serde(default)]
    pub(super) consumer_count: u64,
}

#[derive(Debug, Deserialize)]
struct Names {
    #[serde(default)]
    streams: Option<Vec<String>>,
}

/// Why JetStream did not do what it was asked.
#[derive(Debug)]
pub(super) enum ApiFailure {
    NoAnswer(NoAnswer),
    Refused(ApiError),
}

impl ApiFailure {
    /// The verdict on a request about a whole connection.
    pub(super) fn verdict(self, connection: &Connection, options: &CheckedOptions) -> SinkError {
        match self {
            Self::NoAnswer(NoAnswer::Denied(error) | NoAnswer::Unavailable(error)) => error,
            Self::NoAnswer(NoAnswer::NoResponders) => nobody(connection, options),
            Self::Refused(error) if error.is_not_enabled() => {
                misconfigured(not_enabled(&error.description))
            }
            Self::Refused(error) if error.code >= 500 => {
                unavailable(format!("JetStream is in trouble: {}", error.description))
            }
            Self::Refused(error) => misconfigured(format!("JetStream: {}", error.description)),
        }
    }
}

/// Nobody answers for JetStream. In a cluster, or behind a leaf node, that may be so for a while.
fn nobody(connection: &Connection, options: &CheckedOptions) -> SinkError {
    let server = &connection.server;
    match &options.domain {
        Some(domain) => unavailable(format!(
            "the JetStream domain {domain} is out of reach of {server}, or has another name"
        )),
        None if connection.is_clustered => {
            unavailable(format!("JetStream has no leader in the cluster of {server}"))
        }
        None => misconfigured(not_enabled(&format!("{server} has no JetStream"))),
    }
}

/// Asks JetStream something. The answer is read as JSON.
async fn ask<T: DeserializeOwned>(
    connection: &Connection,
    options: &CheckedOptions,
    what: &str,
    body: Option<Value>,
) -> Result<T, ApiFailure> {
    let prefix = match &options.domain {
        Some(domain) => format!("$JS.{domain}.API"),
        None => "$JS.API".to_owned(),
    };
    let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
    let asked = connection.request(format!("{prefix}.{what}"), body, options.ack_timeout).await;
    let answer = asked.map_err(ApiFailure::NoAnswer)?;
    let garbled = || {
        ApiFailure::Refused(ApiError {
            code: 500,
            err_code: 0,
            description: "an answer that is not understood".to_owned(),
        })
    };
    let answer: Value = serde_json::from_slice(&answer).map_err(|_| garbled())?;
    if let Some(error) = answer.get("error") {
        let error = ApiError::deserialize(error).map_err(|_| garbled())?;
        return Err(ApiFailure::Refused(error));
    }
    serde_json::from_value(answer).map_err(|_| garbled())
}

/// Whether there is any JetStream for the relay's account.
pub(super) async fn look_for_jetstream(
    connection: &Connection,
    options: &CheckedOptions,
) -> Result<(), ApiFailure> {
    ask::<Value>(connection, options, "INFO", None).await.map(drop)
}

/// The stream of this name, if there is one.
pub(super) async fn stream(
    connection: &Connection,
    options: &CheckedOptions,
    name: &str,
) -> Result<Option<StreamInfo>, ApiFailure> {
    match ask(connection, options, &format!("STREAM.INFO.{name}"), None).await {
        Ok(info) => Ok(Some(info)),
        Err(ApiFailure::Refused(error)) if error.err_code == ApiError::STREAM_NOT_FOUND => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name of the stream that takes a subject, if there is one.
pub(super) async fn stream_of(
    connection: &Connection,
    options: &CheckedOptions,
    subject: &str,
) -> Result<Option<String>, ApiFailure> {
    let body = json!({ "subject": subject });
    let names: Names = ask(connection, options, "STREAM.NAMES", Some(body)).await?;
    Ok(names.streams.and_then(|names| names.into_iter().next()))
}

/// Makes the stream of the options, unless there is one of that name.
pub(super) async fn create_missing(
    connection: &Connection,
    options: &CheckedOptions,
) -> Result<(), SinkError> {
    let name = options.stream.as_deref().unwrap_or_default();
    let found = stream(connection, options, name).await;
    if found.map_err(|error| error.verdict(connection, options))?.is_some() {
        return Ok(());
    }
    let config = json!({
        "name": name,
        "subjects": options.stream_subjects,
        "retention": "limits",
        "storage": "file",
        "num_replicas": options.stream_replicas,
        "duplicate_window": duplicate_window(options).as_nanos() as u64,
    });
    let create = format!("STREAM.CREATE.{name}");
    match ask::<Value>(connection, options, &create, Some(config)).await {
        Ok(_) => Ok(()),
        // Another relay was quicker.
        Err(ApiFailure::Refused(error)) if error.err_code == ApiError::STREAM_NAME_IN_USE => Ok(()),
        Err(ApiFailure::Refused(error)) => {
            let description = &error.description;
            Err(misconfigured(format!("cannot make the stream {name}: {description}")))
        }
        Err(error) => Err(error.verdict(connection, options)),
    }
}

/// The names of all streams.
pub(super) async fn names(
    connection: &Connection,
    options: &CheckedOptions,
) -> Result<Vec<String>, ApiFailure> {
    let mut all = Vec::new();
    loop {
        let body = json!({ "offset": all.len() });
        let page: Names = ask(connection, options, "STREAM.NAMES", Some(body)).await?;
        match page.streams.filter(|names| !names.is_empty()) {
            Some(names) => all.extend(names),
            None => return Ok(all),
        }
    }
}

/// Deletes a stream with all that it has. One that is not there is no error.
pub(super) async fn delete(
    connection: &Connection,
    options: &CheckedOptions,
    name: &str,
) -> Result<(), ApiFailure> {
    match ask::<Value>(connection, options, &format!("STREAM.DELETE.{name}"), None).await {
        Err(ApiFailure::Refused(error)) if error.err_code == ApiError::STREAM_NOT_FOUND => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// How long a stream must know ids: as long as an event may be tried. The server's default, if
/// that is longer.
fn duplicate_window(options: &CheckedOptions) -> Duration {
    options.pipeline.retry_horizon.max(Duration::from_secs(120))
}

/// Why nobody listens to a subject.
#[derive(Clone, Debug)]
pub(super) enum Unheard {
    /// No stream takes it.
    NoStream,
    /// Something else.
    Other(SinkError),
}

/// Finds out why nobody listens to a subject: a stream that changes its leader does not, for a
/// moment, and this must not be taken for one that is not there.
pub(super) async fn why_unheard(
    connection: &Connection,
    options: &CheckedOptions,
    subject: &str,
) -> Unheard {
    match stream_of(connection, options, subject).await {
        Ok(None) => Unheard::NoStream,
        Ok(Some(name)) => {
            let message =
                format!("the stream {name} takes nothing at the moment: it has no leader");
            Unheard::Other(unavailable(message))
        }
        // Who may not ask cannot tell the two apart.
        Err(ApiFailure::NoAnswer(NoAnswer::Denied(_))) if connection.is_clustered => {
            let message = format!(
                "no stream takes {subject} at the moment, or there is none: the relay's user may \
                 not ask; permit it: permissions {{ publish: [\"$JS.API.STREAM.NAMES\"] }}"
            );
            Unheard::Other(unavailable(message))
        }
        Err(ApiFailure::NoAnswer(NoAnswer::Denied(_))) => Unheard::NoStream,
        Err(error) => Unheard::Other(error.verdict(connection, options)),
    }
}

impl Unheard {
    pub(super) fn about(
        &self,
        subject: &str,
        connection: &Connection,
        options: &CheckedOptions,
    ) -> SinkError {
        match self {
            Self::NoStream => no_stream(subject, connection, options),
            Self::Other(error) => error.clone(),
        }
    }
}

/// No stream takes a subject.
pub(super) fn no_stream(
    subject: &str,
    connection: &Connection,
    options: &CheckedOptions,
) -> SinkError {
    let name = options.stream.as_deref().unwrap_or("NAME");
    let replicas = if connection.is_clustered { 3 } else { 1 };
    let window = shown(duplicate_window(options));
    SinkError::of_topic(format!(
        "no stream takes the subject {subject}; make one: nats stream add {name} \
         --subjects='{subject}' --storage=file --replicas={replicas} --dupe-window={window} --defaults"
    ))
}

/// A duration as the `nats` command line takes it, such as `1h30m`. Rounded up to seconds.
pub(super) fn shown(duration: Duration) -> String {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let shown: String = parts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, unit)| format!("{count}{unit}"))
        .collect();
    if shown.is_empty() { "0s".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_as_the_command_line_takes_them() {
        for (duration, expected) in [
            (Duration::ZERO, "0s"),
            (Duration::from_millis(1), "1s"),
            (Duration::from_secs(120), "2m"),
            (Duration::from_millis(119_500), "2m"),
            (Duration::from_secs(5400), "1h30m"),
            (Duration::from_secs(93_601), "26h1s"),
        ] {
            assert_eq!(shown(duration), expected);
        }
    }
}
