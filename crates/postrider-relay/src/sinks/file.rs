//! Appends one line of JSON per message to a file.
//!
//! `Ok` means that the lines are on disk: each call ends with one `fdatasync`. A reader of the
//! file never finds a torn line for long: what a failed call has written is cut off again, and a
//! line that a crash has torn is cut off when the file is next opened (see `repair.rs`). The file
//! is locked, so that two relays cannot write into each other's lines, and grows on over any
//! number of restarts. A file that was moved away (rotated) or removed is opened anew, so that no
//! line goes where nobody would find it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use self::appender::Appender;
use self::failure::failure;
use self::opening::{is_replaced, open};
use super::json_lines::lines;
use crate::sink::{FailureKind, Message, Sink, SinkCapabilities, SinkError};

mod appender;
mod failure;
mod medium;
mod opening;
mod options;
mod readback;
mod repair;
mod scratch;

pub use options::Options;

/// Appends to one file.
#[derive(Debug)]
pub struct FileSink {
    options: Options,
    // Taken before the write is handed to a thread, so that a call which is given up while it
    // waits writes nothing, and calls write in the order in which they came.
    appender: Arc<Mutex<Appender<File>>>,
}

impl FileSink {
    /// Does something to the file, on a thread that may wait for the disk.
    async fn with_appender(
        &self,
        act: impl FnOnce(&mut Appender<File>, &Path) -> Result<(), SinkError> + Send + 'static,
    ) -> Result<(), SinkError> {
        let path = self.options.path.clone();
        let mut appender = Arc::clone(&self.appender).lock_owned().await;
        let acted = tokio::task::spawn_blocking(move || {
            let replaced = is_replaced(appender.medium(), &path);
            if replaced.map_err(|error| failure("look at", &path, &error))? {
                *appender = open(&path)?;
            }
            act(&mut appender, &path)
        });
        acted.await.map_err(|_| shutting_down())?
    }
}

#[async_trait]
impl Sink for FileSink {
    fn capabilities(&self) -> SinkCapabilities {
        SinkCapabilities {
            name: "file",
            ordered_by_key: true,
            deduplicates: false,
            event_bytes_max: usize::MAX,
            batch_events_max: 4096,
            batch_bytes_max: 8 * 1024 * 1024,
            calls_max: 1,
        }
    }

    async fn check(&self) -> Result<Vec<String>, SinkError> {
        self.with_appender(|_, _| Ok(())).await.map(|()| Vec::new())
    }

    async fn publish(&self, messages: &[Message]) -> Vec<Result<(), SinkError>> {
        let lines = lines(messages);
        let append = move |appender: &mut Appender<File>, path: &Path| {
            appender.append(&lines).map_err(|error| failure("write to", path, &error))
        };
        vec![self.with_appender(append).await; messages.len()]
    }

    async fn close(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

fn shutting_down() -> SinkError {
    SinkError::new(FailureKind::Unavailable, "the relay is shutting down")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use postrider::Event;

    use super::*;
    use crate::formats::Encoding;

    fn messages(ids: &[&str]) -> Vec<Message> {
        let message = |id: &&str| {
            let event = Event::builder("Order", *id, "OrderPaid").build().unwrap();
            Encoding::default().encode(Arc::new(event)).unwrap()
        };
        ids.iter().map(message).collect()
    }

    fn keys(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        let key = |line: &str| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            value["key"].as_str().unwrap().to_owned()
        };
        text.lines().map(key).collect()
    }

    async fn connect(path: &Path) -> Result<FileSink, SinkError> {
        Options { path: path.to_owned() }.connect().await
    }

    #[tokio::test]
    async fn a_restarted_relay_goes_on_in_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        for ids in [["1", "2"], ["3", "4"]] {
            let sink = connect(&path).await.unwrap();
            sink.check().await.unwrap();
            assert_eq!(sink.publish(&messages(&ids)).await, [Ok(()), Ok(())]);
            Box::new(sink).close().await.unwrap();
        }
        assert_eq!(keys(&path), ["1", "2", "3", "4"]);
    }

    #[tokio::test]
    async fn a_line_torn_by_a_crash_is_cut_off_and_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let whole = lines(&messages(&["1", "2"]));
        fs::write(&path, &whole[..whole.len() - 10]).unwrap();
        let sink = connect(&path).await.unwrap();
        assert_eq!(keys(&path), ["1"]);
        sink.publish(&messages(&["2"])).await.remove(0).unwrap();
        assert_eq!(keys(&path), ["1", "2"]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_file_that_was_moved_or_removed_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (path, old) = (folder.path().join("events.jsonl"), folder.path().join("old.jsonl"));
        let sink = connect(&path).await.unwrap();
        sink.publish(&messages(&["1"])).await.remove(0).unwrap();
        fs::rename(&path, &old).unwrap();
        sink.publish(&messages(&["2"])).await.remove(0).unwrap();
        assert_eq!((keys(&old), keys(&path)), (vec!["1".to_owned()], vec!["2".to_owned()]));
        fs::remove_file(&path).unwrap();
        sink.publish(&messages(&["3"])).await.remove(0).unwrap();
        assert_eq!(keys(&path), ["3"]);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_file_is_for_its_owner_alone_and_one_that_was_there_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        drop(connect(&path).await.unwrap());
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        drop(connect(&path).await.unwrap());
        assert_eq!(mode(), 0o640);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn links_in_a_folder_that_others_can_write_are_not_followed() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (private, shared) = (folder.path().join("private"), folder.path().join("shared"));
        for (path, mode) in [(&private, 0o700), (&shared, 0o777)] {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let target = private.join("target.jsonl");
        symlink(&target, shared.join("file.jsonl")).unwrap();
        symlink(&private, shared.join("folder")).unwrap();
        for path in [shared.join("file.jsonl"), shared.join("folder/target.jsonl")] {
            let error = connect(&path).await.unwrap_err();
            assert_eq!(error.kind, FailureKind::Misconfigured, "{error}");
            assert!(error.message.contains("is a symbolic link"), "{error}");
            assert!(!target.exists(), "nothing was made behind the link");
        }
        // Where nobody else can write, a link is the operator's own.
        symlink(&target, private.join("link.jsonl")).unwrap();
        connect(&private.join("link.jsonl")).await.unwrap();
        assert!(target.exists());
        connect(&shared.join("own.jsonl")).await.unwrap();
    }

    #[tokio::test]
    async fn a_second_relay_is_kept_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let first = connect(&path).await.unwrap();
        let error = connect(&path).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Unavailable);
        assert!(error.message.contains("another process"), "{}", error.message);
        drop(first);
        connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn what_cannot_be_opened_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let cases = [
            (folder.path().join("no/events.jsonl"), "mkdir -p"),
            (folder.path().to_owned(), "is a directory"),
        ];
        for (path, expected) in cases {
            let error = connect(&path).await.unwrap_err();
            assert_eq!(error.kind, FailureKind::Misconfigured);
            assert!(error.message.contains(expected), "{}", error.message);
        }
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_full_disk_is_an_outage() {
        let sink = connect(Path::new("/dev/full")).await.unwrap();
        for answer in sink.publish(&messages(&["1", "2"])).await {
            let error = answer.unwrap_err();
            assert_eq!(error.kind, FailureKind::Unavailable);
            assert!(error.message.contains("free some space"), "{}", error.message);
        }
    }
}
