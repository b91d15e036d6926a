//! A private server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use super::tls::{self, Tls};
use super::{connect, programs};
use crate::servers::certificates::Certificates;
use crate::servers::folder::{Folder, Process, send};
use crate::servers::free_port;

const USER: &str = "postrider";
const PASSWORD: &str = "postrider";
const START_MAX: Duration = Duration::from_secs(60);

/// Without `fsync`, because what is crashed here is the server, not the machine.
const SETTINGS: &str = "
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = off
max_prepared_transactions = 50
wal_level = logical
";

/// How a private server is to be.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Its environment, for example `LD_PRELOAD`.
    pub environment: Vec<(String, String)>,
    /// What may become full.
    pub limit: Option<Limit>,
    /// The cluster has an identifier that no other one has. Making it takes longer.
    pub own_identifier: bool,
    /// Where its programs are, if they are not those of the newest version that is installed.
    pub programs: Option<PathBuf>,
    /// Lines of `postgresql.conf`.
    pub settings: Vec<String>,
    /// How clients prove themselves over TLS. Without it there is no TLS.
    pub tls: Option<Tls>,
}

impl Options {
    fn programs(&self) -> PathBuf {
        self.programs.clone().unwrap_or_else(programs)
    }
}

/// A part of the server that has only so many bytes. Only root can have that.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Tables and indexes; the log is elsewhere.
    Data(u64),
    /// The write-ahead log.
    Wal(u64),
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Sessions are ended, data is written.
    Fast,
    /// As in a crash; the next start recovers.
    Immediate,
}

/// A server of its own, on a port of its own. Dropped, it is killed and removed.
pub struct Server {
    // Dropped first, because its end is what the process waits for.
    pub(super) folder: Folder,
    process: Option<Process>,
    port: u16,
    options: Options,
    certificates: Option<Certificates>,
}

impl Server {
    /// Starts one.
    pub async fn start(options: Options) -> Self {
        let folder = Folder::new("postgres");
        match options.limit {
            Some(Limit::Data(bytes)) => folder.mount("data", bytes),
            Some(Limit::Wal(bytes)) => folder.mount("pg_wal", bytes),
            None => {}
        }
        if options.own_identifier || options.programs.is_some() {
            make(&folder, &options.programs()).await;
        } else {
            let template = template().await.path().join("data");
            let mut copy = folder.command("cp");
            // Not the folder, which may be mounted, but what is in it.
            copy.args(["-a", "-T"]).arg(template).arg("data");
            folder.run(copy).await;
        }
        if options.limit.is_some() {
            let mut link = folder.command("sh");
            link.args(["-c", "mkdir -p pg_wal && cp -a data/pg_wal/. pg_wal && rm -r data/pg_wal"]);
            folder.run(link).await;
            let target = folder.path().join("pg_wal");
            let linked = std::os::unix::fs::symlink(target, folder.path().join("data/pg_wal"));
            linked.expect("a link can be made");
        }
        Self::start_in(folder, options).await
    }

    /// Starts one whose data is there.
    pub(super) async fn start_in(folder: Folder, options: Options) -> Self {
        let certificates = options.tls.map(|_| Certificates::make(&folder));
        let mut server = Self { folder, process: None, port: free_port(), options, certificates };
        server.configure();
        server.must_start().await;
        server
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// The URL of a database.
    pub fn url(&self, database: &str) -> String {
        let port = self.port;
        match self.options.tls {
            None => format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/{database}"),
            Some(Tls::Password) => {
                format!("postgres://{USER}:{PASSWORD}@localhost:{port}/{database}")
            }
            Some(Tls::Certificate) => format!("postgres://{USER}@localhost:{port}/{database}"),
        }
    }

    /// Connects to the database `postgres`, without TLS.
    pub async fn connect(&self) -> Client {
        connect(&self.url("postgres")).await
    }

    /// The certificates of a server with TLS.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("the server has TLS")
    }

