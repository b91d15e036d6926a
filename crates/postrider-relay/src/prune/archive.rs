//! The archive: what is removed from an outbox, as compressed JSON Lines.
//!
//! A file has the rows of one batch. It is written under a temporary name and gets its own,
//! `<table>-<time>-<number of its first row>.jsonl.gz`, when all of it is on disk; so a file of
//! that name is always whole. A crash can leave a file that ends in `.partial`: nothing was
//! removed on account of it, and the next one that is written removes it. While one is being
//! written, it is locked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::Serialize;

use crate::private_files::{self, is_shared_link};
use crate::sinks::json_lines::Payload;
use crate::source::{SourceError, SourceErrorKind};

/// Most rows of one file.
pub const FILE_ROWS_MAX: usize = 50_000;
/// Most bytes of payloads of one file, apart from the last row's.
pub const FILE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Most bytes of payloads that are held at a time, apart from the last row's.
pub const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

const SUFFIX: &str = ".jsonl.gz";
const PARTIAL_SUFFIX: &str = ".partial";
/// Longest time between making a file and locking it.
const MAKING_MAX: Duration = Duration::from_secs(60);

/// A row that is removed, as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchivedRow {
    /// Its number.
    pub seq: i64,
    /// The event id.
    pub id: String,
    /// The type of the aggregate.
    pub aggregate_type: String,
    /// The id of the aggregate.
    pub aggregate_id: String,
    /// The type of the event.
    pub event_type: String,
    /// The version of that type, if it is a number.
    pub event_version: Option<i64>,
    /// The topic that the event names, if any.
    pub topic: Option<String>,
    /// The headers, which should be a JSON object.
    pub headers: String,
    /// When the fact happened.
    pub occurred_at: String,
    /// The media type of the payload.
    pub content_type: String,
    /// The payload.
    pub payload: Vec<u8>,
    /// When it was written.
    pub created_at: Option<String>,
    /// When it was published, if that was written.
    pub published_at: Option<String>,
}

/// A line is the object that the file sink writes, and when the row was written and published.
#[derive(Serialize)]
struct Line<'r> {
    id: &'r str,
    aggregate_type: &'r str,
    aggregate_id: &'r str,
    event_type: &'r str,
    event_version: Option<i64>,
    topic: Option<&'r str>,
    key: &'r str,
    headers: Payload<'r>,
    occurred_at: &'r str,
    payload: Payload<'r>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_encoding: Option<&'static str>,
    content_type: &'r str,
    created_at: Option<&'r str>,
    published_at: Option<&'r str>,
}

impl<'r> Line<'r> {
    fn of(row: &'r ArchivedRow) -> Self {
        let payload = Payload::of(&row.payload, &row.content_type);
        Self {
            id: &row.id,
            aggregate_type: &row.aggregate_type,
            aggregate_id: &row.aggregate_id,
            event_type: &row.event_type,
            event_version: row.event_version,
            topic: row.topic.as_deref(),
            key: &row.aggregate_id,
            headers: Payload::of(row.headers.as_bytes(), "application/json"),
            occurred_at: &row.occurred_at,
            payload_encoding: payload.encoding(),
            payload,
            content_type: &row.content_type,
            created_at: row.created_at.as_deref(),
            published_at: row.published_at.as_deref(),
        }
    }
}

/// A file that is being written. Dropping it before its end removes it.
#[derive(Debug)]
pub struct ArchiveFile {
    folder: PathBuf,
    /// The beginning of its name.
    name: String,
    partial: PathBuf,
    /// `None` once it is finished.
    encoder: Option<GzEncoder<BufWriter<File>>>,
    first_seq: Option<i64>,
    rows: usize,
    bytes: usize,
}

