//! What a run writes down about its sink, so that `postrider status` can say it.
//!
//! Only trouble of the sink as a whole is noted: that of single events stands with the events.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::debug;

use super::Run;
use crate::source::{Source, SourceError, SourceErrorKind};

/// However often it changes, it is written down no more often.
const NOTE_EVERY: Duration = Duration::from_secs(1);
/// How long the end of a run may wait for it.
const NOTE_MAX: Duration = Duration::from_secs(1);
/// The most that is kept of an error.
const WHY_CHARS_MAX: usize = 1000;

impl Run<'_> {
    /// What is wrong with the sink as a whole, in the words of its last error.
    fn trouble_of_all(&self) -> Option<String> {
        let is_in_trouble = self.engine.is_circuit_open() || self.sink_away.is_some();
        // Whether what an earlier run has noted is over shows with the first event.
        let has_nothing = self.exhausted && self.engine.is_empty();
        if !is_in_trouble && self.totals.delivered == 0 && !has_nothing {
            return self.noted_trouble.clone();
        }
        is_in_trouble.then(|| match (&self.trouble, &self.noted_trouble) {
            (Some(why), _) => why.chars().take(WHY_CHARS_MAX).collect(),
            // What was under way has ended well, and the sink still asks to be left alone.
            (None, Some(noted)) => noted.clone(),
            (None, None) => "the sink asks to be left alone".to_owned(),
        })
    }

    /// Begins to note what has changed.
    pub(super) fn note_trouble(&mut self) {
        let is_due = self.trouble_noted_at.is_none_or(|at| at.elapsed() >= NOTE_EVERY);
        if self.noting_trouble.is_some() || !is_due {
            return;
        }
        let trouble = self.trouble_of_all();
        if trouble == self.noted_trouble {
            return;
        }
        self.trouble_noted_at = Some(Instant::now());
        let source = self.source;
        self.noting_trouble = Some(Box::pin(async move {
            let noted = source.note_trouble(trouble.as_deref()).await;
            (trouble, noted)
        }));
    }

    pub(super) fn trouble_is_noted(
        &mut self,
        trouble: Option<String>,
        noted: Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        self.noting_trouble = None;
        match noted {
            Ok(()) => self.noted_trouble = trouble,
            Err(error) if error.kind == SourceErrorKind::Lost => return Err(error),
            // It is tried again. No event depends on it.
            Err(error) => debug!(pipeline = self.name, %error, "the trouble could not be noted"),
        }
        Ok(())
    }

    /// Notes how the run has left the sink.
    pub(super) async fn note_trouble_at_the_end(&mut self) {
        self.noting_trouble = None;
        let trouble = match self.engine.stopped_by() {
            Some(error) => Some(error.message.clone()),
            None => self.trouble_of_all(),
        };
        if trouble != self.noted_trouble {
            note_last(self.source, trouble.as_deref()).await;
        }
    }
}

/// Notes trouble for the last time, if that can be done soon.
pub(super) async fn note_last(source: &dyn Source, trouble: Option<&str>) {
    if let Ok(Err(error)) = timeout(NOTE_MAX, source.note_trouble(trouble)).await {
        debug!(%error, "the trouble could not be noted");
    }
}
