//! A shard of a pipeline, as it is watched: what it is doing, and what it has counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::counters::Counters;
use crate::pipeline::{Status, Totals};
use crate::relay::RelayError;

/// A shard of a pipeline while its relay runs.
#[derive(Debug)]
pub struct Watched {
    /// The pipeline's name.
    pub pipeline: String,
    /// Which shard of it; they count from 0.
    pub shard: u32,
    /// What it has counted.
    pub counters: Arc<Counters>,
    /// How often it got the lease.
    pub takeovers: AtomicU64,
    stage: Mutex<Stage>,
}

/// What a shard is doing.
#[derive(Clone, Debug)]
pub enum Stage {
    /// It connects to its source or sink.
    Connecting {
        /// Whether it is the sink that is waited for.
        to_sink: bool,
        /// Why it is not connected yet, after the first try.
        why: Option<String>,
    },
    /// Another relay has the lease.
    StandingBy,
    /// It runs.
    Running(watch::Receiver<Status>),
    /// It has ended as it should.
    Ended,
    /// It has ended for good by a failure.
    Failed {
        /// What happened, and what to do about it.
        why: String,
    },
}

impl Watched {
    /// A shard that is about to connect.
    pub(crate) fn new(pipeline: impl Into<String>, shard: u32, counters: Arc<Counters>) -> Self {
        Self {
            pipeline: pipeline.into(),
            shard,
            counters,
            takeovers: AtomicU64::new(0),
            stage: Mutex::new(Stage::Connecting { to_sink: true, why: None }),
        }
    }

    /// What it is doing.
    pub fn stage(&self) -> Stage {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }

    /// It has its sink. One that stands by goes on standing by.
    pub(crate) fn has_sink(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*stage, Stage::Connecting { .. }) {
            *stage = Stage::Connecting { to_sink: false, why: None };
        }
    }

    /// It has the lease, and begins to run.
    pub(crate) fn runs(&self, status: watch::Receiver<Status>) {
        self.takeovers.fetch_add(1, Relaxed);
        self.counters.turned(0, false);
        self.set(Stage::Running(status));
    }

    /// It does nothing any more.
    pub(crate) fn ended(&self, result: &Result<Totals, RelayError>) {
        self.counters.ended();
        self.set(match result {
            Ok(_) => Stage::Ended,
            Err(error) => {
                let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                Stage::Failed { why: format!("{error}{hint}") }
            }
        });
    }
}
