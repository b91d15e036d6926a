//! The folder of a private server, and the account that runs it.
//!
//! A janitor watches each folder: a small process that waits for its standard input to end, which
//! happens when the folder is dropped or the test's process dies, however it dies. Then it kills
//! the server, unmounts what was mounted and removes the folder.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

/// The file with the server's process number.
const PID: &str = "pid";

const JANITOR: &str = r#"
trap '' HUP INT TERM
read -r _
runs() { grep -aqsF -- "$1" "/proc/$2/cmdline"; }
pid=$(cat "$1/pid" 2>/dev/null)
if [ -n "$pid" ] && runs "$1" "$pid"; then
    kill -QUIT "$pid"
    tries=0
    while runs "$1" "$pid" && [ "$tries" -lt 100 ]; do sleep 0.05; tries=$((tries + 1)); done
    runs "$1" "$pid" && kill -KILL "$pid"
fi
for path in "$1"/*; do mountpoint -q "$path" && umount -l "$path"; done
rm -rf -- "$1"
"#;

/// The user and group that run servers, if we are root: most servers refuse to run as root.
static OTHER_ACCOUNT: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
    let id = |flag| {
        let output = Command::new("id").args([flag, "postgres"]).output();
        let output = output.expect("`id` can be run").stdout;
        let id = String::from_utf8_lossy(&output).trim().parse();
        id.unwrap_or_else(|_| panic!("no account `postgres`: run `cargo xtask services up`"))
    };
    is_root().then(|| (id("-u"), id("-g")))
});

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether folders of a limited size can be made here: it takes the right to mount.
pub fn can_limit_size() -> bool {
    static CAN: LazyLock<bool> = LazyLock::new(|| {
        is_root() && {
            let folder = Folder::new("try");
            folder.try_mount("limited", 1 << 20)
        }
    });
    *CAN
}

/// A folder that is gone when this is, with the server in it.
pub(super) struct Folder {
    path: PathBuf,
    janitor: Child,
}

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(&format!("postrider-{name}-")).tempdir();
        let path = folder.expect("a test can have a folder").keep();
        give(&path);
        let janitor = Command::new("sh")
            .args(["-c", JANITOR, "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What ends the test's process group must not end it, too.
            .process_group(0)
            .spawn();
        Self { path, janitor: janitor.expect("`sh` can be run") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file that belongs to the server and that only it can read.
    pub(super) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::write(&path, text).expect("a file can be written");
        set_mode(&path, 0o600);
        give(&path);
        path
    }

    /// Mounts a folder that takes only so many bytes.
    pub(super) fn mount(&self, name: &str, bytes: u64) {
        assert!(self.try_mount(name, bytes), "limiting the size of a folder takes root");
    }

    /// Changes how many bytes a mounted folder takes.
    pub(super) fn resize(&self, name: &str, bytes: u64) {
        let options = format!("remount,size={bytes}");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-o", &options]).arg(self.path.join(name)).status();
        assert!(mounted.is_ok_and(|status| status.success()), "{name} could not be resized");
    }

    fn try_mount(&self, name: &str, bytes: u64) -> bool {
        let path = self.path.join(name);
        fs::create_dir(&path).expect("a folder can be made");
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path).stderr(Stdio::null());
        let is_mounted = mount.status().is_ok_and(|status| status.success());
        // A folder of data must be its owner's alone.
        set_mode(&path, 0o700);
        give(&path);
        is_mounted
    }

    /// A command of the server's account, in this folder.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = match *OTHER_ACCOUNT {
            None => Command::new(program.as_ref()),
            Some((user, group)) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={user}"), format!("--regid={group}")]);
                command.args(["--clear-groups", "--"]).arg(program.as_ref());
                command
            }
        };
        command.current_dir(&self.path).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub(super) async fn run(&self, command: Command) {
        let text = format!("{command:?}");
        let output = tokio::process::Command::from(command).output().await;
        let output = output.unwrap_or_else(|error| panic!("{text}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}: {}: {said}", output.status);
    }

    /// Starts the server of this folder. Its output goes to the file `log`.
    pub(super) fn spawn(&self, mut command: Command) -> Process {
        let log = fs::File::options().create(true).append(true).open(self.path.join("log"));
        let log = log.expect("a file can be opened");
        let other = log.try_clone().expect("a file can be opened twice");
        let child = command.stdout(log).stderr(other).process_group(0).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        fs::write(self.path.join(PID), child.id().to_string()).expect("a file can be written");
        Process(child)
    }

    /// The last lines that the server has written.
    pub(super) fn log(&self) -> String {
        let log = fs::read(self.path.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.janitor.stdin.take());
        // Whatever it answers, there is nothing left to do.
        let _ = self.janitor.wait();
    }
}

/// Sets who may read and write a file or folder.
pub(super) fn set_mode(path: &Path, mode: u32) {
    let set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set.expect("permissions can be set");
}

/// Gives a file or folder to the account that runs servers.
fn give(path: &Path) {
    if let Some((user, group)) = *OTHER_ACCOUNT {
        chown(path, Some(user), Some(group)).expect("root can give a file away");
    }
}

/// A server that runs, or has ended.
pub(super) struct Process(Child);

impl Process {
    const STOP_MAX: Duration = Duration::from_secs(60);

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("a child can be waited for").is_some()
    }

    /// Sends a signal, unless it has ended already.
    pub(super) fn signal(&mut self, signal: rustix::process::Signal) {
        if !self.has_ended() {
            send(self.0.id(), signal);
        }
    }

    /// Waits until it has ended.
    pub(super) async fn end(&mut self) {
        let deadline = tokio::time::Instant::now() + Self::STOP_MAX;
        while !self.has_ended() {
            assert!(tokio::time::Instant::now() < deadline, "the server does not stop");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Process {
    /// The janitor has killed it, or is about to; this only takes it from the list of processes.
    fn drop(&mut self) {
        let _ = self.0.wait();
    }
}

/// Sends a signal to a process, which may be gone.
pub(super) fn send(pid: u32, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let sent = rustix::process::kill_process(pid.expect("a process has a number"), signal);
    match sent {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(error) => panic!("cannot send {signal:?}: {error}"),
    }
}
