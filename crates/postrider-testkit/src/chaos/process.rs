//! A relay that is a process of its own, so that it can be killed and stopped.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Setup, until};

/// The real binary, at work. It is killed when this is dropped.
pub struct RelayProcess {
    folder: TempDir,
    child: Child,
}

impl RelayProcess {
    /// Starts one.
    ///
    /// # Panics
    ///
    /// If the binary was not built.
    pub fn start(setup: &Setup) -> Self {
        let folder = tempfile::tempdir().expect("a test can have a folder");
        let config = folder.path().join("postrider.toml");
        fs::write(&config, setup.text()).expect("a file can be written");
        let child = spawn(&folder);
        Self { folder, child }
    }

    /// Starts it again after it was killed.
    pub fn start_again(&mut self) {
        assert!(self.has_ended(), "the process is still there");
        self.child = spawn(&self.folder);
    }

    /// Kills it at once.
    pub fn kill9(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("a child can be waited for");
    }

    /// Lets it stand still.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to stop, and waits until it has.
    pub async fn terminate(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Waits until it has ended.
    pub async fn ended(&mut self) -> ExitStatus {
        let child = tokio::sync::Mutex::new(&mut self.child);
        let has_ended = || async {
            child.lock().await.try_wait().expect("a child can be waited for").is_some()
        };
        until("the relay stops", has_ended).await;
        self.child.wait().expect("a child can be waited for")
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// What is part of the name by which the database knows it.
    pub fn name_part(&self) -> String {
        format!("-{}-", self.child.id())
    }

    /// What it has logged, over all its starts.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let sent = kill_process(pid.expect("a process has a number"), signal);
        sent.expect("a child can be sent a signal");
    }
}

impl Drop for RelayProcess {
    #[expect(clippy::print_stdout, reason = "a test shows it when it fails")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(20)..].join("\n");
            println!("relay {}:\n{last}", self.child.id());
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &TempDir) -> Child {
    let log = File::options().create(true).append(true).open(folder.path().join("log"));
    let log = log.expect("a file can be opened");
    let mut command = Command::new(binary());
    command.args(["relay", "--config", "postrider.toml"]).current_dir(folder.path());
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().expect("the relay can be started")
}

/// The binary beside the folder of this test.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a program has a path");
    let folder = test.ancestors().nth(2).expect("a test is in target/<profile>/deps");
    let binary = folder.join(format!("postrider{}", std::env::consts::EXE_SUFFIX));
    assert!(binary.exists(), "there is no binary; run `cargo build -p postrider-cli`");
    binary
}
