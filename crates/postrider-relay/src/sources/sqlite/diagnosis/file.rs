//! Checks of the file and of where it lies.

use std::fs::{self, File, TryLockError};
use std::path::Path;
#[cfg(any(target_os = "linux", test))]
use std::path::PathBuf;

use postrider::schema::TableName;

use super::super::Location;
use super::super::lock::lock_path;
#[cfg(unix)]
use crate::amounts::size;
use crate::diagnosis::{Finding, Fix};
#[cfg(unix)]
use crate::shell::word;

/// Less than this is little.
#[cfg(unix)]
const FREE_MIN: u64 = 256 << 20;

/// All of them. `path` is the file's own, without symbolic links.
pub(super) fn checks(path: &Path) -> Vec<Finding> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    vec![permissions(path, folder), room(folder), file_system(folder)]
}

/// Whether the relay that this user would run can write, and nobody else.
#[cfg(unix)]
fn permissions(path: &Path, folder: &Path) -> Finding {
    use rustix::fs::{Access, access};
    use std::os::unix::fs::PermissionsExt as _;
    const CHECK: &str = "permissions";
    for (what, at) in [("the file", path), ("its folder", folder)] {
        if access(at, Access::READ_OK | Access::WRITE_OK).is_err() {
            let found = format!("{what} {} cannot be written by this user", at.display());
            let fix = format!("chmod u+rw {}", word(&at.to_string_lossy()));
            return Finding::fail(CHECK, found).with(Fix::command(fix));
        }
    }
    let mode = fs::metadata(path).map(|found| found.permissions().mode() & 0o777);
    match mode {
        Ok(mode) if mode & 0o002 != 0 => {
            let found = format!("everybody can change {} (mode {mode:o})", path.display());
            let fix = format!("chmod o-w {}", word(&path.to_string_lossy()));
            Finding::warn(CHECK, found).with(Fix::command(fix))
        }
        Ok(mode) => {
            Finding::ok(CHECK, format!("{} can be written (mode {mode:o})", path.display()))
        }
        Err(error) => Finding::skip(CHECK, format!("cannot look at the file: {error}")),
    }
}

#[cfg(not(unix))]
fn permissions(path: &Path, _folder: &Path) -> Finding {
    const CHECK: &str = "permissions";
    match fs::metadata(path) {
        Ok(found) if found.permissions().readonly() => {
            Finding::fail(CHECK, format!("{} can only be read", path.display()))
        }
        Ok(_) => Finding::ok(CHECK, format!("{} can be written", path.display())),
        Err(error) => Finding::skip(CHECK, format!("cannot look at the file: {error}")),
    }
}

/// Free disk space.
#[cfg(unix)]
fn room(folder: &Path) -> Finding {
    const CHECK: &str = "disk-space";
    match rustix::fs::statvfs(folder) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let shown = format!("{} are free in {}", size(free), folder.display());
            match free < FREE_MIN {
                false => Finding::ok(CHECK, shown),
                true => Finding::warn(CHECK, format!("only {shown}"))
                    .with(Fix::advice("free some disk space: without it nothing can be written")),
            }
        }
        Err(error) => Finding::skip(CHECK, format!("the system does not tell: {error}")),
    }
}

#[cfg(not(unix))]
fn room(_folder: &Path) -> Finding {
    Finding::skip("disk-space", "the system does not tell")
}

/// Locks of SQLite do not hold between hosts.
#[cfg(target_os = "linux")]
fn file_system(folder: &Path) -> Finding {
    const CHECK: &str = "file-system";
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else {
        return Finding::skip(CHECK, "the system does not tell");
    };
    match kind_of(&mounts, folder) {
        None => Finding::skip(CHECK, "the system does not tell"),
        Some(kind) if is_remote(&kind) => {
            let found = format!(
                "the database is on {kind}, where the locks of SQLite cannot be relied on: two \
                 hosts that write damage it"
            );
            Finding::warn(CHECK, found).with(Fix::advice("move it to a local file system"))
        }
        Some(kind) => Finding::ok(CHECK, format!("the database is on {kind}")),
    }
}

#[cfg(not(target_os = "linux"))]
fn file_system(_folder: &Path) -> Finding {
    Finding::skip("file-system", "the system does not tell")
}

/// The kind of the file system that a folder is on.
#[cfg(any(target_os = "linux", test))]
fn kind_of(mounts: &str, folder: &Path) -> Option<String> {
    let mount = |line: &str| {
        let mut parts = line.split(' ').skip(1);
        // Spaces in it are written in octal.
        let point = PathBuf::from(parts.next()?.replace("\\040", " "));
        let kind = parts.next()?.to_owned();
        folder.starts_with(&point).then_some((point.components().count(), kind))
    };
    // Of those at the same place the last one is in force.
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

#[cfg(any(target_os = "linux", test))]
fn is_remote(kind: &str) -> bool {
    const REMOTE: [&str; 11] = [
        "9p",
        "afs",
        "ceph",
        "cifs",
        "glusterfs",
        "lustre",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
        "virtiofs",
    ];
    REMOTE.contains(&kind) || kind == "fuse.sshfs" || kind == "fuse.glusterfs"
}

/// Who has the pipeline: a look at the lock, which is free again at once.
pub(super) fn relay(location: &Location, outbox: &TableName, pipeline: &str) -> Finding {
    const CHECK: &str = "relay";
    let path = fs::canonicalize(location.path());
    let path = path.unwrap_or_else(|_| location.path().to_owned());
    let finding = match File::open(lock_path(&path, outbox, pipeline)) {
        Err(_) => Finding::ok(CHECK, "no relay has run it here"),
        Ok(file) => match file.try_lock_shared() {
            Ok(()) => Finding::ok(CHECK, "no relay runs it now"),
            Err(TryLockError::WouldBlock) => Finding::ok(CHECK, "a relay runs it"),
            Err(TryLockError::Error(error)) => {
                let found = format!("the file system has no locks: {error}");
                let fix = "keep the database on a local file system";
                Finding::fail(CHECK, found).with(Fix::advice(fix))
            }
        },
    };
    finding.about(pipeline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = "/dev/a / ext4 rw 0 0\nhost:/x /srv/my\\040data nfs4 rw 0 0\n\
                      tmpfs /srv/my\\040data/fast tmpfs rw 0 0\n";
        for (folder, kind) in [
            ("/var/lib", "ext4"),
            ("/srv/my data/shop", "nfs4"),
            ("/srv/my data/fast", "tmpfs"),
            ("/srv/my data2", "ext4"),
        ] {
            assert_eq!(kind_of(mounts, Path::new(folder)).unwrap(), kind, "{folder}");
        }
        assert!(is_remote("nfs4") && !is_remote("ext4"));
        assert_eq!(kind_of("", Path::new("/x")), None);
    }
}
