//! A hint that there may be events to read, so that a source looks at once instead of at its next
//! poll.
//!
//! Hints are an optional help: losing one costs a poll's delay and nothing else.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes sources that wait for events. Its clones are one and the same hint.
#[derive(Clone, Debug, Default)]
pub struct Hint {
    given: Arc<Notify>,
}

impl Hint {
    /// A hint that nobody has given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells whoever waits now that it is worth looking.
    pub fn give(&self) {
        self.given.notify_waiters();
    }

    /// Waits until a hint is given.
    pub async fn given(&self) {
        self.given.notified().await;
    }
}
