//! A service or a relay that is a process of its own.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Longest time for a process to stop when it is told to.
const STOP_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Of a log, so many lines are shown.
const LINES_MAX: usize = 15;

/// A process that can be killed and started again. It is killed when this is dropped.
pub(super) struct Process {
    folder: TempDir,
    program: PathBuf,
    args: Vec<String>,
    child: Child,
}

impl Process {
    /// Starts one, in a folder of its own with these files.
    pub(super) fn start(program: PathBuf, args: Vec<String>, files: &[(&str, String)]) -> Self {
        let folder = tempfile::tempdir().expect("a test can have a folder");
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("a file can be written");
        }
        let child = spawn(&folder, &program, &args);
        Self { folder, program, args, child }
    }

    /// Kills it at once.
    pub(super) fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("a child can be waited for");
    }

    /// Starts it again after it was killed.
    pub(super) fn start_again(&mut self) {
        self.child = spawn(&self.folder, &self.program, &self.args);
    }

    /// Lets it stand still.
    pub(super) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to stop.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until it has ended, in good order.
    pub(super) async fn end(&mut self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            match self.ended() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{status}:\n{}", self.last_lines())),
                None if started.elapsed() > STOP_MAX => {
                    return Err(format!("not within {STOP_MAX:?}:\n{}", self.last_lines()));
                }
                None => sleep(LOOK_EVERY).await,
            }
        }
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// What it has logged, over all its starts.
    pub(super) fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The end of that.
    pub(super) fn last_lines(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LINES_MAX)..].join("\n")
    }

    /// To a child that was not waited for, so that its number is still its own.
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let sent = kill_process(pid.expect("a process has a number"), signal);
        sent.expect("a child can be sent a signal");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &TempDir, program: &PathBuf, args: &[String]) -> Child {
    let log = File::options().create(true).append(true).open(folder.path().join("log"));
    let log = log.expect("a file can be opened");
    let mut command = Command::new(program);
    command.args(args).current_dir(folder.path()).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}
