//! What the file sink can be told.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::opening::open;
use super::{FileSink, shutting_down};
use crate::sink::SinkError;
use crate::sinks::Problem;

/// Which file to append to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The file. It is created if it is missing; its directory is not.
    pub path: PathBuf,
}

impl Options {
    /// Every mistake, without looking at the disk.
    pub fn problems(&self) -> Vec<Problem> {
        if self.path.file_name().is_none() {
            let problem = Problem::new("url", "names no file");
            return vec![problem.with_hint("write file:///path/to/events.jsonl")];
        }
        Vec::new()
    }

    /// Opens the file, locks it, and cuts off a line that a crash has torn.
    pub async fn connect(&self) -> Result<FileSink, SinkError> {
        let path = self.path.clone();
        let opened = tokio::task::spawn_blocking(move || open(&path)).await;
        let appender = opened.map_err(|_| shutting_down())??;
        Ok(FileSink { options: self.clone(), appender: Arc::new(Mutex::new(appender)) })
    }
}
