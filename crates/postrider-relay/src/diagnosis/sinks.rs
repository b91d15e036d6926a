//! Checks of the brokers and endpoints: what each sink says of itself.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{Finding, Fix};
use crate::config::PipelineConfig;
use crate::shell::word;
use crate::sink::SinkError;

const CHECK: &str = "sink";
/// Longest time for one sink.
const SINK_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether each pipeline's sink can be reached and would keep what it is sent: topics, streams,
/// exchanges, rights, durability.
pub async fn sinks(pipelines: &[PipelineConfig]) -> Vec<Finding> {
    let findings = join_all(pipelines.iter().map(sink)).await;
    findings.into_iter().flatten().collect()
}

async fn sink(pipeline: &PipelineConfig) -> Vec<Finding> {
    let found = match looks_only(pipeline) {
        Some(found) => vec![found],
        None => match timeout(SINK_TIMEOUT, check(pipeline)).await {
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

async fn check(pipeline: &PipelineConfig) -> Vec<Finding> {
    let checked = async {
        let sink = pipeline.sink.connect().await?;
        let cautions = sink.check().await;
        // What was found stands, however the connection ends.
        let _ = sink.close().await;
        cautions
    };
    match checked.await {
        Ok(cautions) if cautions.is_empty() => {
            vec![Finding::ok(CHECK, format!("{} takes events", pipeline.sink_url))]
        }
        Ok(cautions) => cautions.iter().map(|caution| advised(Finding::warn, caution)).collect(),
        Err(SinkError { message, .. }) => vec![advised(Finding::fail, &message)],
    }
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
    Some(if path.is_dir() {
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
