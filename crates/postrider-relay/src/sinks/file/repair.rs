//! Mends the end of a file that a crash may have torn.
//!
//! A crash in the middle of a call leaves a last line without its line break. Its event was not
//! yet acknowledged, so it comes again, and the piece is cut off. A whole line is never removed:
//! if only the line break is missing, it is added, since an editor may have dropped it from an
//! event that was acknowledged long ago. An end that does not look like a line of this sink is
//! left alone, and the file refused: it is somebody else's.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde::de::IgnoredAny;

use super::failure::{failure, misconfigured};
use crate::sink::SinkError;

/// How each line of this sink starts.
const LINE_START: &[u8] = br#"{"id":""#;
/// Longest torn line that is looked at: far longer than any line of the largest event.
const TORN_BYTES_MAX: u64 = 32 * 1024 * 1024;
const CHUNK_BYTES: u64 = 64 * 1024;

/// Mends the end of a file if needed.
pub(super) fn repair(file: &File, path: &Path) -> Result<(), SinkError> {
    let cannot_repair = |error: io::Error| failure("repair", path, &error);
    let length = file.metadata().map_err(cannot_repair)?.len();
    let Some(torn) = torn_end(file, length).map_err(cannot_repair)? else {
        return Err(misconfigured(path, "does not look like a file of lines; name another file"));
    };
    if torn.is_empty() {
        return Ok(());
    }
    if !is_ours(&torn) {
        return Err(misconfigured(
            path,
            "ends with something that is no line of this sink; move the file away",
        ));
    }
    if serde_json::from_slice::<IgnoredAny>(&torn).is_ok() {
        let mut file = file;
        file.write_all(b"\n").map_err(cannot_repair)?;
    } else {
        file.set_len(length - torn.len() as u64).map_err(cannot_repair)?;
    }
    file.sync_data().map_err(cannot_repair)
}

/// What stands after the last line break; `None` if that is too long for a line.
fn torn_end(mut file: &File, length: u64) -> io::Result<Option<Vec<u8>>> {
    // The pieces from the end of the file to its start.
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    let mut start = length;
    while start > 0 && length - start < TORN_BYTES_MAX {
        let from = start.saturating_sub(CHUNK_BYTES);
        let mut chunk = vec![0; usize::try_from(start - from).map_err(io::Error::other)?];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut chunk)?;
        if let Some(line_break) = chunk.iter().rposition(|byte| *byte == b'\n') {
            pieces.push(chunk.split_off(line_break + 1));
            pieces.reverse();
            return Ok(Some(pieces.concat()));
        }
        pieces.push(chunk);
        start = from;
    }
    pieces.reverse();
    Ok((start == 0).then(|| pieces.concat()))
}

/// Whether a piece can be the start of a line of this sink, or the zeros that some file systems
/// leave after a loss of power.
fn is_ours(torn: &[u8]) -> bool {
    torn.starts_with(LINE_START) || LINE_START.starts_with(torn) || torn.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::sink::FailureKind;

    fn repaired(contents: &[u8]) -> (Result<(), SinkError>, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        fs::write(&path, contents).unwrap();
        let file = fs::OpenOptions::new().read(true).append(true).open(&path).unwrap();
        let result = repair(&file, &path);
        (result, fs::read(&path).unwrap())
    }

    #[test]
    fn only_a_torn_line_is_cut_off() {
        let long = format!("one\n{{\"id\":\"{}", "x".repeat(200_000));
        let cases: [(&[u8], &[u8]); 8] = [
            (b"", b""),
            (b"one\ntwo\n", b"one\ntwo\n"),
            (b"one\n{\"id\":\"0189", b"one\n"),
            (b"one\n{", b"one\n"),
            (b"{\"id\":\"0189", b""),
            (b"one\n\0\0\0", b"one\n"),
            (b"one\n{\"id\":\"a\"}", b"one\n{\"id\":\"a\"}\n"),
            (long.as_bytes(), b"one\n"),
        ];
        for (before, after) in cases {
            let (result, found) = repaired(before);
            result.unwrap();
            assert_eq!(found, after, "{}", String::from_utf8_lossy(before));
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        for contents in [&b"one\ntwo"[..], b"PNG\x01\x02", b"\0\0x", b"123"] {
            let (result, found) = repaired(contents);
            assert_eq!(result.unwrap_err().kind, FailureKind::Misconfigured);
            assert_eq!(found, contents);
        }
    }
}
