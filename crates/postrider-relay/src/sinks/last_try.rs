//! What the last try to connect has come to, for calls that have waited for it.
//!
//! Calls that need a connection take turns to make it. If each tried for itself after the one
//! before has failed, the last one would wait for longer than a call has, and the outage would be
//! taken for its failure.

use tokio::time::Instant;

use crate::sink::SinkError;

/// When connecting failed last, and why.
#[derive(Default)]
pub(super) struct LastTry(Option<(Instant, SinkError)>);

impl LastTry {
    /// Remembers a failure.
    pub(super) fn failed(&mut self, error: &SinkError) {
        self.0 = Some((Instant::now(), error.clone()));
    }

    /// Fails as the last try did, if it has failed since then.
    pub(super) fn since(&self, asked_at: Instant) -> Result<(), SinkError> {
        match &self.0 {
            Some((at, error)) if *at >= asked_at => Err(error.clone()),
            _ => Ok(()),
        }
    }
}
