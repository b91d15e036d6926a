//! Scratch streams, with the ids that are remembered for them.

use async_trait::async_trait;
use redis::{Value, cmd, from_redis_value};

use super::append::ids_keys;
use super::connection::Connector;
use super::failure;
use super::options::Options;
use crate::scratch::{ScratchName, ScratchSink};
use crate::sink::{FailureKind, Sink, SinkError};
use crate::sinks::problem;

/// Keys that are looked at by one question.
const SCAN_COUNT: usize = 1000;

/// Scratch streams of one server.
pub(in crate::sinks) struct RedisScratch {
    options: Options,
}

impl Options {
    /// Scratch streams of the same server.
    pub(in crate::sinks) fn scratch(&self) -> RedisScratch {
        RedisScratch { options: self.clone() }
    }
}

impl RedisScratch {
    fn options(&self, name: &ScratchName) -> Options {
        let mut options = self.options.clone();
        options.create_missing = true;
        options.pipeline.topic = Some(name.topic());
        options
    }

    async fn run(&self, command: redis::Cmd) -> Result<Value, SinkError> {
        let login = self.options.check().map_err(problem::misconfigured)?.login;
        let connector = Connector::new(login);
        match connector.run(vec![command]).await?.pop() {
            Some(Value::ServerError(error)) => Err(failure::answered(connector.server(), &error)),
            Some(answer) => Ok(answer),
            None => Err(failure::not_understood(connector.server())),
        }
    }
}

#[async_trait]
impl ScratchSink for RedisScratch {
    fn place(&self, name: &ScratchName) -> String {
        format!("the stream {}", name.topic())
    }

    async fn list(&self) -> Result<Vec<ScratchName>, SinkError> {
        let (mut cursor, mut names) = ("0".to_owned(), Vec::new());
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg("*postrider-bench-*").arg("COUNT").arg(SCAN_COUNT);
            let answer = from_redis_value(self.run(scan).await?);
            let (next, keys): (String, Vec<String>) = answer
                .map_err(|error| SinkError::new(FailureKind::Unavailable, error.to_string()))?;
            // The ids of a stream stand in braces before what they are.
            let found = keys.iter().filter_map(|key| ScratchName::of(key.trim_start_matches('{')));
            names.extend(found);
            if next == "0" {
                break;
            }
            cursor = next;
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    async fn make(&self, name: &ScratchName) -> Result<(), SinkError> {
        self.connect(name).await?.check().await.map(drop)
    }

    async fn connect(&self, name: &ScratchName) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(self.options(name).connect().await?))
    }

    async fn remove(&self, name: &ScratchName) -> Result<(), SinkError> {
        let stream = name.topic();
        let mut delete = cmd("DEL");
        delete.arg(&ids_keys(&stream)).arg(stream);
        self.run(delete).await.map(drop)
    }
}
