//! The file sink: a file in a folder of its own.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::event::PAYLOAD_BYTES_MAX;
use postrider_relay::sink::{FailureKind, Sink, SinkError};
use postrider_relay::sinks::SinkSpec;
use tempfile::TempDir;

use super::json_lines;
use crate::suites::sink::{Arrival, Behaviour, Subject, TargetCapabilities, TestTarget};
use crate::suites::{Backend, Clock};

const CAPABILITIES: TargetCapabilities = TargetCapabilities {
    ordered_by_key: true,
    // Nobody makes the folder by himself.
    away: Some(FailureKind::Misconfigured),
    misbehaviours: &[],
    refuses: false,
    exactly_once: false,
    any_topic: true,
    lacks_topics: false,
    reserved_headers: &[],
    reserves_topics: false,
    hangs_up: false,
    body_bytes_max: PAYLOAD_BYTES_MAX,
    too_large: None,
    call_max: Duration::from_secs(2),
};

/// The file sink.
pub fn backend() -> Backend<Subject, TargetCapabilities> {
    Backend::new("file", CAPABILITIES, Clock::Real, || async { Arc::new(File::new()) as Subject })
}

struct File {
    folder: TempDir,
}

impl File {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a test can have a folder");
        fs::create_dir(folder.path().join("events")).expect("a folder can be made");
        Self { folder }
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("events")
    }

    fn path(&self) -> PathBuf {
        self.directory().join("events.jsonl")
    }
}

#[async_trait]
impl TestTarget for File {
    fn capabilities(&self) -> TargetCapabilities {
        CAPABILITIES
    }

    async fn connect(&self) -> Result<Box<dyn Sink>, SinkError> {
        SinkSpec::new(format!("file://{}", self.path().display())).connect().await
    }

    async fn arrivals(&self) -> Vec<Arrival> {
        json_lines::read(&self.path()).await
    }

    async fn behave(&self, behaviour: Behaviour) {
        match behaviour {
            Behaviour::Away => fs::remove_dir_all(self.directory()).expect("it was there"),
            Behaviour::Well => fs::create_dir_all(self.directory()).expect("it can be made"),
            _ => panic!("{behaviour:?} is not declared"),
        }
    }
}
