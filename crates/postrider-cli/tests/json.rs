//! `--json` on every command: data is one JSON value on stdout, or one for each line where the help
//! says so, and an error is one JSON object on stderr.

mod support;

use serde_json::Value;
use support::postgres::Postgres;
use support::{Fixture, Ran};

/// What a command prints.
#[derive(Clone, Copy, PartialEq)]
enum Prints {
    /// One value.
    Value,
    /// A value for each event.
    Lines,
    /// One value, whatever happens: a report, whose exit code says what it found.
    Report,
}

/// A command: how it does its work, and how it cannot.
struct Case {
    command: &'static str,
    works: Vec<String>,
    fails: Vec<String>,
    prints: Prints,
}

impl Case {
    fn new(command: &'static str, works: &str, fails: &str) -> Self {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        Self { command, works: words(works), fails: words(fails), prints: Prints::Value }
    }

    fn prints(self, prints: Prints) -> Self {
        Self { prints, ..self }
    }

    fn run(&self, fixture: &Fixture, args: &[String]) -> Ran {
        let mut all: Vec<&str> = self.command.split(' ').collect();
        all.extend(args.iter().map(String::as_str));
        all.push("--json");
        fixture.run(&all)
    }
}

/// In the order in which they are run.
fn cases(id: &str, files: &str, postgres: &str) -> Vec<Case> {
    let gone = "--from sqlite://gone.db";
    let from = "--from sqlite://app.db";
    let case = |command, works: &str, fails: &str| Case::new(command, works, fails);
    let of_outbox = |command, more: &str| {
        Case::new(command, &format!("{more} {from}"), &format!("{more} {gone}"))
    };
    let of_slot = |command, more: &str| {
        Case::new(command, &format!("{more} --from {postgres}"), &format!("{more} {gone}"))
    };
    vec![
        #[cfg(feature = "demo")]
        case("demo", "--orders 20", "--orders 0"),
        case("init", "--path made.toml", "--path made.toml"),
        case("migrate", from, "--from sqlite://no/such/folder.db"),
        case("migrate roles", "--from postgres://shop@localhost/shop", from),
        of_outbox("migrate status", ""),
        of_outbox("migrate verify", ""),
        of_outbox("relay", &format!("--drain --to file://{files}/out.jsonl")),
        of_outbox("status", ""),
        of_outbox("doctor", "").prints(Prints::Report),
        of_outbox("check lag", "--warn 1000d --crit 2000d").prints(Prints::Report),
        of_outbox("check dlq", "--warn 100 --crit 200").prints(Prints::Report),
        of_slot("check slot", "--warn 1GiB --crit 8GiB").prints(Prints::Report),
        of_outbox("dlq list", ""),
        of_outbox("dlq show", id),
        of_outbox("dlq retry", &format!("{id} --dry-run")),
        of_outbox("dlq discard", &format!("{id} --dry-run")),
        of_outbox("dlq export", "").prints(Prints::Lines),
        of_outbox("tail", "").prints(Prints::Lines),
        of_outbox("show", id),
        of_outbox("keys blocked", ""),
        of_outbox("keys release", "Order/1"),
        of_outbox("pause", ""),
        of_outbox("resume", ""),
        of_outbox("replay", &format!("--type OrderPaid --yes --to file://{files}/again.jsonl")),
        of_outbox("reconcile", ""),
        of_outbox("verify", &format!("--to file://{files}/out.jsonl")),
        of_outbox("prune", "--keep 7d --yes"),
        of_slot("slot show", ""),
        of_slot("slot create", ""),
        of_slot("slot drop", "--yes"),
        of_slot("audit", "--tables inbox --for 1s").prints(Prints::Lines),
        of_slot("bench", "--dry-run"),
        case("explain", "usage", "no-such-code"),
        case("completions", "bash", "no-such-shell"),
        case("man", "pages", "app.db/pages"),
    ]
}

/// A database in which an event of order 1 is parked and one of order 2 is published.
fn prepared() -> (Fixture, String) {
    let fixture = Fixture::migrated();
    let id = fixture.insert("1", "OrderPlaced", "this is not JSON");
    fixture.insert("2", "OrderPaid", "{}");
    let to = format!("file://{}", fixture.path("out.jsonl").display());
    fixture.run(&["relay", "--from", "sqlite://app.db", "--to", &to, "--drain"]).assert_code(0);
    (fixture, id)
}

/// The lines of a text, each as JSON.
#[track_caller]
fn values(command: &str, text: &str) -> Vec<Value> {
    let parse = |line: &str| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{command}: {error}: {line}"))
    };
    text.lines().map(parse).collect()
}

/// The object of an error, which is the last that a command says. What it has done until then may
/// stand on stdout.
#[track_caller]
fn assert_error(command: &str, ran: &Ran) {
    let last = ran.stderr.lines().last().unwrap_or_default();
    let error = &values(command, last)[0];
    assert!(error["error"].as_str().is_some_and(|what| !what.is_empty()), "{command}: {error}");
    assert_eq!(error["exit_code"], ran.code, "{command}: {error}");
    assert!(values(command, &ran.stdout).len() <= 1, "{command}: {}", ran.stdout);
}

#[test]
fn every_command_prints_json() {
    let postgres = Postgres::new();
    postgres.migrate(&[]).assert_code(0);
    let (fixture, id) = prepared();
    let files = fixture.path("").display().to_string();
    for case in cases(&id, files.trim_end_matches('/'), &postgres.url) {
        let command = case.command;
        let ran = case.run(&fixture, &case.works);
        let is_report = case.prints == Prints::Report;
        assert!(ran.code == 0 || is_report, "{command}: {} {}", ran.code, ran.stderr);
        let printed = values(command, &ran.stdout);
        match case.prints {
            Prints::Lines => assert!(!printed.is_empty(), "{command} printed nothing"),
            Prints::Report | Prints::Value => assert_eq!(printed.len(), 1, "{command}"),
        }
        let ran = case.run(&fixture, &case.fails);
        assert_ne!(ran.code, 0, "{command} {:?}", case.fails);
        match is_report {
            true => assert_eq!(values(command, &ran.stdout).len(), 1, "{command}"),
            false => assert_error(command, &ran),
        }
        assert_error(command, &case.run(&fixture, &["--no-such-option".to_owned()]));
    }
}

/// The commands below one that do something by themselves.
fn commands(fixture: &Fixture, path: &[&str]) -> Vec<String> {
    let help = fixture.run(&[path, &["--help"]].concat()).assert_code(0).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names: Vec<&str> = listed
        .take_while(|line| !line.is_empty())
        // A line that is indented further goes on with the one before it.
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
    let mut found = Vec::new();
    if !path.is_empty() && !usage.contains("<COMMAND>") {
        found.push(path.join(" "));
    }
    for name in names {
        found.extend(commands(fixture, &[path, &[name]].concat()));
    }
    found
}

#[test]
fn every_command_is_among_the_cases() {
    let tried: Vec<&str> = cases("", "", "").iter().map(|case| case.command).collect();
    let commands = commands(&Fixture::new(), &[]);
    assert!(commands.len() > 25, "{commands:?}");
    for command in commands {
        assert!(tried.contains(&command.as_str()), "{command} is not among the cases");
    }
}
