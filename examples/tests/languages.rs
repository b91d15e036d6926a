//! Runs the examples in other languages, each against a database of its own on a real server,
//! relays what they wrote, and checks that exactly the committed events arrive.
//!
//! What an example needs is installed once, below `target/examples`, and again when its project
//! file has changed. A language that this machine lacks is a failure: `cargo xtask services up`
//! installs it. The binary is the one that was built last: `cargo build -p postrider-cli`.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, io};

use serde_json::{Value, json};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

/// What each example prints.
const PRINTED: &str = "\
order placed, with its event
payment declined, nothing published
order paid, with its event
3 orders placed, with one call for their events
consumed: first, applied
consumed: duplicate, nothing done
refused: the event was not written: event_type is empty
";

const INSTALL_SECONDS: &str = "900";
const RUN_SECONDS: &str = "600";

/// An example, and how it is run: the commands are those of the guide.
struct Example {
    language: &'static str,
    /// What says which dependencies there are.
    project: &'static [&'static str],
    program: &'static str,
    tools: &'static [&'static str],
    /// What comes before both commands on an older machine.
    setup: &'static str,
    install: &'static str,
    run: &'static str,
}

const PYTHON: Example = Example {
    language: "python",
    project: &["requirements.txt"],
    program: "orders.py",
    tools: &["python3"],
    setup: "",
    install: "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt",
    run: ".venv/bin/python orders.py",
};

const TYPESCRIPT: Example = Example {
    language: "typescript",
    project: &["package.json", "package-lock.json", "tsconfig.json"],
    program: "orders.ts",
    tools: &["node", "npm"],
    setup: "",
    install: "npm ci",
    run: "npm start --silent",
};

const GO: Example = Example {
    language: "go",
    project: &["go.mod", "go.sum"],
    program: "orders.go",
    tools: &["go"],
    setup: NEWER_GO,
    install: "go mod download",
    run: "go run .",
};

/// From 1.21 on, Go gets the version that go.mod names by itself. Debian 12 has 1.19.
const NEWER_GO: &str = r#"
if go version | grep -qE 'go1\.(19|20)[. ]'; then
    version=v0.0.1-go$(sed -n 's/^go //p' go.mod).$(cd / && go env GOOS)-$(cd / && go env GOARCH)
    (cd / && go mod download "golang.org/toolchain@$version")
    newer=$(cd / && go env GOMODCACHE)/golang.org/toolchain@$version
    chmod -R u+x "$newer/bin" "$newer/pkg/tool"
    export PATH="$newer/bin:$PATH"
fi
"#;

const JAVA: Example = Example {
    language: "java",
    project: &["pom.xml"],
    program: "Orders.java",
    tools: &["java", "mvn"],
    setup: "",
    install: "mvn --batch-mode dependency:copy-dependencies",
    run: "java -cp 'target/lib/*' Orders.java",
};

#[tokio::test]
async fn python_writes_and_consumes() {
    check(&PYTHON).await;
}

#[tokio::test]
async fn typescript_writes_and_consumes() {
    check(&TYPESCRIPT).await;
}

#[tokio::test]
async fn go_writes_and_consumes() {
    check(&GO).await;
}

#[tokio::test]
async fn java_writes_and_consumes() {
    check(&JAVA).await;
}

/// The guide's code is that of the examples, and its commands are those that run here.
#[test]
fn the_guide_shows_what_runs() {
    let guide = root().join("docs/guides/other-languages.md");
    let guide = fs::read_to_string(guide).expect("the guide can be read");
    for (example, fence) in [(PYTHON, "python"), (TYPESCRIPT, "ts"), (GO, "go"), (JAVA, "java")] {
        let program = fs::read_to_string(example.folder().join(example.program))
            .expect("an example can be read");
        let program = without_margin(&program);
        let blocks: Vec<_> = guide.split(&format!("```{fence}\n")).skip(1).collect();
        assert!(!blocks.is_empty(), "the guide has no {fence}");
        for block in blocks {
            let block = block.split("```").next().expect("a split has a first part");
            for part in block.split("\n\n").map(without_margin) {
                assert!(program.contains(&part), "{} has no:\n{part}", example.program);
            }
        }
        for command in [example.install, example.run] {
            assert!(guide.contains(command), "the guide has no `{command}`");
        }
    }
}

