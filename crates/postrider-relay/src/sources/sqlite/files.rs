//! Which files are open, and whether they are still those at the path.
//!
//! A file that is moved, deleted or replaced while it is open is read and written on, without an
//! error, and nobody else sees it. So what was opened is compared with what the path leads to
//! (device and inode), before each command and after it. The open connection keeps its files in
//! being, so that no other file can get their numbers meanwhile.
//!
//! | the path leads to | what becomes of it |
//! |---|---|
//! | another database | [`Lost`](SourceErrorKind::Lost): it is opened, and nothing that was read from the old one is settled in it |
//! | another database, with the log of the old one beside it | unavailable, until that log is gone |
//! | nothing, or a database whose log is gone | unavailable, until it is back or another one is there |
//! | the same database with another log | unsafe: programs that are open write to different logs |
//!
//! The second one is why the numbers stand in the lock file too (`lock`). SQLite takes any log
//! beside a file for the log of that file. A connection that only reads, and closes, would write
//! the pages of the old database into the new one; and where the log is gone, it would make a new
//! one beside a database whose pages are in the old. Whoever opens a database here therefore looks
//! first whether a running relay has it open with another log, or its log with another file.
//!
//! The database file is never opened here: closing it would release all locks that SQLite has on
//! it in this process.

use std::fs;
use std::path::{Path, PathBuf};

use super::Location;
use super::lock;
use crate::source::{SourceError, SourceErrorKind};

/// A file, whatever its name. Elsewhere than on Unix all are taken for the same: the system does
/// not let an open file be moved or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    #[cfg(unix)]
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    #[cfg(not(unix))]
    pub(super) fn of(_: &fs::Metadata) -> Self {
        Self { device: 0, inode: 0 }
    }

    /// The file that a path leads to.
    pub(super) fn at(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().as_ref().map(Self::of)
    }
}

/// A database, its write-ahead log, and the index of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIds {
    database: FileId,
    log: FileId,
    index: FileId,
}

impl FileIds {
    fn at(database: &Path) -> Option<Self> {
        Some(Self {
            database: FileId::at(database)?,
            log: FileId::at(&log_of(database))?,
            index: FileId::at(&index_of(database))?,
        })
    }

    /// Whether its log, or the index of that, stands beside another database.
    fn are_beside_another(&self, database: &Path) -> bool {
        FileId::at(database).is_some_and(|found| found != self.database)
            && (FileId::at(&log_of(database)) == Some(self.log)
                || FileId::at(&index_of(database)) == Some(self.index))
    }

    /// Fails unless its log, and the index of that, are beside it.
    fn check_log(&self, database: &Path) -> Result<(), SourceError> {
        let (log, index) = (log_of(database), index_of(database));
        for (path, opened) in [(log, self.log), (index, self.index)] {
            match FileId::at(&path) {
                Some(found) if found == opened => {}
                Some(_) => return Err(log_replaced(&path)),
                None => return Err(gone(&path)),
            }
        }
        Ok(())
    }

    /// What stands in a lock file.
    pub(super) fn to_text(self) -> String {
        let Self { database, log, index } = self;
        let shown = [database, log, index].map(|id| format!("{}:{}", id.device, id.inode));
        shown.join(" ") + "\n"
    }

    /// `None` if nothing does, or not all of it yet.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let mut ids = text.strip_suffix('\n')?.split(' ').map(|id| {
            let (device, inode) = id.split_once(':')?;
            Some(FileId { device: device.parse().ok()?, inode: inode.parse().ok()? })
        });
        Some(Self { database: ids.next()??, log: ids.next()??, index: ids.next()?? })
    }
}

/// The files that a connection has open.
#[derive(Debug)]
pub(super) struct OpenFiles {
    location: Location,
    /// Without symbolic links, as SQLite names the files beside it.
    database: PathBuf,
    pub(super) ids: FileIds,
}