impl ArchiveFile {
    /// Begins a file of the rows of a table.
    ///
    /// # Errors
    ///
    /// `Misconfigured` if the folder is not there or cannot be written to.
    pub fn create(folder: &Path, table: &str) -> Result<Self, SourceError> {
        // A table may have any name; a file may not.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let table: String = table.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        let name = format!("{table}-{}", Timestamp::now().strftime("%Y%m%dT%H%M%S%6fZ"));
        let partial = folder.join(format!("{name}-{}{PARTIAL_SUFFIX}", std::process::id()));
        let file = private_files::open(&partial, OpenOptions::new().write(true).create_new(true))
            .map_err(|error| failure("write to", folder, error))?;
        // Without locks, as on some networks, what a crash left stays.
        if file.try_lock().is_ok() {
            remove_left_over(folder, &table, &partial);
        }
        Ok(Self {
            folder: folder.to_owned(),
            name,
            partial,
            encoder: Some(GzEncoder::new(BufWriter::new(file), Compression::default())),
            first_seq: None,
            rows: 0,
            bytes: 0,
        })
    }

    /// Writes rows, each as a line.
    pub fn write(&mut self, rows: &[ArchivedRow]) -> Result<(), SourceError> {
        let encoder = self.encoder.as_mut().expect("a file that is finished is not at hand");
        let mut lines = Vec::new();
        for row in rows {
            self.first_seq.get_or_insert(row.seq);
            self.rows += 1;
            self.bytes += row.payload.len();
            serde_json::to_writer(&mut lines, &Line::of(row))
                .expect("texts are written to memory, which cannot fail");
            lines.push(b'\n');
            if lines.len() >= PAGE_BYTES_MAX {
                encoder
                    .write_all(&lines)
                    .map_err(|error| failure("write to", &self.folder, error))?;
                lines.clear();
            }
        }
        encoder.write_all(&lines).map_err(|error| failure("write to", &self.folder, error))
    }

    /// Whether it has as many rows as a file may have.
    pub fn is_full(&self) -> bool {
        self.rows >= FILE_ROWS_MAX || self.bytes >= FILE_BYTES_MAX
    }

    /// Whether nothing was written to it.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Gives the file its name, once all of it is on disk. Answers where it is.
    pub fn finish(mut self) -> Result<PathBuf, SourceError> {
        let folder = self.folder.clone();
        self.publish().map_err(|error| failure("finish a file in", &folder, error))
    }

    fn publish(&mut self) -> io::Result<PathBuf> {
        let encoder = self.encoder.take().expect("a file is finished once");
        let file = encoder.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        let first = self.first_seq.unwrap_or(0);
        let path = self.folder.join(format!("{}-{first}{SUFFIX}", self.name));
        fs::rename(&self.partial, &path)?;
        // Only this makes the new name durable (`man 2 fsync`).
        File::open(&self.folder)?.sync_all()?;
        Ok(path)
    }
}

