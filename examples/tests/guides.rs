//! Runs the shell commands of the guides, as they are written, against the real binary, and
//! compares what they print with what the guides show.
//!
//! All `sh` blocks of a guide run in one shell, in a directory of its own. Each line of the
//! `text` block that follows one must be printed by it, in that order; ids and times are taken
//! for equal. The binary is the one that was built last: `cargo build -p postrider-cli`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use libtest_mimic::{Arguments, Failed, Trial};

const GUIDES: &[&str] = &[
    "auditing",
    "dead-letters",
    "doctor",
    "getting-started",
    "kafka",
    "measuring",
    "nats",
    "operating",
    "postgresql",
    "pruning",
    "rabbitmq",
    "redis",
    "running-in-production",
    "webhooks",
];
/// What the guides listen on, each of them; here it is a port that is free.
const PORT: &str = "9000";
/// The database that the guides name; here it is a fresh one in the server for tests.
const DATABASE: &str = "postgres://postgres@localhost/shop";
/// The broker that the guide of Kafka names, and its topic; here they are the server for tests and
/// a fresh one.
const BROKER: &str = "localhost:9092";
const TOPIC: [&str; 2] = ["--topic orders", "topic = \"orders\""];
/// Where the guide of RabbitMQ has its server; here it is a port that is free.
const RABBITMQ: &str = "localhost:5672";
const MARK: &str = "@@@ end of a block @@@";

fn main() -> ExitCode {
    let missing = missing();
    let trial = |name: &str| {
        let guide = name.to_owned();
        match &missing {
            Some(reason) => Trial::test(format!("{name} (not run: {reason})"), || Ok(()))
                .with_ignored_flag(true),
            None => Trial::test(name, move || run(&guide)),
        }
    };
    let trials = GUIDES.iter().map(|name| trial(name)).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// What the guides need and this machine lacks.
fn missing() -> Option<String> {
    if !binary().exists() {
        return Some("there is no binary; cargo build -p postrider-cli".to_owned());
    }
    for (program, argument) in
        [("bash", "--version"), ("python3", "--version"), ("timeout", "--version")]
    {
        let found = Command::new(program).arg(argument).stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            return Some(format!("there is no {program}"));
        }
    }
    None
}

/// The binary beside the folder of this test.
fn binary() -> PathBuf {
    let test = env::current_exe().expect("a program has a path");
    let folder = test.ancestors().nth(2).expect("a test is in target/<profile>/deps");
    folder.join(format!("postrider{}", env::consts::EXE_SUFFIX))
}

/// A command of a guide and what it prints.
#[derive(Default)]
struct Step {
    line: usize,
    script: String,
    shown: String,
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut language = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (language, line.strip_prefix("```")) {
            (None, Some("sh")) => {
                steps.push(Step { line: number + 1, ..Step::default() });
                language = Some("sh");
            }
            (None, Some(other)) => language = Some(if other == "text" { "text" } else { "other" }),
            (Some(_), Some(_)) => language = None,
            (Some("sh"), None) => push_line(&mut steps, |step| &mut step.script, line),
            (Some("text"), None) => push_line(&mut steps, |step| &mut step.shown, line),
            (_, None) => {}
        }
    }
    steps
}

fn push_line(steps: &mut [Step], part: fn(&mut Step) -> &mut String, line: &str) {
    if let Some(step) = steps.last_mut() {
        part(step).push_str(line);
        part(step).push('\n');
    }
}

fn run(guide: &str) -> Result<(), Failed> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guides");
    let text = fs::read_to_string(docs.join(format!("{guide}.md")))?;
    let ports = free_ports()?;
    let text = text.replace(PORT, &ports[0]);
    let (text, stand_in) = contained(guide, text, &ports)?;
    let database = text.contains(DATABASE).then(Database::create).transpose()?;
    let steps = steps(&match &database {
        Some(database) => text.replace(DATABASE, &database.url()),
        None => text,
    });
    let mut script = format!(
        "set -euo pipefail\nfinish() {{ :; }}\n{stand_in}\n\
         trap '{{ finish; kill $(jobs -p); wait; }} > finish.log 2>&1 || true' EXIT\n"
    );
    for step in &steps {
        script.push_str(&format!("{}echo '{MARK}'\n", step.script));
    }

    let folder = tempfile::tempdir()?;
    let path = env::var_os("PATH").unwrap_or_default();
    let binaries = binary().parent().map(Path::to_owned);
    // Debian has servers there, which is not in everybody's search path.
    let servers = PathBuf::from("/usr/sbin");
    let path = binaries.into_iter().chain(env::split_paths(&path)).chain([servers]);
    let path = env::join_paths(path)?;
    let output = Command::new("timeout")
        .args(["60", "bash", "-c", &format!("exec 2>&1\n{script}")])
        .current_dir(folder.path())
        .env("PATH", path)
        .stdin(Stdio::null())
        .output()?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(format!("{} after:\n{printed}", output.status).into());
    }
    for (step, printed) in steps.iter().zip(printed.split(MARK)) {
        compare(step, printed).map_err(|line| {
            format!(
                "docs/guides/{guide}.md:{}: not printed: {line}\nprinted:\n{printed}",
                step.line
            )
        })?;
    }
    Ok(())
}

