//! Appends whole lines or nothing.
//!
//! A write that fails may have left a part behind, and after a failed sync nobody knows what is
//! on disk: the kernel may have dropped the pages and call the file clean. In both cases the file
//! is cut back to its last good length, and the lines are written anew with the next attempt. If
//! even the cutting fails, it is done first thing in the next call, before anything is written.

use std::io;

use super::medium::Medium;

/// Appends to a file and keeps it whole.
#[derive(Debug)]
pub(super) struct Appender<M> {
    medium: M,
    is_device: bool,
    /// The length to cut the file back to, if its end may be torn.
    torn_after: Option<u64>,
}

impl<M: Medium> Appender<M> {
    pub(super) fn new(medium: M) -> Self {
        Self { medium, is_device: false, torn_after: None }
    }

    /// For something that has no length and cannot be synced.
    pub(super) fn for_device(medium: M) -> Self {
        Self { medium, is_device: true, torn_after: None }
    }

    /// What is appended to.
    pub(super) fn medium(&self) -> &M {
        &self.medium
    }

    /// Makes lines durable, or leaves the file as it was.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.is_device {
            return self.medium.append(lines);
        }
        self.cut_off_torn_end()?;
        // Asked each time, since an operator may have emptied the file (`copytruncate`).
        let good_length = self.medium.length()?;
        let written = self.medium.append(lines).and_then(|()| self.medium.sync());
        if written.is_err() {
            self.torn_after = Some(good_length);
            // The error to report is the first; this one, if any, is met again next time.
            let _ = self.cut_off_torn_end();
        }
        written
    }

    fn cut_off_torn_end(&mut self) -> io::Result<()> {
        if let Some(good_length) = self.torn_after {
            // Never lengthen the file: that would fill it with zeros.
            if self.medium.length()? > good_length {
                self.medium.truncate(good_length)?;
            }
            self.torn_after = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in memory; each step fails while it is told to.
    #[derive(Default)]
    struct Fake {
        bytes: Vec<u8>,
        synced: Vec<u8>,
        room: Option<usize>,
        sync_fails: bool,
        truncate_fails: bool,
    }

    impl Medium for Fake {
        fn length(&self) -> io::Result<u64> {
            Ok(self.bytes.len() as u64)
        }

        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let fits = self.room.unwrap_or(usize::MAX).min(bytes.len());
            self.bytes.extend_from_slice(&bytes[..fits]);
            if fits < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }

        fn sync(&mut self) -> io::Result<()> {
            if self.sync_fails {
                return Err(io::Error::other("input/output error"));
            }
            self.synced.clone_from(&self.bytes);
            Ok(())
        }

        fn truncate(&mut self, length: u64) -> io::Result<()> {
            if self.truncate_fails {
                return Err(io::Error::other("cannot truncate"));
            }
            self.bytes.truncate(usize::try_from(length).unwrap());
            Ok(())
        }
    }

    #[test]
    fn ok_means_synced() {
        let mut appender = Appender::new(Fake::default());
        appender.append(b"one\n").unwrap();
        assert_eq!(appender.medium.synced, b"one\n");
    }

    #[test]
    fn a_part_of_a_line_never_stays() {
        let mut appender = Appender::new(Fake::default());
        appender.append(b"one\n").unwrap();
        appender.medium.room = Some(2);
        assert_eq!(appender.append(b"two\n").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(appender.medium.bytes, b"one\n");
        appender.medium.room = None;
        appender.append(b"two\n").unwrap();
        assert_eq!(appender.medium.synced, b"one\ntwo\n");
    }

    #[test]
    fn what_could_not_be_synced_is_written_again() {
        let mut appender = Appender::new(Fake { sync_fails: true, ..Fake::default() });
        appender.append(b"one\n").unwrap_err();
        assert_eq!(appender.medium.bytes, b"");
        appender.medium.sync_fails = false;
        appender.append(b"one\n").unwrap();
        assert_eq!(appender.medium.synced, b"one\n");
    }

    #[test]
    fn a_torn_end_is_cut_off_before_anything_else_is_written() {
        let fake = Fake { room: Some(2), truncate_fails: true, ..Fake::default() };
        let mut appender = Appender::new(fake);
        appender.append(b"one\n").unwrap_err();
        appender.medium.room = None;
        assert_eq!(appender.append(b"one\n").unwrap_err().to_string(), "cannot truncate");
        assert_eq!(appender.medium.bytes, b"on");
        appender.medium.truncate_fails = false;
        appender.append(b"one\n").unwrap();
        assert_eq!(appender.medium.bytes, b"one\n");
    }

    #[test]
    fn a_file_emptied_meanwhile_is_not_lengthened() {
        let mut appender = Appender::new(Fake::default());
        appender.append(b"one\n").unwrap();
        appender.medium.room = Some(1);
        appender.medium.truncate_fails = true;
        appender.append(b"two\n").unwrap_err();
        appender.medium.bytes.clear();
        appender.medium.room = None;
        appender.append(b"two\n").unwrap();
        assert_eq!(appender.medium.bytes, b"two\n");
    }
}
