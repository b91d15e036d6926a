//! A run that an operator stops for a while.

use tracing::info;

use super::Run;
use crate::source::SourceError;

impl Run<'_> {
    /// Whether nobody has stopped the pipeline, as far as is known.
    pub(super) fn may_send(&self) -> bool {
        self.pause.is_none() && self.pauses_unknown.is_none()
    }

    /// Takes in what an operator has stopped.
    ///
    /// # Errors
    ///
    /// If that cannot be known: whoever goes on without it would either send what is stopped, or
    /// never send anything.
    pub(super) fn look_at_pauses(&mut self) -> Result<(), SourceError> {
        self.pauses_unknown = self.pauses.unknown()?;
        self.engine.pause_lanes(self.pauses.lanes());
        let pause = self.pauses.pause();
        match (&self.pause, &pause) {
            (None, Some(pause)) => {
                let reason = pause.reason.as_deref();
                info!(pipeline = self.name, reason, "paused by an operator");
            }
            (Some(_), None) => {
                info!(pipeline = self.name, "resumed by an operator");
                self.engine.rested(self.started.elapsed());
            }
            (None, None) | (Some(_), Some(_)) => {}
        }
        self.pause = pause;
        Ok(())
    }
}
