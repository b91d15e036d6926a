//! The servers for tests: `cargo xtask services up`, `down`, `status`.
//!
//! Each has its own folder, port and settings, listens on 127.0.0.1 alone and stays up after the
//! tests. A server of the same kind that the machine has anyway is left alone.

mod kafka;
mod nats;
mod pgbouncer;
pub(crate) mod postgres;
mod rabbitmq;
mod redis;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::commands::{Failed, root, run};
use crate::service::{self, Account, Place, Service, failed, is_root};

/// In the order in which they are started.
const SERVICES: &[&dyn Service] = &[
    &postgres::DEBIAN,
    &pgbouncer::Pgbouncer,
    &postgres::OTHERS[0],
    &postgres::OTHERS[1],
    &kafka::Kafka,
    &nats::Nats,
    &rabbitmq::RabbitMq,
    &redis::Redis,
];

/// What tests, the build and the examples in other languages need besides: a program or another
/// file, and Debian's package.
const NEEDED: [(&str, &str); 10] = [
    ("/usr/include/openssl/ssl.h", "libssl-dev"),
    ("go", "golang-go"),
    ("java", "default-jdk-headless"),
    ("kcat", "kcat"),
    ("mvn", "maven"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("pkg-config", "pkg-config"),
    // The tests of alerts need this program of it, and never its server.
    ("promtool", "prometheus"),
    ("python3", "python3-venv"),
];

/// Installs what is missing and starts what does not run.
pub(crate) fn up() -> Result<(), Failed> {
    install()?;
    let servers = Servers::find()?;
    for (service, place) in &servers.places {
        service::up(*service, place)?;
        println!("{:<10} {}", service.name(), service.url());
    }
    Ok(())
}

/// Stops what runs. Data stays.
pub(crate) fn down() -> Result<(), Failed> {
    for (service, place) in Servers::find()?.places.iter().rev() {
        let did = if service::down(*service, place)? { "stopped" } else { "not running" };
        println!("{:<10} {did}", service.name());
    }
    Ok(())
}

/// Says what runs.
pub(crate) fn status() -> Result<(), Failed> {
    for (service, place) in &Servers::find()?.places {
        let state = match service::pid(*service, place) {
            None if service.is_installed() => "not running".to_owned(),
            None => "not installed".to_owned(),
            Some(pid) if service.answers(place) => format!("process {pid}, {}", service.url()),
            Some(pid) => format!("process {pid}, does not answer"),
        };
        println!("{:<10} {state}", service.name());
    }
    Ok(())
}

/// The servers' places. One command at a time has them.
struct Servers {
    places: Vec<(&'static dyn Service, Place)>,
    /// Locked as long as it is open.
    _lock: File,
}

impl Servers {
    fn find() -> Result<Self, Failed> {
        let account = Account::for_servers()?;
        let folder = folder(&account)?;
        let lock = folder.join("lock");
        let locked = File::create(&lock).and_then(|file| file.lock().map(|()| file));
        let lock = locked.map_err(|error| failed("lock", &lock, &error))?;
        let place = |service: &'static dyn Service| {
            Ok((service, Place::make(&account, folder.join(service.name()))?))
        };
        let places = SERVICES.iter().copied().map(place).collect::<Result<_, Failed>>()?;
        Ok(Self { places, _lock: lock })
    }
}

/// The folder of all servers: among what cargo builds, or where temporary files are if their
/// account cannot come to it.
fn folder(account: &Account) -> Result<PathBuf, Failed> {
    let folder = built()?;
    if account.reaches(&folder) {
        return Ok(folder);
    }
    make(std::env::temp_dir().join(format!("postrider-services-{:016x}", hash(&folder))))
}

/// A folder among what cargo builds.
fn built() -> Result<PathBuf, Failed> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    make(target.join("services"))
}

fn make(folder: PathBuf) -> Result<PathBuf, Failed> {
    let made = std::path::absolute(&folder).and_then(|folder| {
        fs::create_dir_all(&folder)?;
        Ok(folder)
    });
    made.map_err(|error| failed("make", &folder, &error))
}

/// Tells checkouts apart (FNV-1a: the same in every version of Rust).
fn hash(path: &Path) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn install() -> Result<(), Failed> {
    let missing = SERVICES.iter().filter(|service| !service.is_installed());
    let mut packages: Vec<_> = missing.map(|service| service.package()).collect();
    packages.dedup();
    let has = |needed: &str| match needed {
        // Debian has Python without the part that makes environments.
        "python3" => has_python(),
        path if path.starts_with('/') => Path::new(path).exists(),
        name => program(name).is_some(),
    };
    packages.extend(NEEDED.iter().filter(|(name, _)| !has(name)).map(|(_, package)| package));
    if packages.is_empty() {
        return Ok(());
    }
    let install = ["install", "-y", "--no-install-recommends"];
    if !is_root()? {
        let (install, packages) = (install.join(" "), packages.join(" "));
        return Err(Failed(format!(
            "the tests need what is not installed; run as root: \
             apt-get update && apt-get {install} {packages}"
        )));
    }
    println!("installing {}", packages.join(", "));
    let log = built()?.join("install.log");
    let output = File::create(&log).map_err(|error| failed("write", &log, &error))?;
    let see_log = |Failed(message)| Failed(format!("{message}; see {}", log.display()));
    run(apt_get(&output)?.arg("update")).map_err(see_log)?;
    run(apt_get(&output)?.args(install).args(packages)).map_err(see_log)
}

fn has_python() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import ensurepip, venv"]).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// Its output goes to a file: a package may start a server that keeps it open.
fn apt_get(output: &File) -> Result<Command, Failed> {
    let output = || {
        let output = output.try_clone().map_err(|error| Failed(error.to_string()))?;
        Ok::<_, Failed>(Stdio::from(output))
    };
    let mut command = Command::new("apt-get");
    command.arg("-q").env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(Stdio::null()).stdout(output()?).stderr(output()?);
    Ok(command)
}

/// A program in a folder of the search path, or where Debian keeps servers.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.find_map(|folder| Some(folder.join(name)).filter(|path| path.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_cargo_test_finds_each_server() {
        let config = fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
        let found: &[&dyn Service] = &[
            &kafka::Kafka,
            &nats::Nats,
            &pgbouncer::Pgbouncer,
            &postgres::DEBIAN,
            &rabbitmq::RabbitMq,
            &redis::Redis,
        ];
        for service in found {
            let name = service.name().to_uppercase();
            let line = format!("POSTRIDER_TEST_{name} = \"{}\"", service.url());
            assert!(config.contains(&line), "`{line}` is not in .cargo/config.toml");
        }
    }
}
