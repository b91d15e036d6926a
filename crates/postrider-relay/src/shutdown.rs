//! How a pipeline is told to stop: passed in, never reached for.

use std::time::Duration;

use tokio::sync::watch;

/// How long work under way may take to finish once a stop was asked for.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(20);

/// Asks pipelines to stop. Dropping it asks too.
#[derive(Debug)]
pub struct ShutdownHandle {
    sender: watch::Sender<bool>,
}

/// Learns that a stop was asked for.
#[derive(Clone, Debug)]
pub struct Shutdown {
    receiver: watch::Receiver<bool>,
}

/// A handle and the token that obeys it.
pub fn shutdown() -> (ShutdownHandle, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (ShutdownHandle { sender }, Shutdown { receiver })
}

impl ShutdownHandle {
    /// Asks for a graceful stop: reading ends, what is under way is finished and settled.
    pub fn stop(&self) {
        self.sender.send_replace(true);
    }
}

impl Shutdown {
    /// Whether a stop was asked for.
    pub fn is_requested(&self) -> bool {
        *self.receiver.borrow() || self.receiver.has_changed().is_err()
    }

    /// Ends when a stop is asked for. Cancel-safe.
    pub async fn requested(&mut self) {
        // An error means that the handle is gone, which asks for a stop as well.
        let _ = self.receiver.wait_for(|stop| *stop).await;
    }
}
