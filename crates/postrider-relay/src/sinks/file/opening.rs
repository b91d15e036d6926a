//! Opens the file, and opens it anew when it was moved away or removed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use super::appender::Appender;
use super::failure::{failure, misconfigured};
use super::repair;
use crate::private_files;
use crate::sink::{FailureKind, SinkError};

/// Opens a file for appending, locks it, and mends its end.
pub(super) fn open(path: &Path) -> Result<Appender<File>, SinkError> {
    let cannot_open = |error: io::Error| failure("open", path, &error);
    let is_new = match fs::metadata(path) {
        Ok(found) if is_pipe(&found) => {
            return Err(misconfigured(path, "is a pipe or socket; name a file, or use stdout:"));
        }
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(cannot_open(error)),
    };
    let file = private_files::open(path, OpenOptions::new().read(true).append(true).create(true))
        .map_err(cannot_open)?;
    let regular = file.metadata().map_err(cannot_open)?.is_file();
    if !regular {
        // A device such as /dev/null: there is nothing to lock, repair, sync or cut off.
        return Ok(Appender::for_device(file));
    }
    match file.try_lock() {
        // Some file systems have no locks; a single relay works there all the same.
        Ok(()) => {}
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
        Err(TryLockError::Error(error)) => return Err(cannot_open(error)),
        Err(TryLockError::WouldBlock) => {
            // The relay that this one stands by for may be writing it.
            let message = format!(
                "{} is being written by another process; if that is not the relay that this one \
                 stands by for, give each pipeline a file of its own",
                path.display()
            );
            return Err(SinkError::new(FailureKind::Unavailable, message));
        }
    }
    repair::repair(&file, path)?;
    if is_new {
        sync_directory(path).map_err(cannot_open)?;
    }
    Ok(Appender::new(file))
}

/// Whether the path no longer names the open file: it was rotated away or removed, and what is
/// written would not be found.
#[cfg(unix)]
pub(super) fn is_replaced(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let open = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) != (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
pub(super) fn is_replaced(_file: &File, _path: &Path) -> io::Result<bool> {
    // An open file can be neither moved nor removed there.
    Ok(false)
}

/// Makes a new file's name durable: syncing the file alone does not (`man 2 fsync`).
fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(unix)]
fn is_pipe(found: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    // Opening a pipe for writing waits for a reader, maybe for ever.
    found.file_type().is_fifo() || found.file_type().is_socket()
}

#[cfg(not(unix))]
fn is_pipe(_found: &fs::Metadata) -> bool {
    false
}