impl OpenFiles {
    /// Of a connection that was opened after `before` was seen at the path, and has used its log.
    pub(super) fn opened(
        location: &Location,
        database: &Path,
        before: Option<FileId>,
    ) -> Result<Self, SourceError> {
        match FileIds::at(database) {
            Some(ids) if Some(ids.database) == before => {
                Ok(Self { location: location.clone(), database: database.to_owned(), ids })
            }
            _ => {
                let message = format!("{location} was replaced while it was opened");
                Err(SourceError::new(SourceErrorKind::Unavailable, message))
            }
        }
    }

    /// Fails unless they are those at the path.
    pub(super) fn check(&self) -> Result<(), SourceError> {
        let location = &self.location;
        match FileId::at(location.path()) {
            None => Err(gone(location.path())),
            Some(found) if found == self.ids.database => self.ids.check_log(&self.database),
            Some(_) => {
                let real = fs::canonicalize(location.path());
                Err(match real.is_ok_and(|real| self.ids.are_beside_another(&real)) {
                    true => mixed(location),
                    false => replaced(location),
                })
            }
        }
    }
}

/// Refuses a database whose log is not the one that a running relay has open with it, or is the
/// one of another database.
pub(super) fn refuse_mixture(location: &Location, database: &Path) -> Result<(), SourceError> {
    for (path, ids) in lock::noted(database) {
        let refusal = match FileId::at(database) {
            Some(found) if found == ids.database => ids.check_log(database).err(),
            _ => ids.are_beside_another(database).then(|| mixed(location)),
        };
        // It says nothing if the relay has ended, or starts at this moment.
        if let Some(error) = refusal
            && lock::is_held(&path)
            && lock::read(&path) == Some(ids)
        {
            return Err(error);
        }
    }
    Ok(())
}

fn log_of(database: &Path) -> PathBuf {
    beside(database, "-wal")
}

fn index_of(database: &Path) -> PathBuf {
    beside(database, "-shm")
}

fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

fn replaced(location: &Location) -> SourceError {
    let message = format!("{location} was replaced by another file while it was open");
    SourceError::new(SourceErrorKind::Lost, message)
        .with_hint("applications that had it open still write to the old file: restart them")
}

fn mixed(location: &Location) -> SourceError {
    let message = format!(
        "{location} was replaced while it was open, and beside it stands the log of the file that \
         it replaced"
    );
    let path = location.path().display();
    SourceError::new(SourceErrorKind::Unavailable, message).with_hint(format!(
        "stop every application that uses the database, remove {path}-wal and {path}-shm, and start \
         the applications again; nothing is read or written until then, because SQLite would write \
         the pages of the old file into the new one"
    ))
}

fn gone(path: &Path) -> SourceError {
    let message = format!("{} is not there any more, and is still open here", path.display());
    SourceError::new(SourceErrorKind::Unavailable, message).with_hint(
        "move it back, or put another database there without the files -wal and -shm of this one; \
         if only one of those two was removed, stop all programs in an orderly way, which writes \
         back what they know, and start them again",
    )
}

fn log_replaced(path: &Path) -> SourceError {
    let message = format!("{} was replaced while it was open", path.display());
    SourceError::new(SourceErrorKind::Unsafe, message).with_hint(
        "stop every program that uses the database, run `PRAGMA integrity_check`, and restore the \
         database if it is damaged",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lock_file_says_is_read_whole_or_not_at_all() {
        let id = |inode| FileId { device: u64::MAX, inode };
        let ids = FileIds { database: id(1), log: id(2), index: id(u64::MAX) };
        let text = ids.to_text();
        assert_eq!(FileIds::from_text(&text), Some(ids));
        for length in 0..text.len() {
            assert_eq!(FileIds::from_text(&text[..length]), None, "{length}");
        }
        assert_eq!(FileIds::from_text("a:b c:d e:f\n"), None);
    }
}
