//! How far a long work is, on a terminal: shown while it goes on, gone at its end, and nowhere else.

mod support;

use std::process::Stdio;

use support::Fixture;

const ERASE: &str = "\r\u{1b}[2K";

/// A database with a dead letter and two published events, and commands that take their time with
/// a word of what each shows.
fn prepared() -> (Fixture, Vec<(String, &'static str)>) {
    let fixture = Fixture::migrated();
    fixture.insert("1", "OrderPlaced", "this is not JSON");
    fixture.insert("2", "OrderPlaced", "{}");
    fixture.insert("3", "OrderPlaced", "{}");
    let file = |name: &str| format!("file://{}", fixture.path(name).display());
    let (out, again) = (file("out.jsonl"), file("again.jsonl"));
    let commands = vec![
        ("migrate".to_owned(), "migrating, 0s"),
        (format!("relay --drain --to {out}"), "delivered "),
        (format!("replay --to {again} --yes"), "of 3 events"),
        (format!("verify --to {out}"), "events of the outbox, "),
        ("dlq export --output dead.jsonl".to_owned(), "1 dead letters"),
        ("dlq retry --all --yes".to_owned(), "retry: 1 dead letter, 0s"),
        ("prune --keep 1d --yes".to_owned(), "removing, 0 events so far, 0s"),
    ];
    (fixture, commands)
}

/// What a command writes to a terminal, of which stdin is none.
fn on_a_terminal(fixture: &Fixture, command: &str) -> String {
    let line = format!("{} {command} --from sqlite://app.db", env!("CARGO_BIN_EXE_postrider"));
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.current_dir(fixture.path("")).stdin(Stdio::null());
    let ran = script.output().expect("`script` is part of every system");
    String::from_utf8(ran.stdout).expect("it is text")
}

/// What stays on a terminal.
fn what_stays(written: &str) -> String {
    let lines = written.split_inclusive('\n');
    lines.map(|line| line.rsplit(ERASE).next().unwrap_or_default()).collect()
}

#[test]
fn progress_is_shown_on_a_terminal_and_leaves_nothing() {
    let (fixture, commands) = prepared();
    for (command, shown) in commands {
        let written = on_a_terminal(&fixture, &command);
        let lines = written.split(ERASE).skip(1);
        assert!(lines.clone().any(|line| line.contains(shown)), "{command}: {written:?}");
        let stays = what_stays(&written);
        assert!(!stays.contains(", 0s") && !stays.contains("[="), "{command}: {stays:?}");
        assert!(!stays.contains("messages\n") || command.starts_with("verify"), "{stays:?}");
    }
}

#[test]
fn nothing_is_shown_elsewhere() {
    let (fixture, commands) = prepared();
    for (command, _) in commands {
        let mut args: Vec<&str> = command.split(' ').collect();
        args.extend(["--from", "sqlite://app.db"]);
        let ran = fixture.run(&args);
        assert!(!ran.stderr.contains('\u{1b}'), "{command}: {:?}", ran.stderr);
    }
    let (fixture, commands) = prepared();
    for (command, _) in commands {
        let written = on_a_terminal(&fixture, &format!("{command} --json"));
        assert!(!written.contains(ERASE), "{command} --json: {written:?}");
    }
}
