//! Checks of the brokers and endpoints: what each sink says of itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use postrider::Event;
use tokio::time::timeout;

use super::{Finding, Fix};
use crate::config::PipelineConfig;
use crate::private_files::shared_link;
use crate::shell::word;
use crate::sink::SinkError;

const CHECK: &str = "sink";
/// The sinks to which a topic may be missing.
const WITH_TOPICS: [&str; 3] = ["kafka", "nats", "rabbitmq"];
/// Longest time for one sink.
const SINK_TIMEOUT: Duration = Duration::from_secs(20);

/// How many of the newest events are asked for their topics.
pub const TOPIC_EVENTS: usize = 100;
/// Most topics of a pipeline that are looked at.
const TOPICS_MAX: usize = 10;

/// Whether each pipeline's sink can be reached and would keep what it is sent: topics, streams,
/// exchanges, rights, durability. Where the topic is a template over events, it is asked about
/// those of these events.
pub async fn sinks(pipelines: &[PipelineConfig], newest: &[Arc<Event>]) -> Vec<Finding> {
    let findings = join_all(pipelines.iter().map(|pipeline| sink(pipeline, newest))).await;
    findings.into_iter().flatten().collect()
}

async fn sink(pipeline: &PipelineConfig, newest: &[Arc<Event>]) -> Vec<Finding> {
    let found = match looks_only(pipeline) {
        Some(found) => vec![found],
        None => match timeout(SINK_TIMEOUT, check(pipeline, newest)).await {
            Ok(found) => found,
            Err(_) => {
                let seconds = SINK_TIMEOUT.as_secs();
                let found = format!("{} did not answer within {seconds} s", pipeline.sink_url);
                vec![Finding::fail(CHECK, found)]
            }
        },
    };
    found.into_iter().map(|finding| finding.about(&pipeline.name)).collect()
}

/// The topics to which the newest events would go, if they are not the same for all.
fn topics(pipeline: &PipelineConfig, newest: &[Arc<Event>]) -> Vec<Option<String>> {
    let fixed = &pipeline.sink.pipeline.topic;
    let types = &pipeline.aggregate_types;
    let is_its_own = |event: &&Arc<Event>| {
        types.is_empty() || types.iter().any(|it| it == event.aggregate_type())
    };
    let route = &pipeline.options.encoding.route;
    let mut seen = BTreeSet::new();
    let of_events: Vec<Option<String>> = newest
        .iter()
        .rev()
        .filter(is_its_own)
        .filter_map(|event| route.topic_of(event).ok())
        .filter(|topic| Some(topic) != fixed.as_ref() && seen.insert(topic.clone()))
        .take(TOPICS_MAX)
        .map(Some)
        .collect();
    match fixed {
        // An event may name a topic of its own.
        Some(_) => [fixed.clone()].into_iter().chain(of_events).collect(),
        None if of_events.is_empty() => vec![None],
        None => of_events,
    }
}

async fn check(pipeline: &PipelineConfig, newest: &[Arc<Event>]) -> Vec<Finding> {
    let (mut cautions, mut failed) = (Vec::new(), Vec::new());
    let topics = topics(pipeline, newest);
    let mut has_topics = false;
    for topic in &topics {
        let mut spec = pipeline.sink.clone();
        spec.pipeline.topic.clone_from(topic);
        let checked = async {
            let sink = spec.connect().await?;
            let found = sink.check().await;
            has_topics = WITH_TOPICS.contains(&sink.capabilities().name);
            // What was found stands, however the connection ends.
            let _ = sink.close().await;
            found
        };
        match checked.await {
            Ok(found) => cautions.extend(found),
            Err(SinkError { message, .. }) => failed.push(message),
        }
        if !has_topics {
            break;
        }
    }
    for found in [&mut cautions, &mut failed] {
        let mut seen = BTreeSet::new();
        found.retain(|text| seen.insert(text.clone()));
    }
    if failed.is_empty() && cautions.is_empty() {
        let url = &pipeline.sink_url;
        return vec![Finding::ok(
            CHECK,
            match (has_topics, topics.as_slice()) {
                (true, [None]) => format!(
                    "{url} answers; whether it takes the topics of events is known once there are some"
                ),
                _ => format!("{url} takes events"),
            },
        )];
    }
    let failed = failed.iter().map(|message| advised(Finding::fail, message));
    failed.chain(cautions.iter().map(|caution| advised(Finding::warn, caution))).collect()
}

/// What stands behind the first semicolon is what to do.
fn advised(of: impl Fn(&'static str, String) -> Finding, message: &str) -> Finding {
    match message.split_once("; ") {
        Some((found, fix)) => of(CHECK, found.to_owned()).with(Fix::advice(fix)),
        None => of(CHECK, message.to_owned()),
    }
}

/// A file is made and locked by whoever opens it: it is only looked at.
fn looks_only(pipeline: &PipelineConfig) -> Option<Finding> {
    let path = pipeline.sink.file()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or(std::path::Path::new("."));
    Some(if let Some(link) = shared_link(&path) {
        let link = link.display();
        Finding::fail(CHECK, format!("{link} is a symbolic link in a folder that others can write"))
            .with(Fix::advice("name the file that it leads to"))
    } else if path.is_dir() {
        Finding::fail(CHECK, format!("{} is a folder", path.display()))
            .with(Fix::advice("name a file"))
    } else if path.exists() {
        match std::fs::OpenOptions::new().append(true).open(&path) {
            Ok(_) => Finding::ok(CHECK, format!("{} can be written", path.display())),
            Err(error) => {
                Finding::fail(CHECK, format!("{} cannot be written: {error}", path.display()))
                    .with(Fix::advice("let the relay's user write it"))
            }
        }
    } else if folder.is_dir() {
        Finding::ok(CHECK, format!("{} will be made", path.display()))
    } else {
        let command = format!("mkdir -p {}", word(&folder.to_string_lossy()));
        Finding::fail(CHECK, format!("there is no folder {}", folder.display()))
            .with(Fix::command(command))
    })
}
