//! pgbouncer in transaction mode.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::folder::{Folder, Process};
use super::{address, at_port};

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
}

impl Pgbouncer {
    const START_MAX: Duration = Duration::from_secs(30);

    /// Starts one before the server of a URL, which has a user and a password.
    pub async fn start(url: &str) -> Self {
        let config: tokio_postgres::Config = url.parse().expect("a URL of PostgreSQL");
        let user = config.get_user().expect("the URL has a user");
        let password = config.get_password().expect("the URL has a password");
        let (host, upstream_port) = address(url).rsplit_once(':').expect("the URL has a port");
        let port = super::postgres::free_port();
        let folder = Folder::new("pgbouncer");
        let password = String::from_utf8_lossy(password);
        let users = folder.write("users.txt", &format!("\"{user}\" \"{password}\"\n"));
        let settings = format!(
            "\
[databases]
* = host={host} port={upstream_port}

[pgbouncer]
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
        let settings = folder.write("pgbouncer.ini", &settings);
        let mut command = folder.command(program());
        command.arg(settings);
        let process = folder.spawn(command);
        let mut pgbouncer = Self { folder, process, url: at_port(url, port) };
        pgbouncer.wait().await;
        pgbouncer
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

fn program() -> PathBuf {
    let program = Path::new("/usr/sbin/pgbouncer");
    assert!(program.exists(), "no pgbouncer here: run `cargo xtask services up`");
    program.to_owned()
}
