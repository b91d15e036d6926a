//! The child processes: the shop and the relay, both of this same binary. None of them outlives
//! its handle.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::schedule::Request;
use super::shop::{BROKER_VARIABLE, Reply, WAY_VARIABLE};
use super::{DemoError, Way};

/// The relay's configuration, in the directory of the round.
pub(crate) const CONFIG: &str = "postrider.toml";
/// Longest time for one answer of the shop, and for its end.
const SHOP_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time for a killed process to be gone.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);

/// A child process; it is killed when this is dropped.
struct Process {
    name: &'static str,
    child: Child,
}

impl Process {
    /// Starts this binary with other arguments. Its log goes to a file.
    fn start(
        name: &'static str,
        dir: &Path,
        args: &[&str],
        variables: &[(&str, &str)],
        pipes: fn() -> Stdio,
    ) -> Result<Self, DemoError> {
        let log =
            OpenOptions::new().create(true).append(true).open(dir.join(format!("{name}.log")))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(args).current_dir(dir).kill_on_drop(true);
        command.stdin(pipes()).stdout(pipes()).stderr(log);
        // What the user has set for relays of their own is not meant for this one.
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("POSTRIDER_") {
                command.env_remove(variable);
            }
        }
        let child = command.envs(variables.iter().copied()).spawn()?;
        Ok(Self { name, child })
    }

    /// Kills it, as `kill -9` does, and waits until it is gone.
    async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    async fn wait(mut self, longest: Duration) -> Result<(), DemoError> {
        let name = self.name;
        let status: ExitStatus = timeout(longest, self.child.wait())
            .await
            .map_err(|_| format!("the {name} did not end within {longest:?}"))??;
        match status.success() {
            true => Ok(()),
            false => Err(format!("the {name} failed: {status}").into()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It must be gone before its directory is removed. It may have ended by itself.
        let _ = self.child.start_kill();
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < DEATH_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The shop while it runs.
pub(crate) struct ShopProcess {
    process: Process,
    requests: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl ShopProcess {
    /// Starts the shop.
    pub(crate) fn start(dir: &Path, way: Way, broker: &str) -> Result<Self, DemoError> {
        let variables = [(WAY_VARIABLE, way.as_str()), (BROKER_VARIABLE, broker)];
        let mut process = Process::start("shop", dir, &["demo"], &variables, Stdio::piped)?;
        let pipes = process.child.stdin.take().zip(process.child.stdout.take());
        let (requests, stdout) = pipes.ok_or("the shop has no pipes")?;
        Ok(Self { process, requests, replies: BufReader::new(stdout).lines() })
    }

    /// Makes a request and waits for the answer.
    pub(crate) async fn ask(&mut self, request: &Request) -> Result<Reply, DemoError> {
        let line = serde_json::to_string(request)? + "\n";
        self.requests.write_all(line.as_bytes()).await?;
        let reply = timeout(SHOP_TIMEOUT, self.replies.next_line()).await;
        let reply = reply.map_err(|_| "the shop does not answer")??;
        let reply = reply.ok_or("the shop ended by itself")?;
        Ok(serde_json::from_str(&reply)?)
    }

    /// Kills the shop.
    pub(crate) async fn kill(self) -> io::Result<()> {
        self.process.kill().await
    }

    /// Lets the shop finish what it has to do.
    pub(crate) async fn finish(self) -> Result<(), DemoError> {
        drop(self.requests);
        self.process.wait(SHOP_TIMEOUT).await
    }
}

/// The relay while it runs.
pub(crate) struct RelayProcess {
    process: Process,
}

impl RelayProcess {
    /// Starts the relay.
    pub(crate) fn start(dir: &Path) -> Result<Self, DemoError> {
        Self::start_with(dir, &["relay", "--config", CONFIG])
    }

    /// Starts the relay to publish what is pending, and end then.
    pub(crate) fn start_drain(dir: &Path) -> Result<Self, DemoError> {
        Self::start_with(dir, &["relay", "--config", CONFIG, "--drain"])
    }

    fn start_with(dir: &Path, args: &[&str]) -> Result<Self, DemoError> {
        let process = Process::start("relay", dir, args, &[], Stdio::null)?;
        Ok(Self { process })
    }

    /// Kills the relay.
    pub(crate) async fn kill(self) -> io::Result<()> {
        self.process.kill().await
    }

    /// Waits until the relay has ended.
    pub(crate) async fn wait(self, longest: Duration) -> Result<(), DemoError> {
        self.process.wait(longest).await
    }
}