    /// The number of the main process.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server runs").id()
    }

    /// Stops it.
    pub async fn stop(&mut self, how: Stop) {
        let Some(process) = &mut self.process else { return };
        process.signal(match how {
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        });
        process.end().await;
        self.process = None;
    }

    /// Kills all its processes at once.
    pub async fn kill9(&mut self) {
        let Some(process) = &mut self.process else { return };
        // A stopped one makes no new children while they are counted.
        process.signal(Signal::STOP);
        let children = children(process.id());
        process.signal(Signal::KILL);
        for child in children {
            send(child, Signal::KILL);
        }
        process.end().await;
        self.process = None;
        // The system may give its number to another process, or not let go of it for a while.
        fs::remove_file(self.data().join("postmaster.pid")).expect("a file can be removed");
    }

    /// Kills one of its sessions, as the system does when it is short of memory: the server ends all
    /// the others, recovers and goes on, without a new start of its main process.
    pub async fn crash(&self) {
        const LOST: &str = "SELECT pg_stat_get_bgwriter_stat_reset_time()::text, pg_backend_pid()";
        let client = self.connect().await;
        let victim = client.query_one(LOST, &[]).await.expect("the server answers");
        let (before, pid): (String, i32) = (victim.get(0), victim.get(1));
        send(pid.cast_unsigned(), Signal::KILL);
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < START_MAX, "no recovery: {}", self.folder.log());
            sleep(Duration::from_millis(20)).await;
            let Ok((client, connection)) =
                tokio_postgres::connect(&self.url("postgres"), tokio_postgres::NoTls).await
            else {
                continue;
            };
            tokio::spawn(connection);
            let answer = client.query_one(LOST, &[]).await;
            if answer.is_ok_and(|row| row.get::<_, String>(0) != before) {
                return;
            }
        }
    }

    /// Starts it again, after it was stopped or has died. The error is what its log says.
    pub async fn start_again(&mut self) -> Result<(), String> {
        if self.process.as_mut().is_some_and(|process| !process.has_ended()) {
            return Ok(());
        }
        let mut command = self.folder.command(self.options.programs().join("postgres"));
        command.arg("-D").arg(self.data());
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        let data = self.data();
        let process = self.process.insert(self.folder.spawn(command));
        let started = Instant::now();
        while !is_ready(&data, process.id()) {
            if process.has_ended() {
                return Err(self.folder.log());
            }
            assert!(started.elapsed() < START_MAX, "no start: {}", self.folder.log());
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Stops it and starts it again.
    pub async fn restart(&mut self, how: Stop) {
        self.stop(how).await;
        self.must_start().await;
    }

    /// Changes the bytes that the limited part has.
    pub fn resize(&self, bytes: u64) {
        let name = match self.options.limit {
            Some(Limit::Data(_)) => "data",
            Some(Limit::Wal(_)) => "pg_wal",
            None => panic!("nothing of this server is limited"),
        };
        self.folder.resize(name, bytes);
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(super) async fn must_start(&mut self) {
        if let Err(log) = self.start_again().await {
            panic!("the server does not start: {log}");
        }
    }

    /// Adds to its settings; of two lines the last one counts.
    fn configure(&self) {
        let tls = self.certificates.as_ref().map(tls::settings).unwrap_or_default();
        let lines = self.options.settings.join("\n");
        let path = self.data().join("postgresql.conf");
        let settings = fs::read_to_string(&path).expect("a server has settings");
        let settings = format!("{settings}{SETTINGS}port = {}\n{tls}{lines}\n", self.port);
        fs::write(&path, settings).expect("settings can be written");
        if let Some(tls) = self.options.tls {
            let path = self.data().join("pg_hba.conf");
            fs::write(path, tls.rules()).expect("settings can be written");
        }
    }
}

/// What is copied for each server, because copying is faster than making. Made once; its janitor
/// removes it when the process ends.
async fn template() -> &'static Folder {
    static TEMPLATE: OnceCell<Folder> = OnceCell::const_new();
    TEMPLATE
        .get_or_init(|| async {
            let folder = Folder::new("template");
            make(&folder, &programs()).await;
            folder
        })
        .await
}

/// Makes the data of a server.
async fn make(folder: &Folder, programs: &Path) {
    folder.write("password", PASSWORD);
    let mut initdb = folder.command(programs.join("initdb"));
    initdb.args(["--pgdata=data", "--pwfile=password", "--no-sync", "--encoding=UTF8"]);
    initdb.args(["--locale=C.UTF-8", "--auth=scram-sha-256"]);
    initdb.arg(format!("--username={USER}"));
    folder.run(initdb).await;
}

/// Whether the server serves. It says so where `pg_ctl` reads it, too: in the eighth line of its
/// lock file.
fn is_ready(data: &Path, pid: u32) -> bool {
    let lock = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
    let mut lines = lock.lines();
    let is_its_own = lines.next().is_some_and(|line| line == pid.to_string());
    is_its_own && lines.nth(6).is_some_and(|state| state.trim() == "ready")
}

fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        // Its parent is the second word after its name, which is in brackets.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let words = stat.rsplit_once(')').map_or("", |(_, words)| words);
        words.split_whitespace().nth(1).is_some_and(|word| word == parent.to_string())
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(is_child).collect()
}
