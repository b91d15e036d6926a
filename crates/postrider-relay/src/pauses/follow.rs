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
use crate::source::{SourceError, SourceErrorKind};
use crate::sources;

/// How often is looked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After so many looks in vain the log says so: a relay that cannot start has ended by then, and
/// says why by itself.
const TOLD_AFTER: u32 = 4;
/// And again after so many more.
const TOLD_EVERY: u32 = 60;

/// What is stopped, as far as is known.
#[derive(Clone, Debug, Default)]
pub enum Known {
    /// Nothing was looked at yet.
    #[default]
    Nothing,
    /// It could not be looked at yet, and this is why.
    Unreachable(String),
    /// It cannot be looked at until an operator has acted.
    Failed(Arc<SourceError>),
    /// All that is stopped.
    Pauses(Arc<[Pause]>),
}

impl Known {
    /// What is known after a look in vain. What was known before holds: a relay that runs is not
    /// ended for it.
    fn after(&self, error: SourceError) -> Option<Self> {
        match (self, error.kind) {
            (Self::Pauses(_), _) => None,
            (_, SourceErrorKind::Unavailable) => Some(Self::Unreachable(error.details())),
            _ => Some(Self::Failed(Arc::new(error))),
        }
    }

    fn pauses(&self) -> Option<&[Pause]> {
        match self {
            Self::Pauses(pauses) => Some(pauses),
            Self::Nothing | Self::Unreachable(_) | Self::Failed(_) => None,
        }
    }
}

/// Looks at what is stopped, for as long as a relay runs.
pub async fn follow(source: SourceConfig, known: watch::Sender<Known>, mut shutdown: Shutdown) {
    let mut following =
        Following { source, known, operator: None, stopped: [].into(), resumed: Vec::new() };
    let mut failures = 0;
    while !shutdown.is_requested() {
        let looked = tokio::select! {
            looked = following.look() => looked,
            () = shutdown.requested() => return,
        };
        match looked {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                if failures % TOLD_EVERY == TOLD_AFTER {
                    warn!(
                        error = error.details(),
                        "cannot look for what is paused: what was known holds; trying again"
                    );
                }
                following.failed(error);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shutdown.requested() => {}
        }
    }
}

struct Following {
    source: SourceConfig,
    known: watch::Sender<Known>,
    operator: Option<Box<dyn Operator>>,
    /// What was stopped at the last look.
    stopped: Arc<[Pause]>,
    /// What went on at the last look.
    resumed: Vec<Pause>,
}

impl Following {
    async fn look(&mut self) -> Result<(), SourceError> {
        let operator = match &mut self.operator {
            Some(operator) => operator,
            none => {
                let SourceConfig { url, table, columns, .. } = &self.source;
                none.insert(sources::connect_operator(url.expose(), table, columns).await?)
            }
        };
        let pauses: Arc<[Pause]> = operator.pauses().await?.into();
        self.known.send_if_modified(|known| {
            let is_new = known.pauses() != Some(&*pauses);
            if is_new {
                *known = Known::Pauses(pauses.clone());
            }
            is_new
        });
        // Only now: a pipeline that did not know yet would defer them again. And once more at the
        // next look, for what a pipeline was deferring at this moment.
        let resumed: Vec<Pause> = gone(&self.stopped, &pauses).cloned().collect();
        for pause in self.resumed.iter().chain(&resumed) {
            if let Some(key) = &pause.key {
                operator.hurry(pause.pipeline.as_deref(), key).await?;
            }
        }
        (self.stopped, self.resumed) = (pauses, resumed);
        Ok(())
    }

    fn failed(&self, error: SourceError) {
        let after = self.known.borrow().after(error);
        if let Some(after) = after {
            self.known.send_replace(after);
        }
    }
}

/// What was stopped and is not any more.
fn gone<'p>(before: &'p [Pause], now: &[Pause]) -> impl Iterator<Item = &'p Pause> {
    before
        .iter()
        .filter(move |was| !now.iter().any(|is| is.pipeline == was.pipeline && is.key == was.key))
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

    /// Why it is not known yet whether the pipeline is stopped.
    ///
    /// # Errors
    ///
    /// If that will not be known until an operator has acted.
    pub(crate) fn unknown(&self) -> Result<Option<String>, SourceError> {
        let what = "it is not known yet what is paused";
        Ok(match self.known.as_ref().map(|known| known.borrow().clone()) {
            None | Some(Known::Pauses(_)) => None,
            Some(Known::Nothing) => Some(what.to_owned()),
            Some(Known::Unreachable(why)) => Some(format!("{what}: {why}")),
            Some(Known::Failed(error)) => return Err(error.told_again()),
        })
    }

    /// What stops the pipeline.
    pub(crate) fn pause(&self) -> Option<Pause> {
        let known = self.known.as_ref()?.borrow();
        Pause::of_pipeline(known.pauses()?, &self.pipeline).cloned()
    }

    /// The lanes of the keys that are stopped.
    pub(crate) fn lanes(&self) -> HashSet<u64> {
        let known = self.known.as_ref().map(watch::Receiver::borrow);
        let pauses = known.as_ref().and_then(|known| known.pauses());
        Pause::keys(pauses.unwrap_or_default(), &self.pipeline).map(lane_of).collect()
    }

    /// Whether something has changed since this was asked, or waited for.
    pub(crate) fn take_changed(&mut self) -> bool {
        let Some(known) = &mut self.known else { return false };
        let has_changed = known.has_changed().unwrap_or(false);
        known.mark_unchanged();
        has_changed
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
