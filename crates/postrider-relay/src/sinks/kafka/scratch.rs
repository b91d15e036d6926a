//! Scratch topics.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::options::Options;
use super::topics::Topics;
use crate::scratch::{ScratchName, ScratchSink};
use crate::sink::{FailureKind, Sink, SinkError};
use crate::sinks::broker_url::BrokerUrl;
use crate::sinks::problem;

/// How long brokers may take to forget a topic that was deleted.
const FORGET_MAX: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Scratch topics of one cluster.
pub(in crate::sinks) struct KafkaScratch {
    options: Options,
}

impl Options {
    /// Scratch topics of the same cluster.
    pub(in crate::sinks) fn scratch(&self) -> KafkaScratch {
        KafkaScratch { options: self.clone() }
    }
}

impl KafkaScratch {
    fn options(&self, name: &ScratchName) -> Options {
        let mut options = self.options.clone();
        options.create_missing = true;
        // It may need what these events have not.
        options.partition = None;
        options.pipeline.topic = Some(name.topic());
        if options.exactly_once {
            options.progress_topic = Some(progress_topic(name));
            options.transactional_id = Some(name.topic());
        }
        options
    }

    fn topics(&self) -> Result<Topics, SinkError> {
        let options = Options { create_missing: true, ..self.options.clone() };
        let checked = options.check().map_err(problem::misconfigured)?;
        options.read_files()?;
        Topics::new(&checked.config, &options, BrokerUrl::servers_shown(&checked.url))
    }
}

fn progress_topic(name: &ScratchName) -> String {
    format!("{}-progress", name.topic())
}

#[async_trait]
impl ScratchSink for KafkaScratch {
    fn place(&self, name: &ScratchName) -> String {
        format!("the topic {}", name.topic())
    }

    async fn list(&self) -> Result<Vec<ScratchName>, SinkError> {
        let topics = self.topics()?.all(self.options.timeout).await?;
        let mut names: Vec<_> = topics.iter().filter_map(|topic| ScratchName::of(topic)).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn make(&self, name: &ScratchName) -> Result<(), SinkError> {
        self.topics()?.ask(&name.topic(), self.options.timeout).await
    }

    async fn connect(&self, name: &ScratchName) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(self.options(name).connect().await?))
    }

    async fn remove(&self, name: &ScratchName) -> Result<(), SinkError> {
        let (topics, timeout) = (self.topics()?, self.options.timeout);
        let is_ours = |topic: &String| ScratchName::of(topic).as_ref() == Some(name);
        let deadline = Instant::now() + FORGET_MAX;
        loop {
            let found = topics.all(timeout).await?;
            let found: Vec<_> = found.into_iter().filter(is_ours).collect();
            if found.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let message = format!("the topics {} were deleted, and stay", found.join(", "));
                return Err(SinkError::new(FailureKind::Unavailable, message));
            }
            topics.delete(&found, timeout).await?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
