//! One relay per pipeline: a lock on a file beside the database.
//!
//! Two relays on one pipeline would send everything twice and out of order. SQLite is used by
//! programs of one machine, so the operating system's file locks are the simplest lease there
//! is: taken without waiting, fenced by the kernel, and given up with the process however it
//! ends. A second relay is told that the database is unavailable, keeps trying, and so stands
//! by. The file stays where it is: removing it would let two relays lock two different files of the
//! same name, so a relay that does not find its own there gives up. It says which files the relay
//! has open (`files`).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use postrider::schema::TableName;

use super::files::{FileId, FileIds};
use crate::source::{SourceError, SourceErrorKind};

/// What stands between the name of a database and that of a lock.
const INFIX: &str = "-postrider-";
const SUFFIX: &str = ".lock";

/// Held for as long as it lives.
#[derive(Debug)]
pub(super) struct PipelineLock {
    file: File,
    path: PathBuf,
}

impl PipelineLock {
    /// Takes the lock, or says who has it. `database` must be free of symbolic links, so that
    /// every relay means the same file.
    pub(super) fn take(
        database: &Path,
        table: &TableName,
        pipeline: &str,
    ) -> Result<Self, SourceError> {
        let path = lock_path(database, table, pipeline);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(
                |err| {
                    let message = format!("cannot open the lock file {}", path.display());
                    SourceError::new(SourceErrorKind::Misconfigured, message)
                        .with_hint("the relay needs to write to the directory of the database")
                        .with_source(err)
                },
            )?;
        match file.try_lock() {
            Ok(()) => {
                let lock = Self { file, path };
                // What the relay before this one had open.
                lock.forget();
                Ok(lock)
            }
            Err(TryLockError::WouldBlock) => {
                let message = format!("another relay runs pipeline {pipeline:?} on this database");
                Err(SourceError::new(SourceErrorKind::Held, message)
                    .with_hint("this one stands by and takes over when the other one ends"))
            }
            Err(TryLockError::Error(err)) => {
                let message = format!("cannot lock {}", path.display());
                Err(SourceError::new(SourceErrorKind::Misconfigured, message)
                    .with_hint("keep the database on a local file system that has file locks")
                    .with_source(err))
            }
        }
    }

    /// Writes down which files are open, for whoever opens the database meanwhile.
    pub(super) fn note(&self, ids: FileIds) -> Result<(), SourceError> {
        (&self.file).write_all(ids.to_text().as_bytes()).map_err(|err| {
            let message = format!("cannot write to the lock file {}", self.path.display());
            SourceError::new(SourceErrorKind::Unavailable, message).with_source(err)
        })
    }

    /// Forgets which files are open, before they are closed.
    pub(super) fn forget(&self) {
        // What is left there is of no account once the lock is free.
        let _ = self.file.set_len(0);
    }

    /// Fails if the file is not at its place any more: another relay may have locked another one.
    pub(super) fn check(&self) -> Result<(), SourceError> {
        let own = self.file.metadata().ok().as_ref().map(FileId::of);
        if own == FileId::at(&self.path) {
            return Ok(());
        }
        let message = format!("the lock file {} was removed or replaced", self.path.display());
        Err(SourceError::new(SourceErrorKind::Lost, message)
            .with_hint("leave it where it is: without it two relays may send the same events"))
    }
}

/// The locks beside a database, whether they are held or not, and what stands in them.
pub(super) fn noted(database: &Path) -> impl Iterator<Item = (PathBuf, FileIds)> {
    let prefix = database.file_name().map(|name| format!("{}{INFIX}", name.to_string_lossy()));
    let files = database.parent().and_then(|folder| fs::read_dir(folder).ok());
    let paths = files.into_iter().flatten().filter_map(move |file| {
        let file = file.ok()?;
        let name = file.file_name();
        let name = name.to_string_lossy();
        let is_lock = name.starts_with(prefix.as_deref()?) && name.ends_with(SUFFIX);
        is_lock.then(|| file.path())
    });
    paths.filter_map(|path| {
        let ids = read(&path)?;
        Some((path, ids))
    })
}

/// Which files a relay says that it has open.
pub(super) fn read(path: &Path) -> Option<FileIds> {
    FileIds::from_text(&fs::read_to_string(path).ok()?)
}

/// Whether a relay has a lock.
pub(super) fn is_held(path: &Path) -> bool {
    let file = File::open(path);
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// The file that a relay locks.
pub(super) fn lock_path(database: &Path, table: &TableName, pipeline: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(format!("{INFIX}{:016x}{SUFFIX}", fingerprint(table.as_str(), pipeline)));
    path.into()
}

/// FNV-1a. A name of any length and any characters becomes a short one, the same in every
/// build.
fn fingerprint(table: &str, pipeline: &str) -> u64 {
    // SQLite does not tell `Outbox` from `outbox`.
    let table = table.bytes().map(|byte| byte.to_ascii_lowercase());
    let bytes = table.chain([0]).chain(pipeline.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_locked_once_and_others_are_free() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("app.db");
        let table = TableName::default();
        let first = PipelineLock::take(&database, &table, "a/b").unwrap();
        let error = PipelineLock::take(&database, &table, "a/b").unwrap_err();
        assert_eq!(error.kind, SourceErrorKind::Held);
        assert_eq!(error.to_string(), "another relay runs pipeline \"a/b\" on this database");
        PipelineLock::take(&database, &table, "other").unwrap();
        drop(first);
        PipelineLock::take(&database, &table, "a/b").unwrap();
    }
}
