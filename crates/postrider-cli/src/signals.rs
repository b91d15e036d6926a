//! SIGTERM and SIGINT: the first asks for a graceful stop, the second ends the process.

use postrider_relay::shutdown::{Shutdown, shutdown};

use crate::error::CliError;

/// The exit code after a second signal, as shells have it for an interrupt.
const INTERRUPTED: i32 = 130;

/// A token that is told to stop by the first signal.
pub(crate) fn stop_on_signal() -> Result<Shutdown, CliError> {
    let mut signals = Signals::new()
        .map_err(|error| CliError::file("cannot listen for signals".into(), &error))?;
    let (handle, token) = shutdown();
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!("stopping: finishing what is under way; a second signal exits at once");
        handle.stop();
        signals.next().await;
        std::process::exit(INTERRUPTED);
    });
    Ok(token)
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        // Without it the process cannot be stopped gracefully, but it still can be ended.
        let _ = tokio::signal::ctrl_c().await;
    }
}
