//! PostgreSQL, with one superuser who has a password, and with what the tests need switched on.

use std::fs;
use std::path::{Path, PathBuf};

use crate::commands::Failed;
use crate::service::{Place, Service, failed, run_silently};

pub(super) const PORT: u16 = 54329;
pub(super) const USER: &str = "postrider";
pub(super) const PASSWORD: &str = "postrider";

/// Durable like a server in production. No socket in the file system: the path of a deep
/// checkout would be too long for one.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 300
max_prepared_transactions = 50
max_replication_slots = 100
max_wal_senders = 100
password_encryption = 'scram-sha-256'
wal_level = logical
";

pub(super) struct Postgres;

impl Service for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn port(&self) -> u16 {
        PORT
    }

    fn url(&self) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{PORT}/postgres")
    }

    fn package(&self) -> &'static str {
        "postgresql"
    }

    fn is_installed(&self) -> bool {
        programs().is_some()
    }

    fn files(&self, _: &Place) -> Vec<(&'static str, String)> {
        vec![
            ("password", PASSWORD.to_owned()),
            ("settings.conf", format!("{SETTINGS}port = {PORT}\n")),
        ]
    }

    fn process(&self, place: &Place) -> (&'static str, PathBuf) {
        ("postgres", data(place))
    }

    /// Data of another major version cannot be used.
    fn is_prepared(&self, place: &Place) -> bool {
        let version = fs::read_to_string(data(place).join("PG_VERSION")).unwrap_or_default();
        let is_ours = programs().is_some_and(|(major, _)| version.trim() == major.to_string());
        is_ours && place.folder.join("made").exists()
    }

    fn start(&self, place: &Place) -> Result<(), Failed> {
        let (_, programs) = programs().ok_or_else(|| Failed("no PostgreSQL found".to_owned()))?;
        if !self.is_prepared(place) {
            make_data(place, &programs)?;
        }
        // It does not run: its lock is left from a crash, and its number may be another's now.
        let lock = data(place).join("postmaster.pid");
        if lock.exists() {
            fs::remove_file(&lock).map_err(|error| failed("remove", &lock, &error))?;
        }
        let mut start = place.daemon(programs.join("pg_ctl"));
        start.args(["start", "--silent", "-D"]).arg(data(place));
        start.arg("-l").arg(place.folder.join("log"));
        run_silently(&mut start)
    }

    fn answers(&self, place: &Place) -> bool {
        let Some((_, programs)) = programs() else { return false };
        let mut ask = place.command(programs.join("pg_isready"));
        ask.args(["--quiet", "--host=127.0.0.1", &format!("--port={PORT}")]);
        ask.status().is_ok_and(|status| status.success())
    }

    /// A fast stop: sessions are ended, data is written.
    fn stop_signal(&self) -> &'static str {
        "INT"
    }
}

fn data(place: &Place) -> PathBuf {
    place.folder.join("data")
}

/// The newest version that is installed, with its programs.
pub(super) fn programs() -> Option<(u32, PathBuf)> {
    let version = |entry: fs::DirEntry| {
        let major = entry.file_name().to_str()?.parse().ok()?;
        let programs = entry.path().join("bin");
        programs.join("initdb").exists().then_some((major, programs))
    };
    fs::read_dir("/usr/lib/postgresql").ok()?.flatten().filter_map(version).max()
}

fn make_data(place: &Place, programs: &Path) -> Result<(), Failed> {
    let (data, made) = (data(place), place.folder.join("made"));
    for old in [&made, &data] {
        let removed = match fs::symlink_metadata(old) {
            Err(_) => Ok(()),
            Ok(it) if it.is_dir() => fs::remove_dir_all(old),
            Ok(_) => fs::remove_file(old),
        };
        removed.map_err(|error| failed("remove", old, &error))?;
    }
    let mut initdb = place.command(programs.join("initdb"));
    initdb.arg("-D").arg(&data).arg(format!("--username={USER}"));
    initdb.arg("--pwfile").arg(place.folder.join("password"));
    initdb.args(["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]);
    run_silently(&mut initdb)?;
    let path = data.join("postgresql.conf");
    let settings = place.folder.join("settings.conf");
    let include = format!("\ninclude '{}'\n", settings.display().to_string().replace('\'', "''"));
    let written = fs::read_to_string(&path).and_then(|text| fs::write(&path, text + &include));
    written.map_err(|error| failed("write", &path, &error))?;
    // Last: without it the data is made anew.
    fs::write(&made, "").map_err(|error| failed("write", &made, &error))
}
