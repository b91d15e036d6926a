//! A PostgreSQL server for the benchmarks alone. It is gone with this program, however that ends.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use postrider::schema::TableName;
use postrider_relay::sources;
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

use crate::Outcome;

const USER: &str = "postrider";
const START_MAX: Duration = Duration::from_secs(60);
/// What is not as the server has it by default. What makes it durable is.
const SETTINGS: [(&str, &str); 2] = [("max_wal_size", "4GB"), ("shared_buffers", "512MB")];

/// What is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalLevel {
    /// As by default.
    Replica,
    /// Also what it takes to decode it.
    Logical,
}

impl WalLevel {
    fn name(self) -> &'static str {
        match self {
            Self::Replica => "replica",
            Self::Logical => "logical",
        }
    }
}

/// A server of its own, on a port of its own.
pub(super) struct Server {
    programs: PathBuf,
    folder: TempDir,
    process: Child,
    port: u16,
    password: String,
    wal_level: WalLevel,
}

impl Server {
    /// Makes its data and starts it.
    pub(super) async fn start(wal_level: WalLevel) -> Outcome<Self> {
        let programs = programs().ok_or("no PostgreSQL found: run `cargo xtask services up`")?;
        let folder = folder()?;
        let password = format!("{:016x}", random());
        let (data, secret) = (folder.path().join("data"), folder.path().join("password"));
        fs::write(&secret, &password)?;
        own(&secret)?;
        let mut initdb = command(&programs.join("initdb"), folder.path());
        initdb.arg("-D").arg(&data).arg("--pwfile").arg(&secret);
        initdb.args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]);
        run(initdb.args(["--username", USER]))?;

        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut start = command(&programs.join("postgres"), folder.path());
        start.arg("-D").arg(&data).args(["-p", &port.to_string(), "-h", "127.0.0.1"]);
        start.args(["-c", "unix_socket_directories="]);
        for (name, value) in SETTINGS {
            start.arg("-c").arg(format!("{name}={value}"));
        }
        start.arg("-c").arg(format!("wal_level={}", wal_level.name()));
        let log = File::create(folder.path().join("log"))?;
        let process = start.stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut server = Self { programs, folder, process, port, password, wal_level };
        server.wait_until_ready().await?;
        Ok(server)
    }

    /// The URL of a database.
    pub(super) fn url(&self, database: &str) -> String {
        let Self { port, password, .. } = self;
        format!("postgres://{USER}:{password}@127.0.0.1:{port}/{database}")
    }

    /// A client of a database, served by a task of this runtime.
    pub(super) async fn connect(&self, database: &str) -> Outcome<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(database), NoTls).await?;
        // It ends with the client. What goes wrong is the client's error, too.
        tokio::spawn(connection);
        Ok(client)
    }

    /// Makes a database with the tables of an outbox.
    pub(super) async fn create(&self, database: &str) -> Outcome<Client> {
        let sql = format!("CREATE DATABASE {database} TEMPLATE template0");
        self.connect("postgres").await?.batch_execute(&sql).await?;
        sources::migrate(&self.url(database), &TableName::default()).await?;
        self.connect(database).await
    }

    /// Makes a database that is a copy of another one, to which nobody is connected.
    pub(super) async fn copy(&self, template: &str, database: &str) -> Outcome<Client> {
        let sql = format!("CREATE DATABASE {database} TEMPLATE {template} STRATEGY file_copy");
        self.connect("postgres").await?.batch_execute(&sql).await?;
        self.connect(database).await
    }

    /// Removes a database, whoever is connected.
    pub(super) async fn remove(&self, database: &str) -> Outcome<()> {
        let sql = format!("DROP DATABASE {database} WITH (FORCE)");
        Ok(self.connect("postgres").await?.batch_execute(&sql).await?)
    }

    /// `pgbench` for a database.
    pub(super) fn pgbench(&self, database: &str) -> Command {
        let mut pgbench = self.program("pgbench");
        pgbench.arg(database);
        pgbench
    }

    /// `pg_recvlogical` for a database.
    pub(super) fn pg_recvlogical(&self, database: &str) -> Command {
        let mut pg_recvlogical = self.program("pg_recvlogical");
        pg_recvlogical.arg(format!("--dbname={database}"));
        pg_recvlogical
    }

    /// A program that connects to this server, and is known to it by its own name.
    fn program(&self, name: &str) -> Command {
        let mut program = Command::new(self.programs.join(name));
        program.env("PGPASSWORD", &self.password).env("PGAPPNAME", name);
        program.args(["--host=127.0.0.1", &format!("--port={}", self.port)]);
        program.arg(format!("--username={USER}"));
        program
    }

    /// Version and settings, for the report.
    pub(super) async fn describe(&self) -> Outcome<String> {
        let client = self.connect("postgres").await?;
        let row = client.query_one("SELECT current_setting('server_version')", &[]).await?;
        let version: &str = row.get(0);
        let settings = SETTINGS.map(|(name, value)| format!("{name} = {value}"));
        let mut settings = settings.join(", ");
        if self.wal_level == WalLevel::Logical {
            settings.push_str(", wal_level = logical");
        }
        // Debian's build is named behind the number.
        let version = version.split(' ').next().unwrap_or(version);
        Ok(format!("PostgreSQL {version} on the same machine ({settings})"))
    }

    async fn wait_until_ready(&mut self) -> Outcome<()> {
        let started = Instant::now();
        loop {
            let error = match self.connect("postgres").await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if self.process.try_wait()?.is_some() || started.elapsed() > START_MAX {
                let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                return Err(format!("the server does not start: {error}; {}", log.trim()).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing of it is needed any more.
        let mut stop = command(&self.programs.join("pg_ctl"), self.folder.path());
        stop.args(["stop", "--silent", "--mode=immediate", "-D"]);
        if let Err(error) = run(stop.arg(self.folder.path().join("data"))) {
            eprintln!("{error}");
        }
        let _ = self.process.wait();
    }
}

/// The programs of the newest version that is installed.
fn programs() -> Option<PathBuf> {
    let version = |entry: fs::DirEntry| {
        let major: u32 = entry.file_name().to_str()?.parse().ok()?;
        let programs = entry.path().join("bin");
        programs.join("initdb").exists().then_some((major, programs))
    };
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    versions.filter_map(version).max().map(|(_, programs)| programs)
}

/// A folder of the account that runs servers, which may not come to where this program is.
fn folder() -> Outcome<TempDir> {
    for folder in [crate::beside_program()?, tempfile::tempdir()?] {
        own(folder.path())?;
        let mut test = command(Path::new("test"), Path::new("/"));
        if test.arg("-w").arg(folder.path()).status()?.success() {
            return Ok(folder);
        }
    }
    Err("no folder can be made for a server".into())
}

/// Whether this program runs as root, which the server refuses to do.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// A command of the account that runs servers. It is ended when this program dies.
fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.arg("--").arg(program).current_dir(folder).stdin(Stdio::null());
    command
}

/// Gives a file or folder to the account that runs servers.
fn own(path: &Path) -> Outcome<()> {
    if is_root() { run(Command::new("chown").arg("postgres:").arg(path)) } else { Ok(()) }
}

fn run(command: &mut Command) -> Outcome<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} failed ({}): {}", output.status, said.trim()).into())
}

fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}
