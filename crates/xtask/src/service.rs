//! What a server for tests is, and what is the same for all of them: whose account runs it, how
//! it is found among the processes, how it is started and stopped.
//!
//! A server belongs to the folder that stands in its command line. So the list of processes says
//! whether it runs, and nothing that a crash, a reboot or `cargo clean` leaves behind can mislead.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::commands::{Failed, text};

const START_MAX: Duration = Duration::from_secs(60);
const STOP_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(50);

/// A server that tests need.
pub(crate) trait Service {
    /// Its name, and that of its folder.
    fn name(&self) -> &'static str;

    /// Its port on 127.0.0.1.
    fn port(&self) -> u16;

    /// Where tests find it.
    fn url(&self) -> String;

    /// The Debian package that has it.
    fn package(&self) -> &'static str;

    /// Whether its programs are there.
    fn is_installed(&self) -> bool;

    /// What it reads at start: a name in its folder, and the text. A server that runs is started
    /// again when a text has changed.
    fn files(&self, place: &Place) -> Vec<(&'static str, String)>;

    /// The name of its process, and the argument in its command line that names its folder.
    fn process(&self, place: &Place) -> (&'static str, PathBuf);

    /// Whether its folder has what a running server needs.
    fn is_prepared(&self, place: &Place) -> bool;

    /// Starts it in the background, with its output in a file. Makes its data if there is none.
    fn start(&self, place: &Place) -> Result<(), Failed>;

    /// Whether it serves.
    fn answers(&self, place: &Place) -> bool;

    /// The signal that ends it at once, and properly.
    fn stop_signal(&self) -> &'static str;
}

/// The account that runs servers. Most servers refuse to run as root.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    /// Its user and group, if it is another than ours.
    other: Option<(u32, u32)>,
}

impl Account {
    /// Our own account, or that of PostgreSQL's package if we are root.
    pub(crate) fn for_servers() -> Result<Self, Failed> {
        if !is_root()? {
            return Ok(Self { other: None });
        }
        let id = |flag| {
            number(Command::new("id").args([flag, "postgres"])).map_err(|_| {
                Failed("no account `postgres` yet: run `cargo xtask services up`".to_owned())
            })
        };
        Ok(Self { other: Some((id("-u")?, id("-g")?)) })
    }

    /// A command of this account, run in a folder that it can read.
    pub(crate) fn command(&self, program: impl AsRef<Path>, folder: &Path) -> Command {
        let program = program.as_ref();
        let mut command = match self.other {
            None => Command::new(program),
            Some((user, group)) => {
                let mut command = Command::new("setpriv");
                command.args([format!("--reuid={user}"), format!("--regid={group}")]);
                command.args(["--clear-groups", "--"]).arg(program);
                command
            }
        };
        command.current_dir(folder).stdin(Stdio::null());
        command
    }

    /// Gives a file or folder to this account.
    fn own(&self, path: &Path) -> Result<(), Failed> {
        let Some((user, group)) = self.other else { return Ok(()) };
        std::os::unix::fs::chown(path, Some(user), Some(group))
            .map_err(|error| failed("give away", path, &error))
    }

    /// Whether this account can come to a folder: not below `/root`, for example.
    pub(crate) fn reaches(&self, folder: &Path) -> bool {
        let mut test = self.command("test", Path::new("/"));
        test.arg("-x").arg(folder).status().is_ok_and(|status| status.success())
    }
}

/// Where one server lives.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) account: Account,
    pub(crate) folder: PathBuf,
}

impl Place {
    /// Makes the folder of one server.
    pub(crate) fn make(account: &Account, folder: PathBuf) -> Result<Self, Failed> {
        fs::create_dir_all(&folder).map_err(|error| failed("make", &folder, &error))?;
        account.own(&folder)?;
        Ok(Self { account: account.clone(), folder })
    }

    /// A command of the server's account in the server's folder.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        self.account.command(program, &self.folder)
    }

    /// The same, for a program that stays in the background. It must not keep open what we have
    /// open, such as a pipe that somebody reads to its end.
    pub(crate) fn daemon(&self, program: impl AsRef<Path>) -> Command {
        const CLOSE_OTHERS: &str = "for fd in /proc/self/fd/*; do fd=${fd##*/}; \
             ((fd > 2)) && eval \"exec $fd>&-\"; done; exec \"$@\"";
        let mut command = self.command("bash");
        command.args(["-c", CLOSE_OTHERS, "bash"]).arg(program.as_ref());
        command
    }
}

