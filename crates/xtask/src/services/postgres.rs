//! PostgreSQL, with one superuser who has a password, and with what the tests need switched on:
//! Debian's version for all tests, and others for some of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::Failed;
use crate::service::{Place, Service, failed, run_silently};

pub(super) const USER: &str = "postrider";
pub(super) const PASSWORD: &str = "postrider";

/// Durable like a server in production. No socket in the file system: the path of a deep
/// checkout would be too long for one.
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 600
max_prepared_transactions = 50
max_replication_slots = 200
max_wal_senders = 200
max_wal_size = '4GB'
password_encryption = 'scram-sha-256'
wal_level = logical
";

/// A server, and where its programs come from.
pub(crate) struct Postgres {
    name: &'static str,
    pub(super) port: u16,
    /// In Maven's central repository, and its major version. Without it, it is Debian's.
    built: Option<(&'static str, u32)>,
}

/// The one that all tests use.
pub(crate) const DEBIAN: Postgres = Postgres { name: "postgres", port: 54329, built: None };
/// The oldest and the newest one that are supported.
pub(crate) const OTHERS: [Postgres; 2] = [
    Postgres { name: "postgres14", port: 54331, built: Some(("14.20.0", 14)) },
    Postgres { name: "postgres18", port: 54332, built: Some(("18.1.0", 18)) },
];

impl Postgres {
    /// The major version that is there, with its programs.
    fn programs(&self, place: &Place) -> Option<(u32, PathBuf)> {
        let Some((_, major)) = self.built else { return programs() };
        let programs = fetched(place).join("bin");
        programs.join("initdb").exists().then_some((major, programs))
    }
}

impl Service for Postgres {
    fn name(&self) -> &'static str {
        self.name
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn url(&self) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/postgres", self.port)
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
            ("settings.conf", format!("{SETTINGS}port = {}\n", self.port)),
        ]
    }

    fn process(&self, place: &Place) -> (&'static str, PathBuf) {
        ("postgres", data(place))
    }

    /// Data of another major version cannot be used.
    fn is_prepared(&self, place: &Place) -> bool {
        let version = fs::read_to_string(data(place).join("PG_VERSION")).unwrap_or_default();
        let is_ours = |(major, _): (u32, PathBuf)| version.trim() == major.to_string();
        self.programs(place).is_some_and(is_ours) && place.folder.join("made").exists()
    }

    fn start(&self, place: &Place) -> Result<(), Failed> {
        if let (None, Some((version, _))) = (self.programs(place), self.built) {
            fetch(place, version)?;
        }
        let programs = self.programs(place);
        let (_, programs) = programs.ok_or_else(|| Failed("no PostgreSQL found".to_owned()))?;
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

    /// Only Debian's have the program that asks.
    fn answers(&self, place: &Place) -> bool {
        let Some((_, programs)) = programs() else { return false };
        let mut ask = place.command(programs.join("pg_isready"));
        ask.args(["--quiet", "--host=127.0.0.1", &format!("--port={}", self.port)]);
        ask.status().is_ok_and(|status| status.success())
    }

    /// A fast stop: sessions are ended, data is written.
    fn stop_signal(&self) -> &'static str {
        "INT"
    }
}

/// Where the programs are that were fetched.
fn fetched(place: &Place) -> PathBuf {
    place.folder.join("programs")
}

/// Fetches the programs of a version.
fn fetch(place: &Place, version: &str) -> Result<(), Failed> {
    let (maven, debian) = match std::env::consts::ARCH {
        "aarch64" => ("arm64v8", "arm_64"),
        _ => ("amd64", "x86_64"),
    };
    let name = format!("embedded-postgres-binaries-linux-{maven}");
    let mut copy = Command::new("mvn");
    copy.args(["--batch-mode", "--quiet", "dependency:copy", "-Dmdep.useBaseVersion=true"]);
    copy.arg(format!("-Dartifact=io.zonky.test.postgres:{name}:{version}:jar"));
    copy.arg(format!("-DoutputDirectory={}", place.folder.display()));
    copy.current_dir(&place.folder);
    run_silently(&mut copy)?;
    let (archive, packed) =
        (place.folder.join(format!("{name}-{version}.jar")), place.folder.join("packed"));
    for (module, from, to) in [
        ("zipfile", &archive, &packed),
        ("tarfile", &packed.join(format!("postgres-linux-{debian}.txz")), &fetched(place)),
    ] {
        let mut unpack = Command::new("python3");
        unpack.args(["-m", module, "-e"]).args([from, to]);
        run_silently(&mut unpack)?;
    }
    for left in [&archive, &packed] {
        let removed = if left.is_dir() { fs::remove_dir_all(left) } else { fs::remove_file(left) };
        removed.map_err(|error| failed("remove", left, &error))?;
    }
    Ok(())
}

fn data(place: &Place) -> PathBuf {
    place.folder.join("data")
}

/// The newest version that Debian has installed, with its programs.
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
