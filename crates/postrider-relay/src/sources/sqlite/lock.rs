//! One relay per pipeline: a lock on a file beside the database.
//!
//! Two relays on one pipeline would send everything twice and out of order. SQLite is used by
//! programs of one machine, so the operating system's file locks are the simplest lease there
//! is: taken without waiting, fenced by the kernel, and given up with the process however it
//! ends. A second relay is told that the database is unavailable, keeps trying, and so stands
//! by. The file is empty and stays where it is: removing it would let two relays lock two
//! different files of the same name.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use postrider::schema::TableName;

use crate::source::{SourceError, SourceErrorKind};

/// Held for as long as it lives.
#[derive(Debug)]
pub(super) struct PipelineLock {
    _file: File,
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
            Ok(()) => Ok(Self { _file: file }),
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
}

/// The file that a relay locks.
pub(super) fn lock_path(database: &Path, table: &TableName, pipeline: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(format!("-postrider-{:016x}.lock", fingerprint(table.as_str(), pipeline)));
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