/// Starts a program that does not go to the background by itself. Its output goes to the file
/// `log` in the server's folder.
pub(crate) fn start_in_background(
    place: &Place,
    program: impl AsRef<Path>,
    with: impl FnOnce(&mut Command),
) -> Result<(), Failed> {
    const BACKGROUND: &str = "\"$@\" >>log 2>&1 </dev/null & disown";
    let mut start = place.daemon("setsid");
    start.args(["bash", "-c", BACKGROUND, "bash"]).arg(program.as_ref());
    with(&mut start);
    start.stdout(Stdio::null()).stderr(Stdio::null());
    run_silently(&mut start)
}

/// Runs a command; what it complains of is part of the error.
pub(crate) fn run_silently(command: &mut Command) -> Result<(), Failed> {
    let output = command
        .output()
        .map_err(|error| Failed(format!("cannot run `{}`: {error}", text(command))))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failed(format!("`{}` failed ({}): {}", text(command), output.status, said.trim())))
}

/// Starts a server unless it runs, and waits until it serves.
pub(crate) fn up(service: &dyn Service, place: &Place) -> Result<(), Failed> {
    let mut running = pid(service, place);
    let files = service.files(place);
    let is_written = |(name, text): &(&str, String)| {
        fs::read_to_string(place.folder.join(name)).is_ok_and(|old| old == *text)
    };
    let is_current = service.is_prepared(place) && files.iter().all(is_written);
    if running.is_some() && !is_current {
        down(service, place)?;
        running = None;
    }
    let (name, port) = (service.name(), service.port());
    if running.is_none() {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Err(Failed(format!(
                "port {port} of {name} is in use: stop what has it, perhaps another checkout's \
                 servers (`cargo xtask services down` there)"
            )));
        }
        for (name, text) in &files {
            let path = place.folder.join(name);
            fs::write(&path, text).map_err(|error| failed("write", &path, &error))?;
            place.account.own(&path)?;
        }
        service.start(place)?;
    }
    if wait(START_MAX, || service.answers(place)) {
        return Ok(());
    }
    let folder = place.folder.display();
    Err(Failed(format!("{name} does not answer at port {port}; see its log in {folder}")))
}

/// Stops a server if it runs; answers whether it did.
pub(crate) fn down(service: &dyn Service, place: &Place) -> Result<bool, Failed> {
    let Some(pid) = pid(service, place) else { return Ok(false) };
    // A server that was started in the background of a shell may ignore some signals.
    for signal in [service.stop_signal(), "TERM"] {
        // The shell's own `kill`: the program of that name is not everywhere.
        let mut kill = Command::new("sh");
        kill.args(["-c", &format!("kill -{signal} {pid}")]);
        run_silently(&mut kill)?;
        if wait(STOP_MAX, || self::pid(service, place) != Some(pid)) {
            return Ok(true);
        }
    }
    Err(Failed(format!("{} (process {pid}) does not stop", service.name())))
}

/// The process of a server, if it runs.
pub(crate) fn pid(service: &dyn Service, place: &Place) -> Option<u32> {
    let (process, argument) = service.process(place);
    let is_it = |pid: &u32| {
        let of = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let argument = argument.as_os_str().as_encoded_bytes();
        of("comm").trim_ascii_end() == process.as_bytes()
            && of("cmdline").split(|byte| *byte == 0).any(|one| one == argument)
    };
    let processes = fs::read_dir("/proc").ok()?;
    let mut pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_it)
}

/// Whether we are root.
pub(crate) fn is_root() -> Result<bool, Failed> {
    Ok(number(Command::new("id").arg("-u"))? == 0)
}

/// An error about a file or folder.
pub(crate) fn failed(what: &str, path: &Path, error: &std::io::Error) -> Failed {
    Failed(format!("cannot {what} {}: {error}", path.display()))
}

fn number(command: &mut Command) -> Result<u32, Failed> {
    let output = command
        .output()
        .map_err(|error| Failed(format!("cannot run `{}`: {error}", text(command))))?;
    let number = String::from_utf8_lossy(&output.stdout).trim().parse();
    number.map_err(|_| Failed(format!("`{}` did not answer a number", text(command))))
}

fn wait(max: Duration, is_done: impl Fn() -> bool) -> bool {
    let started = Instant::now();
    while !is_done() {
        if started.elapsed() > max {
            return false;
        }
        std::thread::sleep(POLL);
    }
    true
}
