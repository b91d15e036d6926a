//! A directory with a database, and the real binary run in it.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "it is all test code")]

pub(crate) mod http;
#[cfg(feature = "otlp")]
pub(crate) mod otlp;
pub(crate) mod postgres;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};
use tempfile::TempDir;

/// Longest time for anything that a test waits for.
const DEADLINE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A directory of a test's own, in which commands run.
pub(crate) struct Fixture {
    dir: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// A fixture with a migrated database `app.db`.
    pub(crate) fn migrated() -> Self {
        let fixture = Self::new();
        fixture.run(&["migrate", "--from", "sqlite://app.db"]).assert_code(0);
        fixture
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn database(&self) -> Connection {
        let database = Connection::open(self.path("app.db")).unwrap();
        database.busy_timeout(DEADLINE).unwrap();
        database
    }

    /// Inserts an event about order `order` and gives back its id.
    pub(crate) fn insert(&self, order: &str, event_type: &str, headers: &str) -> String {
        let database = self.database();
        let count: i64 = database
            .query_one("SELECT coalesce(max(seq), 0) FROM outbox", [], |row| row.get(0))
            .unwrap();
        let id = format!("01900000-0000-7000-8000-{:012}", count + 1);
        database
            .execute(
                "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload, headers)
                 VALUES (?1, 'Order', ?2, ?3, ?4, ?5)",
                params![id, order, event_type, br#"{"total": 1.50}"#, headers],
            )
            .unwrap();
        id
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::new(args, self.command(args).output().unwrap())
    }

    /// Starts a command that goes on by itself.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::new(
            self.command(args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap(),
        )
    }

    /// The lines of a file, as JSON.
    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        self.read(name).lines().map(str::to_owned).collect()
    }
}

/// A command that has ended.
pub(crate) struct Ran {
    args: String,
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn new(args: &[&str], output: Output) -> Self {
        Self {
            args: args.join(" "),
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn assert_code(self, code: i32) -> Self {
        let Self { args, stdout, stderr, .. } = &self;
        assert_eq!(self.code, code, "postrider {args}\n{stdout}\n{stderr}");
        self
    }

    /// Checks that stderr has these texts.
    #[track_caller]
    pub(crate) fn assert_talk(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stderr.contains(text), "{text:?} is not in:\n{}", self.stderr);
        }
        self
    }
}

/// A command that is running; it is ended when the test is over.
pub(crate) struct Running {
    child: Child,
    stderr: Arc<Mutex<String>>,
}

impl Running {
    pub(crate) fn new(mut child: Child) -> Self {
        let stderr = Arc::new(Mutex::new(String::new()));
        let (pipe, collected) = (child.stderr.take().unwrap(), stderr.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                collected.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { child, stderr }
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits until the log has a text.
    #[track_caller]
    pub(crate) fn wait_for(&self, text: &str) {
        wait_until(text, || self.stderr().contains(text));
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Waits for the end.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the process ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again and again until a condition holds; fails after the deadline.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "waited too long: {what}");
        std::thread::park_timeout(LOOK_EVERY);
    }
}

/// The text of a file beside the tests.
pub(crate) fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}
