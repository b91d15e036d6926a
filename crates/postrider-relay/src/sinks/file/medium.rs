//! What the appender needs of a file, so that a test can make each step fail.

use std::fs::File;
use std::io::{self, Write as _};

/// A file open for appending.
pub(super) trait Medium: Send {
    /// How long it is now.
    fn length(&self) -> io::Result<u64>;
    /// Writes at the end; a failure may leave a part there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Returns once everything written is on disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts off what lies beyond a length.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl Medium for File {
    fn length(&self) -> io::Result<u64> {
        self.metadata().map(|found| found.len())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}
