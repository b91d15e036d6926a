//! How far a long work is: one line of the terminal that changes, and is gone at the end. There is
//! none where stderr is no terminal, or where data is JSON.

use std::io::{self, IsTerminal as _, Write};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::output::Output;

/// Back to the beginning of the line, and erase it.
const ERASE: &str = "\r\x1b[2K";
/// A line that is longer than the terminal is wide could not be erased.
const COLUMNS_MAX: usize = 79;
/// The line changes no more often.
const CHANGES_EVERY: Duration = Duration::from_millis(100);

/// Whether a line is there now that has to go before anything else is printed.
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

/// Erases the line, if there is one.
pub(crate) fn erase() {
    if IS_SHOWN.swap(false, Relaxed) {
        let _ = write!(io::stderr().lock(), "{ERASE}");
    }
}

/// The line about a work; it is gone with it.
pub(crate) struct Progress {
    is_live: bool,
    start: Instant,
    changed: Option<Instant>,
}

impl Progress {
    /// Of a work that begins now.
    pub(crate) fn new(output: Output) -> Self {
        let is_live = !output.is_json() && io::stderr().is_terminal();
        Self { is_live, start: Instant::now(), changed: None }
    }

    /// None, if something else is written to the terminal that cannot be told to go around it.
    pub(crate) fn unless(mut self, is_taken: bool) -> Self {
        self.is_live &= !is_taken;
        self
    }

    /// Shows how far it is, unless that was shown a moment ago.
    pub(crate) fn show(&mut self, text: impl FnOnce(Duration) -> String) {
        let is_due = self.changed.is_none_or(|changed| changed.elapsed() >= CHANGES_EVERY);
        if !self.is_live || !is_due {
            return;
        }
        self.changed = Some(Instant::now());
        let text: String = text(self.start.elapsed()).chars().take(COLUMNS_MAX).collect();
        let mut stderr = io::stderr().lock();
        IS_SHOWN.store(true, Relaxed);
        let _ = write!(stderr, "{ERASE}{text}").and_then(|()| stderr.flush());
    }

    /// Waits for a work, and shows meanwhile how far it is.
    pub(crate) async fn during<T>(
        mut self,
        text: impl Fn() -> String,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        let mut ticks = interval(CHANGES_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The first time at once, however soon it is over.
            self.show(|time| format!("{}, {}s", text(), time.as_secs()));
            tokio::select! {
                _ = ticks.tick() => {}
                done = &mut work => return done,
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        erase();
    }
}

/// How far it is, as a bar.
pub(crate) fn bar(done: u64, total: u64, what: &str) -> String {
    const WIDTH: u64 = 30;
    let filled = (done * WIDTH / total.max(1)).min(WIDTH);
    let (full, empty) = (filled as usize, (WIDTH - filled) as usize);
    format!("[{}{}] {done} of {total} {what}", "=".repeat(full), " ".repeat(empty))
}

/// Where the log goes: to stderr, beside the line.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        erase();
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_never_longer_than_it_should_be() {
        assert_eq!(bar(0, 0, "events"), format!("[{}] 0 of 0 events", " ".repeat(30)));
        assert_eq!(bar(5, 10, "events"), format!("[{:<30}] 5 of 10 events", "=".repeat(15)));
        assert_eq!(bar(12, 10, "events"), format!("[{}] 12 of 10 events", "=".repeat(30)));
    }
}