/// Ports that nobody listens on.
fn free_ports() -> Result<Vec<String>, Failed> {
    let listen = |_| TcpListener::bind("127.0.0.1:0");
    let listeners = (0..4).map(listen).collect::<Result<Vec<_>, _>>()?;
    let port = |listener: &TcpListener| Ok(listener.local_addr()?.port().to_string());
    listeners.iter().map(port).collect()
}

/// A guide whose server comes from Docker: its text with another server, and the commands that
/// stand in for Docker.
fn contained(guide: &str, text: String, ports: &[String]) -> Result<(String, String), Failed> {
    match guide {
        "kafka" => {
            let server = env::var("POSTRIDER_TEST_KAFKA")?;
            let server = server.trim_start_matches("kafka://");
            let topic = format!("guide-{}", std::process::id());
            let mut text = text.replace(BROKER, server);
            for place in TOPIC {
                text = text.replace(place, &place.replace("orders", &topic));
            }
            let target = binary().ancestors().nth(2).map(Path::to_owned).unwrap_or_default();
            let libraries = target.join("services/kafka-libraries");
            let variables =
                format!("SERVER={server} TOPIC={topic} LIBRARIES='{}'", libraries.display());
            Ok((text, format!("{variables}\n{}", include_str!("guides/kafka.sh"))))
        }
        "rabbitmq" => {
            let names = ["PORT", "PORT_MANAGEMENT", "PORT_EPMD", "PORT_NODE"];
            let assign = |(name, port): (&str, &String)| format!("{name}={port}\n");
            let variables: String = names.into_iter().zip(ports).map(assign).collect();
            let text = text.replace(RABBITMQ, &format!("localhost:{}", ports[0]));
            Ok((text, variables + include_str!("guides/rabbitmq.sh")))
        }
        _ => Ok((text, String::new())),
    }
}

/// A database in the server that `cargo xtask services up` has started.
struct Database {
    server: String,
    name: String,
}

impl Database {
    fn create() -> Result<Self, Failed> {
        let server = env::var("POSTRIDER_TEST_POSTGRES")?;
        let database = Self { server, name: format!("guide_{}", std::process::id()) };
        database.run(&format!("CREATE DATABASE {}", database.name))?;
        Ok(database)
    }

    fn url(&self) -> String {
        let (server, _) = self.server.rsplit_once('/').expect("the URL names a database");
        format!("{server}/{}", self.name)
    }

    /// Runs a statement in the server's own database.
    fn run(&self, sql: &str) -> Result<(), Failed> {
        let psql = ["--no-psqlrc", "--quiet", "--command", sql, &self.server];
        let output = Command::new("psql").args(psql).stdin(Stdio::null()).output()?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // What is left of it is in nobody's way.
        let _ = self.run(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// Finds each line that is shown, or says which one is missing. One that ends in `…` is the start
/// of a line.
fn compare(step: &Step, printed: &str) -> Result<(), String> {
    let mut printed = printed.lines().map(|line| without_chance(line.trim()));
    for line in step.shown.lines().filter(|line| !line.trim().is_empty()) {
        let wanted = without_chance(line.trim());
        let is_wanted = |line: String| match wanted.strip_suffix('…') {
            Some(start) => line.starts_with(start.trim_end()),
            None => line == wanted,
        };
        if !printed.any(is_wanted) {
            return Err(line.to_owned());
        }
    }
    Ok(())
}

/// A line with its ids, times, ages and column widths made equal.
fn without_chance(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let (known, length) = chance(rest).unwrap_or(("", 0));
        if length > 0 {
            plain.push_str(known);
            rest = &rest[length..];
        } else {
            plain.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    let ages = |word| if is_age(word) { "AGE" } else { word };
    plain.split_whitespace().map(ages).collect::<Vec<_>>().join(" ")
}

/// Whether a word is a number of seconds.
fn is_age(word: &str) -> bool {
    let digits = word.strip_suffix('s').unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// What stands for an id or a time at the start of a text, and its length.
fn chance(text: &str) -> Option<(&'static str, usize)> {
    let like = |pattern: &str| {
        text.len() >= pattern.len()
            && text.bytes().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
                b'0' => byte.is_ascii_digit(),
                b'x' => byte.is_ascii_hexdigit(),
                other => byte == other,
            })
    };
    if like("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
        return Some(("ID", 36));
    }
    if like("0000-00-00T00:00:00.") {
        return text.find('Z').map(|end| ("TIME", end + 1));
    }
    None
}
