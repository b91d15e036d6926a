//! Whether publishing can work, and how safe it would be. Nothing is changed.

use std::time::Duration;

use super::connection::{Connection, NoAnswer};
use super::misconfigured;
use super::options::CheckedOptions;
use super::streams::{self, ApiFailure, StreamConfig, StreamInfo, shown};
use crate::sink::SinkError;

pub(super) async fn check(
    connection: &Connection,
    options: &CheckedOptions,
) -> Result<Vec<String>, SinkError> {
    match look(connection, options).await {
        Ok(Found::Stream(stream)) => judge(&stream, connection, options),
        Ok(Found::Missing(name)) => Ok(judge_missing(&name, connection, options)),
        Ok(Found::Unknown) => Ok(Vec::new()),
        // Publishing may be all that it is allowed to do, and all that it needs.
        Err(Failure::Api(ApiFailure::NoAnswer(NoAnswer::Denied(error)))) => {
            Ok(vec![format!("the stream could not be looked at: {error}")])
        }
        Err(Failure::Api(error)) => Err(error.verdict(connection, options)),
        Err(Failure::Verdict(error)) => Err(error),
    }
}

enum Failure {
    Api(ApiFailure),
    Verdict(SinkError),
}

impl From<ApiFailure> for Failure {
    fn from(failure: ApiFailure) -> Self {
        Self::Api(failure)
    }
}

/// The stream that takes all events.
enum Found {
    Stream(StreamInfo),
    /// It is made with the first event.
    Missing(String),
    /// There may be several.
    Unknown,
}

async fn look(connection: &Connection, options: &CheckedOptions) -> Result<Found, Failure> {
    streams::look_for_jetstream(connection, options).await?;
    let topic = options.pipeline.topic.as_deref();
    let found = match topic {
        Some(topic) => streams::stream_of(connection, options, topic).await?,
        None => None,
    };
    let name = match (&options.stream, topic, &found) {
        (Some(expected), Some(topic), Some(found)) if expected != found => {
            let message = format!(
                "the subject {topic} is taken by the stream {found}, not by {expected}; \
                 set stream = \"{found}\""
            );
            return Err(Failure::Verdict(misconfigured(message)));
        }
        (Some(expected), _, _) => expected.clone(),
        (None, _, Some(found)) => found.clone(),
        (None, Some(topic), None) => {
            return Err(Failure::Verdict(streams::no_stream(topic, connection, options)));
        }
        (None, None, None) => return Ok(Found::Unknown),
    };
    let Some(stream) = streams::stream(connection, options, &name).await? else {
        if options.create_missing {
            look_for_rivals(&name, connection, options).await?;
            return Ok(Found::Missing(name));
        }
        let subject = topic.unwrap_or("outbox.event.>");
        return Err(Failure::Verdict(streams::no_stream(subject, connection, options)));
    };
    if let (Some(topic), None) = (topic, &found) {
        let subjects = stream.config.subjects.unwrap_or_default();
        let subjects: Vec<_> = subjects.iter().map(String::as_str).chain([topic]).collect();
        let message = format!(
            "the stream {name} does not take the subject {topic}; let it: \
             nats stream edit {name} --subjects='{}'",
            subjects.join(",")
        );
        return Err(Failure::Verdict(misconfigured(message)));
    }
    Ok(Found::Stream(stream))
}

/// Fails if another stream takes what one that is to be made should: a subject has one stream.
async fn look_for_rivals(
    name: &str,
    connection: &Connection,
    options: &CheckedOptions,
) -> Result<(), Failure> {
    for subject in &options.stream_subjects {
        if let Some(rival) = streams::stream_of(connection, options, subject).await? {
            let message = format!(
                "the stream {name} cannot be made: {rival} takes {subject} already; set stream = \
                 \"{rival}\", or other stream_subjects"
            );
            return Err(Failure::Verdict(misconfigured(message)));
        }
    }
    Ok(())
}

/// What is less safe than it could be about a stream that is to be made.
fn judge_missing(name: &str, connection: &Connection, options: &CheckedOptions) -> Vec<String> {
    let is_alone = options.stream_replicas <= 1 && connection.is_clustered;
    let caution = || {
        format!(
            "the stream {name} is made with the first event, on one server of the cluster only, \
             and is lost with it; set stream_replicas = 3"
        )
    };
    is_alone.then(caution).into_iter().collect()
}

/// What is less safe than it could be. Fails if nothing could be published.
fn judge(
    StreamInfo { config, state }: &StreamInfo,
    connection: &Connection,
    options: &CheckedOptions,
) -> Result<Vec<String>, SinkError> {
    let StreamConfig { name, .. } = config;
    if config.no_ack {
        return Err(misconfigured(format!(
            "the stream {name} confirms nothing (no_ack), so nothing would count as published; let \
             it: nats stream edit {name} --ack"
        )));
    }
    if config.sealed {
        return Err(misconfigured(format!("the stream {name} is sealed and takes no more events")));
    }
    let mut cautions = Vec::new();
    if config.storage == "memory" {
        cautions.push(format!(
            "the stream {name} keeps events in memory and loses them when its servers stop; make \
             one with --storage=file"
        ));
    }
    if config.num_replicas <= 1 && connection.is_clustered {
        cautions.push(format!(
            "the stream {name} is on one server of the cluster only and is lost with it; \
             nats stream edit {name} --replicas=3"
        ));
    }
    let window = Duration::from_nanos(config.duplicate_window);
    let horizon = options.pipeline.retry_horizon;
    if window < horizon {
        let (window, horizon) = (shown(window), shown(horizon));
        cautions.push(format!(
            "the stream {name} knows duplicates for {window}, but an event may be tried for \
             {horizon}, and could be kept twice; nats stream edit {name} --dupe-window={horizon}"
        ));
    }
    if config.retention == "interest" && state.consumer_count == 0 {
        cautions.push(format!(
            "the stream {name} keeps only what a consumer waits for (retention interest) and has \
             no consumer: events vanish; nats consumer add {name}"
        ));
    }
    Ok(cautions)
}
