//! Reads a file back, line by line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Lines};
use std::path::PathBuf;
use std::time::SystemTime;

use async_trait::async_trait;
use serde::Deserialize;
use uuid::Uuid;

use super::failure::failure;
use super::options::Options;
use crate::formats::REPLAY_HEADER;
use crate::readback::{Kept, Readback, Scope, Unreadable};
use crate::sink::{FailureKind, SinkError};

/// Most lines that are handed out at once.
const BATCH_MAX: usize = 10_000;

/// Reads one file.
pub(in crate::sinks) struct FileReadback {
    /// Only the reading takes it.
    lines: Option<Lines<BufReader<File>>>,
    path: PathBuf,
    number: usize,
    topics: Vec<String>,
}

#[derive(Deserialize)]
struct Line {
    id: String,
    topic: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

impl Options {
    /// Begins to read the file back.
    pub(in crate::sinks) fn read_back(&self, scope: &Scope) -> Result<FileReadback, SinkError> {
        let (path, topics) = (self.path.clone(), scope.topics.clone());
        let file = File::open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let message = format!(
                    "there is no file {}; check the path, or run the relay, which makes it",
                    path.display()
                );
                SinkError::new(FailureKind::Misconfigured, message)
            }
            _ => failure("open", &path, &error),
        })?;
        let lines = Some(BufReader::new(file).lines());
        Ok(FileReadback { lines, path, number: 0, topics })
    }
}

#[async_trait]
impl Readback for FileReadback {
    async fn next(&mut self) -> Result<Vec<Kept>, SinkError> {
        let Some(mut lines) = self.lines.take() else { return Ok(Vec::new()) };
        let (path, topics, mut number) = (self.path.clone(), self.topics.clone(), self.number);
        let read = tokio::task::spawn_blocking(move || {
            let mut kept = Vec::new();
            while kept.len() < BATCH_MAX
                && let Some(line) = lines.next()
            {
                let line = line.map_err(|error| failure("read", &path, &error))?;
                number += 1;
                let line: Option<Line> = serde_json::from_str(&line).ok();
                // What is not understood may be another program's, or the end of a crash.
                let (id, topic, is_replay) = line.map_or((None, String::new(), false), |line| {
                    let is_replay = line.headers.contains_key(REPLAY_HEADER);
                    (Uuid::parse_str(&line.id).ok(), line.topic, is_replay)
                });
                if id.is_none() || topics.contains(&topic) {
                    let place = format!("line {number}");
                    kept.push(Kept { id, topic, place, sent_at: None, is_replay });
                }
            }
            Ok((kept, lines, number))
        });
        let ended = |_| SinkError::new(FailureKind::Unavailable, "reading was ended from outside");
        let (kept, lines, number) = read.await.map_err(ended)??;
        self.number = number;
        self.lines = (!kept.is_empty()).then_some(lines);
        Ok(kept)
    }

    fn unreadable(&self) -> &[Unreadable] {
        &[]
    }

    fn kept_since(&self) -> Option<SystemTime> {
        None
    }
}
