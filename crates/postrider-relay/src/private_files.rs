//! Files that hold events: only their owner reads them, and no link leads them elsewhere.
//!
//! Whoever can write to a folder can put a symbolic link there, and so choose which file of the
//! relay's user is appended to or made. So links in such a folder are not followed, be it the last
//! part of a path or one before it. A file that is there already keeps its mode.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A link in a folder that others can write.
#[derive(Debug, thiserror::Error)]
#[error("{} is a symbolic link in a folder that others can write", link.display())]
pub struct SharedLink {
    /// Where it is.
    pub link: PathBuf,
}

/// Opens a file as the options say. One that is made is for its owner alone.
///
/// # Errors
///
/// Those of the system, or a [`SharedLink`].
#[cfg(unix)]
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if let Some(link) = shared_link(path) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, SharedLink { link }));
    }
    options.mode(0o600);
    if is_shared(folder(path)) {
        // One may have come since.
        let no_follow = rustix::fs::OFlags::NOFOLLOW.bits();
        options.custom_flags(no_follow.cast_signed());
    }
    options.open(path)
}

/// Opens a file as the options say.
///
/// # Errors
///
/// Those of the system.
#[cfg(not(unix))]
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.open(path)
}

/// The first part of a path that is a link which others could have made.
#[cfg(unix)]
pub fn shared_link(path: &Path) -> Option<PathBuf> {
    let parts: Vec<&Path> = path.ancestors().filter(|part| part.file_name().is_some()).collect();
    let is_link = |part: &Path| part.symlink_metadata().is_ok_and(|found| found.is_symlink());
    let found = parts.into_iter().rev().find(|part| is_link(part) && is_shared(folder(part)));
    found.map(Path::to_owned)
}

/// The first part of a path that is a link which others could have made: this system has no modes.
#[cfg(not(unix))]
pub fn shared_link(_path: &Path) -> Option<PathBuf> {
    None
}

/// Whether an error is about such a link.
pub(crate) fn is_shared_link(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<SharedLink>())
}

/// Whether others than its owner can write to a folder.
#[cfg(unix)]
fn is_shared(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    folder.metadata().is_ok_and(|found| found.permissions().mode() & 0o022 != 0)
}

#[cfg(unix)]
fn folder(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}
