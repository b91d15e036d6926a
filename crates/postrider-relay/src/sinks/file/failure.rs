//! What an error of the file system means for the pipeline.

use std::io::{self, ErrorKind};
use std::path::Path;

use crate::private_files::is_shared_link;
use crate::sink::{FailureKind, SinkError};

/// The answer for an error met while doing something to the file.
pub(super) fn failure(doing: &str, path: &Path, error: &io::Error) -> SinkError {
    let shown = path.display();
    let directory = path.parent().unwrap_or(Path::new(".")).display();
    let (kind, fix) = match error.kind() {
        _ if is_shared_link(error) => {
            (FailureKind::Misconfigured, "name the file that it leads to".to_owned())
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => (
            FailureKind::Misconfigured,
            "let the relay's user write to the file and its directory".to_owned(),
        ),
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            (FailureKind::Misconfigured, format!("create its directory: mkdir -p {directory}"))
        }
        ErrorKind::IsADirectory => {
            (FailureKind::Misconfigured, "it is a directory; name a file in it".to_owned())
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            (FailureKind::Unavailable, "free some space; the relay goes on by itself".to_owned())
        }
        _ => (FailureKind::Unavailable, "the relay tries again".to_owned()),
    };
    SinkError::new(kind, format!("cannot {doing} {shown}: {error}; {fix}"))
}

/// The answer for a file that an operator must deal with.
pub(super) fn misconfigured(path: &Path, problem: &str) -> SinkError {
    SinkError::new(FailureKind::Misconfigured, format!("{} {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_kind_and_its_fix() {
        let cases = [
            (ErrorKind::PermissionDenied, FailureKind::Misconfigured, "let the relay's user"),
            (ErrorKind::NotFound, FailureKind::Misconfigured, "mkdir -p /var/x"),
            (ErrorKind::IsADirectory, FailureKind::Misconfigured, "is a directory"),
            (ErrorKind::StorageFull, FailureKind::Unavailable, "free some space"),
            (ErrorKind::Other, FailureKind::Unavailable, "tries again"),
        ];
        for (error, kind, fix) in cases {
            let failure = failure("open", Path::new("/var/x/e.jsonl"), &error.into());
            assert_eq!(failure.kind, kind, "{error:?}");
            assert!(failure.message.contains(fix), "{}", failure.message);
        }
    }
}
