//! pgbouncer in transaction mode, before PostgreSQL.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use super::postgres::{DEBIAN, PASSWORD, USER, programs};
use crate::commands::Failed;
use crate::service::{Place, Service, failed, run_silently};

const PORT: u16 = 54330;
const SETTINGS: &str = "pgbouncer.ini";
const USERS: &str = "users.txt";

pub(super) struct Pgbouncer;

impl Service for Pgbouncer {
    fn name(&self) -> &'static str {
        "pgbouncer"
    }

    fn port(&self) -> u16 {
        PORT
    }

    fn url(&self) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{PORT}/postgres")
    }

    fn package(&self) -> &'static str {
        "pgbouncer"
    }

    fn is_installed(&self) -> bool {
        super::program("pgbouncer").is_some()
    }

    fn files(&self, place: &Place) -> Vec<(&'static str, String)> {
        let at = |name: &str| place.folder.join(name).display().to_string();
        let (log, pid, users) = (at("log"), at("pid"), at(USERS));
        let postgres = DEBIAN.port;
        // Each transaction gets the connection that waits longest: whoever relies on the state
        // of a session is found out. Databases of tests come and go, so idle ones are let go soon.
        let settings = format!(
            "\
[databases]
* = host=127.0.0.1 port={postgres}

[pgbouncer]
admin_users = {USER}
auth_file = {users}
auth_type = scram-sha-256
ignore_startup_parameters = extra_float_digits
listen_addr = 127.0.0.1
listen_port = {PORT}
logfile = {log}
max_client_conn = 500
pidfile = {pid}
pool_mode = transaction
server_idle_timeout = 10
server_round_robin = 1
unix_socket_dir =
"
        );
        vec![(SETTINGS, settings), (USERS, format!("\"{USER}\" \"{PASSWORD}\"\n"))]
    }

    fn process(&self, place: &Place) -> (&'static str, PathBuf) {
        ("pgbouncer", place.folder.join(SETTINGS))
    }

    fn is_prepared(&self, _: &Place) -> bool {
        true
    }

    fn start(&self, place: &Place) -> Result<(), Failed> {
        let program =
            super::program("pgbouncer").ok_or_else(|| Failed("no pgbouncer found".to_owned()))?;
        // It does not run: its number is left from a crash, and may be another's now.
        let pid = place.folder.join("pid");
        if pid.exists() {
            fs::remove_file(&pid).map_err(|error| failed("remove", &pid, &error))?;
        }
        let mut start = place.daemon(program);
        start.args(["--daemon", "--quiet"]).arg(place.folder.join(SETTINGS));
        run_silently(&mut start)
    }

    /// A whole statement: it must reach PostgreSQL, too.
    fn answers(&self, place: &Place) -> bool {
        let Some((_, programs)) = programs() else { return false };
        let mut ask = place.command(programs.join("psql"));
        ask.args(["--no-psqlrc", "--quiet", "--command", "SELECT 1"]).arg(self.url());
        ask.stdout(Stdio::null()).stderr(Stdio::null());
        ask.status().is_ok_and(|status| status.success())
    }

    /// It keeps nothing.
    fn stop_signal(&self) -> &'static str {
        "QUIT"
    }
}