impl Drop for ArchiveFile {
    fn drop(&mut self) {
        // Nothing depends on it; under its final name it is no longer here.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Removes what crashes left of a table: nobody holds its lock any more.
fn remove_left_over(folder: &Path, table: &str, own: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rest = name.strip_prefix(table).and_then(|rest| rest.strip_prefix('-'));
        // Another table's name may begin with this one's: a time follows.
        let is_of_table = rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        if !is_of_table || !name.ends_with(PARTIAL_SUFFIX) || path == own {
            continue;
        }
        // It may be in the making just now: another process locks it right after.
        let age = fs::metadata(&path).and_then(|about| about.modified());
        let age = age.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        let is_free = || File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if age.is_some_and(|age| age >= MAKING_MAX) && is_free() {
            let _ = fs::remove_file(&path);
        }
    }
}

fn failure(doing: &str, folder: &Path, error: io::Error) -> SourceError {
    let shown = folder.display();
    let (kind, hint) = match error.kind() {
        _ if is_shared_link(&error) => {
            (SourceErrorKind::Misconfigured, "name the folder that it leads to".to_owned())
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            (SourceErrorKind::Misconfigured, format!("create the folder: mkdir -p {shown}"))
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (SourceErrorKind::Misconfigured, "let the relay's user write to the folder".to_owned())
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            (SourceErrorKind::Unavailable, "free some space; nothing was removed".to_owned())
        }
        _ => (SourceErrorKind::Unavailable, "nothing was removed; try again".to_owned()),
    };
    SourceError::new(kind, format!("cannot {doing} the archive {shown}"))
        .with_hint(hint)
        .with_source(error)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn row(seq: i64) -> ArchivedRow {
        ArchivedRow {
            seq,
            id: format!("id-{seq}"),
            aggregate_type: "Order".into(),
            aggregate_id: "42".into(),
            event_type: "OrderPaid".into(),
            event_version: Some(1),
            headers: r#"{"tenant":"acme"}"#.into(),
            occurred_at: "2026-01-31T23:59:59Z".into(),
            content_type: "application/json".into(),
            payload: br#"{"a": 1}"#.to_vec(),
            created_at: Some("2026-02-01T00:00:00Z".into()),
            ..ArchivedRow::default()
        }
    }

    fn read(path: &Path) -> String {
        let mut text = String::new();
        GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        text
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_has_its_name_and_its_lines_when_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ArchiveFile::create(folder.path(), "my out/box").unwrap();
        file.write(&[row(7)]).unwrap();
        file.write(&[ArchivedRow {
            topic: Some("orders".into()),
            headers: "no JSON".into(),
            payload: b"\xff".to_vec(),
            published_at: Some("2026-02-01T00:00:01Z".into()),
            ..row(8)
        }])
        .unwrap();
        assert!(names(folder.path())[0].ends_with(".partial"));
        let path = file.finish().unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        assert_eq!(names(folder.path()), [name]);
        assert!(name.starts_with("my_out_box-2") && name.ends_with("Z-7.jsonl.gz"), "{name}");
        let expected = concat!(
            r#"{"id":"id-7","aggregate_type":"Order","aggregate_id":"42","event_type":"OrderPaid","#,
            r#""event_version":1,"topic":null,"key":"42","headers":{"tenant":"acme"},"#,
            r#""occurred_at":"2026-01-31T23:59:59Z","payload":{"a": 1},"#,
            r#""content_type":"application/json","created_at":"2026-02-01T00:00:00Z","#,
            r#""published_at":null}"#,
            "\n",
            r#"{"id":"id-8","aggregate_type":"Order","aggregate_id":"42","event_type":"OrderPaid","#,
            r#""event_version":1,"topic":"orders","key":"42","headers":"no JSON","#,
            r#""occurred_at":"2026-01-31T23:59:59Z","payload":"/w==","payload_encoding":"base64","#,
            r#""content_type":"application/json","created_at":"2026-02-01T00:00:00Z","#,
            r#""published_at":"2026-02-01T00:00:01Z"}"#,
            "\n",
        );
        assert_eq!(read(&path), expected);
    }

    #[cfg(unix)]
    #[test]
    fn an_archive_is_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = ArchiveFile::create(folder.path(), "outbox").unwrap().finish().unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_given_up_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ArchiveFile::create(folder.path(), "outbox").unwrap();
        file.write(&[row(1)]).unwrap();
        assert!(!file.is_empty() && !file.is_full());
        drop(file);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn what_a_crash_left_goes_with_the_next_file() {
        let folder = tempfile::tempdir().unwrap();
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        let leave = |name: &str| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(hour_ago).unwrap();
            file
        };
        leave("outbox-20260101T000000000000Z-7.partial");
        leave("outbox-late-20260101T000000000000Z-7.partial");
        leave("outbox-20260101T000000000000Z-1.jsonl.gz");
        let locked = leave("outbox-20260101T000000000000Z-8.partial");
        locked.try_lock().unwrap();
        let young = "outbox-20260101T000000000000Z-9.partial";
        File::create(folder.path().join(young)).unwrap();
        drop(ArchiveFile::create(folder.path(), "outbox").unwrap());
        let mut left = names(folder.path());
        left.sort();
        assert_eq!(
            left,
            [
                "outbox-20260101T000000000000Z-1.jsonl.gz",
                "outbox-20260101T000000000000Z-8.partial",
                young,
                "outbox-late-20260101T000000000000Z-7.partial",
            ]
        );
    }

    #[test]
    fn a_folder_that_is_not_there_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let error = ArchiveFile::create(&folder.path().join("none"), "outbox").unwrap_err();
        assert_eq!(error.kind, SourceErrorKind::Misconfigured);
        assert!(error.details().contains("mkdir -p"), "{}", error.details());
    }

    #[test]
    fn a_folder_that_goes_away_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let mut file = ArchiveFile::create(&inner, "outbox").unwrap();
        file.write(&[row(1)]).unwrap();
        fs::remove_dir_all(&inner).unwrap();
        assert!(file.finish().is_err());
    }
}
