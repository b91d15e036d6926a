//! pgbouncer in transaction mode.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::folder::{Folder, Process};
use super::postgres::connect;
use super::{address, at_port, with_database};

const SETTINGS: &str = "pgbouncer.ini";

/// The URL of the shared pgbouncer, before the shared PostgreSQL.
///
/// # Panics
///
/// If it does not run.
pub fn shared() -> String {
    super::shared("POSTRIDER_TEST_PGBOUNCER")
}

/// A private pgbouncer. It is gone when this is dropped.
pub struct Pgbouncer {
    // Dropped first, because its end is what the process waits for.
    folder: Folder,
    process: Process,
    url: String,
    /// All but where databases are.
    settings: String,
}

impl Pgbouncer {
    const START_MAX: Duration = Duration::from_secs(30);

    /// Starts one before the server of a URL, which has a user and a password.
    pub async fn start(url: &str) -> Self {
        let config: tokio_postgres::Config = url.parse().expect("a URL of PostgreSQL");
        let user = config.get_user().expect("the URL has a user");
        let password = config.get_password().expect("the URL has a password");
        let port = super::free_port();
        let folder = Folder::new("pgbouncer");
        let password = String::from_utf8_lossy(password);
        let users = folder.write("users.txt", &format!("\"{user}\" \"{password}\"\n"));
        let settings = format!(
            "\
[pgbouncer]
admin_users = {user}
auth_file = {}
auth_type = scram-sha-256
ignore_startup_parameters = extra_float_digits
listen_addr = 127.0.0.1
listen_port = {port}
max_client_conn = 500
pool_mode = transaction
server_login_retry = 0.1
server_round_robin = 1
unix_socket_dir =
",
            users.display()
        );
        let file = folder.write(SETTINGS, &format!("{settings}{}", databases(url)));
        let mut command = folder.command(program());
        command.arg(file);
        let process = folder.spawn(command);
        let mut pgbouncer = Self { folder, process, url: at_port(url, port), settings };
        pgbouncer.wait().await;
        pgbouncer
    }

    /// Lets transactions end and holds up new ones. Clients stay connected.
    pub async fn pause(&self) {
        self.tell("PAUSE").await;
    }

    /// Goes on, from now on before the server of another URL.
    pub async fn go_on_before(&self, url: &str) {
        self.folder.write(SETTINGS, &format!("{}{}", self.settings, databases(url)));
        self.tell("RELOAD").await;
        self.tell("RESUME").await;
    }

    async fn tell(&self, command: &str) {
        let client = connect(&with_database(&self.url, "pgbouncer")).await;
        client.batch_execute(command).await.expect("an operator may say so");
    }

    /// The same database through this pgbouncer.
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn wait(&mut self) {
        let started = Instant::now();
        while TcpStream::connect(address(&self.url)).await.is_err() {
            let is_late = self.process.has_ended() || started.elapsed() > Self::START_MAX;
            assert!(!is_late, "pgbouncer does not start: {}", self.folder.log());
            sleep(Duration::from_millis(5)).await;
        }
    }
}

fn databases(url: &str) -> String {
    let (host, port) = address(url).rsplit_once(':').expect("the URL has a port");
    format!("\n[databases]\n* = host={host} port={port}\n")
}

fn program() -> PathBuf {
    let program = Path::new("/usr/sbin/pgbouncer");
    assert!(program.exists(), "no pgbouncer here: run `cargo xtask services up`");
    program.to_owned()
}
