//! Scratch streams, each with the one subject of its name.

use async_trait::async_trait;

use super::connecting;
use super::connection::Connection;
use super::options::{CheckedOptions, Options};
use super::streams::{self, ApiFailure};
use crate::scratch::{ScratchName, ScratchSink};
use crate::sink::{Sink, SinkError};
use crate::sinks::problem;

/// Scratch streams of one account.
pub(in crate::sinks) struct NatsScratch {
    options: Options,
}

impl Options {
    /// Scratch streams of the same account.
    pub(in crate::sinks) fn scratch(&self) -> NatsScratch {
        NatsScratch { options: self.clone() }
    }
}

impl NatsScratch {
    fn options(&self, name: &ScratchName) -> Options {
        let mut options = self.options.clone();
        options.create_missing = true;
        options.stream = Some(name.topic());
        options.stream_subjects = vec![name.topic()];
        options.pipeline.topic = Some(name.topic());
        options
    }

    async fn connection(
        &self,
        name: &ScratchName,
    ) -> Result<(Connection, CheckedOptions), SinkError> {
        let options = self.options(name).check().map_err(problem::misconfigured)?;
        Ok((connecting::connect(&options).await?, options))
    }
}

#[async_trait]
impl ScratchSink for NatsScratch {
    fn place(&self, name: &ScratchName) -> String {
        format!("the stream {}", name.topic())
    }

    async fn list(&self) -> Result<Vec<ScratchName>, SinkError> {
        let (connection, options) = self.connection(&ScratchName::new()).await?;
        let failed = |error: ApiFailure| error.verdict(&connection, &options);
        let streams = streams::names(&connection, &options).await.map_err(failed)?;
        Ok(streams.iter().filter_map(|stream| ScratchName::of(stream)).collect())
    }

    async fn make(&self, name: &ScratchName) -> Result<(), SinkError> {
        let (connection, options) = self.connection(name).await?;
        streams::create_missing(&connection, &options).await
    }

    async fn connect(&self, name: &ScratchName) -> Result<Box<dyn Sink>, SinkError> {
        Ok(Box::new(self.options(name).connect().await?))
    }

    async fn remove(&self, name: &ScratchName) -> Result<(), SinkError> {
        let (connection, options) = self.connection(name).await?;
        let deleted = streams::delete(&connection, &options, &name.topic()).await;
        deleted.map_err(|error| error.verdict(&connection, &options))
    }
}