/// A text with the white space at the start of its lines removed.
fn without_margin(text: &str) -> String {
    text.trim().lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

/// Runs an example on a new database, and relays its events.
async fn check(example: &Example) {
    let place = example.install();
    let database = Database::make(&format!("example_{}", example.language)).await;
    postrider(&["migrate", "--from", &database.url]);

    let mut program = example.command(&place, RUN_SECONDS, example.run);
    let output = output(program.env("DATABASE_URL", &database.url));
    assert_eq!(String::from_utf8_lossy(&output.stdout), PRINTED);

    let orders = "SELECT id, state, cents FROM orders ORDER BY id";
    assert_eq!(
        database.rows(orders).await,
        ["1 paid 999", "2 placed 100", "3 placed 200", "4 placed 300"]
    );
    assert_eq!(database.rows("SELECT source, cents FROM revenue").await, ["orders 999"]);
    assert_eq!(database.rows("SELECT consumer FROM inbox").await, ["revenue"]);

    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("events.jsonl");
    let sink = format!("file://{}", file.display());
    postrider(&["relay", "--from", &database.url, "--to", &sink, "--drain"]);
    let lines = fs::read_to_string(&file).expect("the relay made the file");
    check_events(&lines);
    database.remove().await;
}

/// The committed events are there, once each, those of one order in their order.
fn check_events(lines: &str) {
    let mut events: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line of the file is JSON"))
        .collect();
    let ids: HashSet<_> = events.iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(ids.len(), events.len(), "{lines}");

    // There is no order between different orders; this sort keeps that of one order.
    events.sort_by_key(|event| event["aggregate_id"].to_string());
    let event = |order: u32, event_type: &str, cents: u32, headers: Value| {
        json!({
            "aggregate_type": "Order",
            "aggregate_id": order.to_string(),
            "event_type": event_type,
            "event_version": 1,
            "headers": headers,
            "payload": { "order_id": order, "cents": cents },
        })
    };
    let wanted = [
        event(1, "OrderPlaced", 999, json!({ "tenant": "acme" })),
        event(1, "OrderPaid", 999, json!({ "tenant": "acme" })),
        event(2, "OrderPlaced", 100, json!({})),
        event(3, "OrderPlaced", 200, json!({})),
        event(4, "OrderPlaced", 300, json!({})),
    ];
    assert_eq!(events.len(), wanted.len(), "{lines}");
    for (event, wanted) in events.iter().zip(&wanted) {
        for (name, value) in wanted.as_object().expect("an event is an object") {
            assert_eq!(&event[name], value, "{name} of {event}");
        }
    }
}

impl Example {
    fn folder(&self) -> PathBuf {
        root().join("examples").join(self.language)
    }

    /// Copies the example to its place and installs what it needs there.
    fn install(&self) -> Place {
        for tool in self.tools {
            // `go --version` is an error, but it says enough.
            let found = Command::new(tool).arg("--version").output();
            assert!(found.is_ok(), "there is no {tool}: cargo xtask services up");
        }
        let folder = built().join("examples").join(self.language);
        fs::create_dir_all(&folder).expect("a folder can be made");
        let lock = File::create(folder.join("lock")).expect("a file can be made");
        lock.lock().expect("a file can be locked");
        let place = Place { folder, _lock: lock };

        let mut project = String::new();
        for name in self.project.iter().chain([&self.program]) {
            let text = fs::read_to_string(self.folder().join(name)).expect("it can be read");
            fs::write(place.folder.join(name), &text).expect("it can be written");
            if *name != self.program {
                project.push_str(&text);
            }
        }
        let stamp = place.folder.join("installed");
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == project) {
            return place;
        }
        match fs::remove_file(&stamp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{error}"),
            _ => {}
        }
        output(&mut self.command(&place, INSTALL_SECONDS, self.install));
        fs::write(&stamp, project).expect("it can be written");
        place
    }

    fn command(&self, place: &Place, seconds: &str, script: &str) -> Command {
        let script = format!("set -eu\n{}{script}", self.setup);
        let mut command = Command::new("timeout");
        command.args([seconds, "bash", "-c", &script]).current_dir(&place.folder);
        // That folder belongs to our repository, the example does not.
        command.envs([("GOTOOLCHAIN", "auto"), ("GOFLAGS", "-buildvcs=false")]);
        command.stdin(Stdio::null());
        command
    }
}

/// Where an example is installed. One test at a time has it.
struct Place {
    folder: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

/// A database of its own on the server for tests.
struct Database {
    name: String,
    url: String,
}

impl Database {
    /// Makes it anew: a test that failed leaves one behind.
    async fn make(name: &str) -> Self {
        let server = server();
        let (host, _) = server.rsplit_once('/').expect("the URL has a database");
        let database = Self { name: name.to_owned(), url: format!("{host}/{name}") };
        database.remove().await;
        let make = format!("CREATE DATABASE {name}");
        client(&server).await.batch_execute(&make).await.expect("a database can be made");
        database
    }

    async fn remove(&self) {
        let remove = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        client(&server()).await.batch_execute(&remove).await.expect("a database can be removed");
    }

    /// The rows of a query, each with a space between its columns.
    async fn rows(&self, query: &str) -> Vec<String> {
        let answers = client(&self.url).await.simple_query(query).await.expect("a query works");
        let row = |answer: &SimpleQueryMessage| match answer {
            SimpleQueryMessage::Row(row) => {
                let columns = (0..row.len()).map(|index| row.get(index).unwrap_or("NULL"));
                Some(columns.collect::<Vec<_>>().join(" "))
            }
            _ => None,
        };
        answers.iter().filter_map(row).collect()
    }
}

fn server() -> String {
    env::var("POSTRIDER_TEST_POSTGRES")
        .expect("POSTRIDER_TEST_POSTGRES is set by .cargo/config.toml: run this with cargo")
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .unwrap_or_else(|error| panic!("{url}: {error}: cargo xtask services up"));
    tokio::spawn(connection);
    client
}

/// Runs the binary.
fn postrider(arguments: &[&str]) {
    let binary = binary();
    assert!(binary.exists(), "there is no binary: cargo build -p postrider-cli");
    output(Command::new("timeout").arg(RUN_SECONDS).arg(binary).args(arguments));
}

/// Runs a command that has to succeed.
fn output(command: &mut Command) -> Output {
    let output = command.output().expect("a command can be started");
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, said.join("\n"));
    output
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The binary beside the folder of this test.
fn binary() -> PathBuf {
    let test = env::current_exe().expect("a program has a path");
    let folder = test.ancestors().nth(2).expect("a test is in target/<profile>/deps");
    folder.join(format!("postrider{}", env::consts::EXE_SUFFIX))
}

/// Where cargo builds.
fn built() -> PathBuf {
    let binary = binary();
    binary.ancestors().nth(2).expect("the binary is in target/<profile>").to_owned()
}
