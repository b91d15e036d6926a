//! Tells the pipelines of a relay what is stopped.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use super::Pause;
use crate::config::SourceConfig;
use crate::operator::Operator;
use crate::pipeline::lane_of;
use crate::shutdown::Shutdown;
use crate::source::SourceError;
use crate::sources;

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After so many looks in vain the log says so: a relay that cannot start has ended by then, and
/// says why by itself.
const TOLD_AFTER: u32 = 4;

/// What is stopped, as far as is known; `None` before the first look.
pub(crate) type Known = Option<Arc<[Pause]>>;

/// Looks at what is stopped, for as long as a relay runs. While it cannot be looked at, what was
/// known before holds.
pub async fn follow(source: SourceConfig, known: watch::Sender<Known>, mut shutdown: Shutdown) {
    let mut operator = None;
    let mut failures = 0;
    while !shutdown.is_requested() {
        let looked = tokio::select! {
            looked = look(&source, &mut operator) => looked,
            () = shutdown.requested() => return,
        };
        match looked {
            Ok(pauses) => {
                failures = 0;
                known.send_if_modified(|known| {
                    let is_new = known.as_deref() != Some(&*pauses);
                    if is_new {
                        *known = Some(pauses.into());
                    }
                    is_new
                });
            }
            Err(error) => {
                failures += 1;
                if failures == TOLD_AFTER {
                    warn!(error = error.details(), "cannot look for what is paused; trying again");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shutdown.requested() => {}
        }
    }
}

async fn look(
    source: &SourceConfig,
    operator: &mut Option<Box<dyn Operator>>,
) -> Result<Vec<Pause>, SourceError> {
    let operator = match operator {
        Some(operator) => operator,
        None => {
            let SourceConfig { url, table, columns, .. } = source;
            operator.insert(sources::connect_operator(url.expose(), table, columns).await?)
        }
    };
    operator.pauses().await
}

/// What a pipeline knows about its being stopped.
#[derive(Clone, Debug)]
pub struct PauseWatch {
    /// The pipeline.
    pipeline: String,
    /// `None` if nobody can stop it.
    known: Option<watch::Receiver<Known>>,
}

impl PauseWatch {
    /// Of a pipeline that nobody can stop.
    pub fn never() -> Self {
        Self { pipeline: String::new(), known: None }
    }

    /// Of a pipeline, by what is [followed](follow).
    pub fn new(pipeline: &str, known: watch::Receiver<Known>) -> Self {
        Self { pipeline: pipeline.to_owned(), known: Some(known) }
    }

    /// Whether it is known yet whether the pipeline is stopped.
    pub(crate) fn is_known(&self) -> bool {
        self.known.as_ref().is_none_or(|known| known.borrow().is_some())
    }

    /// What stops the pipeline.
    pub(crate) fn pause(&self) -> Option<Pause> {
        let known = self.known.as_ref()?.borrow();
        Pause::of_pipeline(known.as_deref()?, &self.pipeline).cloned()
    }

    /// The lanes of the keys that are stopped.
    pub(crate) fn lanes(&self) -> HashSet<u64> {
        let known = self.known.as_ref().map(watch::Receiver::borrow);
        let pauses = known.as_ref().and_then(|known| known.as_deref());
        Pause::keys(pauses.unwrap_or_default(), &self.pipeline).map(lane_of).collect()
    }

    /// Waits until something has changed; for ever, if nothing can.
    pub(crate) async fn changed(&mut self) {
        if let Some(known) = &mut self.known
            && known.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
    }
}
