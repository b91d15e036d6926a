//! How it ends: whatever was made is gone, or found later.

use std::process::{self, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::brokers::{Broker, Kafka, Nats, RabbitMq, Redis};
use crate::support::{Running, wait_until};
use crate::{Database, Fixture, files, json, variable};

/// Starts a run that takes some seconds at least, and waits until it has made something in the
/// database.
fn start(database: &Database, args: &[&str]) -> (Running, String) {
    let (rows, from) = (["bench", "--rows", "20000", "--for", "5m"], ["--from", &database.url]);
    let running = database.fixture.start(&[&rows[..], &from, args].concat());
    wait_until("the schema is there", || !database.schemas().is_empty());
    let name = database.schemas().remove(0);
    (running, name)
}

fn clean(database: &Database, args: &[&str]) -> Value {
    let from = ["bench", "--clean", "--json", "--from", &database.url];
    json(&database.fixture.run(&[&from[..], args].concat()).assert_code(0).stdout)
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    for (signal, broker, url) in [
        ("INT", &Kafka as &dyn Broker, variable("POSTRIDER_TEST_KAFKA")),
        ("TERM", &Redis, variable("POSTRIDER_TEST_REDIS")),
    ] {
        let database = Database::new();
        let before = database.catalog();
        let (mut running, name) = start(&database, &["--to", &url]);
        // Redis has it from the first event on.
        wait_until("the topic is there", || broker.has(&name.replace('_', "-")));
        running.signal(signal);
        assert_eq!(running.wait().code(), Some(7), "{}", running.stderr());
        running.wait_for("everything that was made is removed");
        assert_eq!(database.catalog(), before);
        assert!(!broker.has(&name.replace('_', "-")));
    }
}

#[test]
fn an_interrupted_run_from_the_log_leaves_no_slot() {
    let database = Database::new();
    let before = database.catalog();
    let (mut running, _) = start(&database, &["--mode", "cdc"]);
    let slots =
        "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()";
    wait_until("there is a slot", || !database.session().texts(slots).is_empty());
    running.signal("INT");
    assert_eq!(running.wait().code(), Some(7), "{}", running.stderr());
    assert_eq!(database.catalog(), before);
}

#[test]
fn an_interrupted_run_beside_a_file_leaves_nothing() {
    let fixture = Fixture::migrated();
    let before = files(&fixture);
    let args = ["bench", "--from", "sqlite:app.db", "--rows", "5000000", "--for", "5m"];
    let mut running = fixture.start(&[&args[..], &["--to", "file:out.jsonl"]].concat());
    wait_until("the file is there", || {
        files(&fixture).iter().any(|file| file.ends_with(".db-wal"))
    });
    running.signal("INT");
    assert_eq!(running.wait().code(), Some(7), "{}", running.stderr());
    assert_eq!(files(&fixture), before);
}

/// Kills a run, and has its leftovers removed by another process.
fn kill_and_clean(broker: &dyn Broker, url: &str, args: &[&str]) {
    let database = Database::new();
    let before = database.catalog();
    let to = ["--to", url];
    let (mut running, name) = start(&database, &[&to, args].concat());
    let topic = name.replace('_', "-");
    wait_until("the topic is there", || broker.has(&topic));
    let kept = clean(&database, &to);
    assert!(kept["in_use"].as_array().unwrap().contains(&name.clone().into()), "{kept}");
    assert_eq!(database.schemas(), [name.as_str()], "it is in use");
    running.signal("KILL");
    running.wait();
    assert!(broker.has(&topic), "nobody has removed it");

    // The server notices that a session is gone, and only then is the place free.
    wait_until("the place can be claimed", || {
        let found = clean(&database, &[&to[..], &["--dry-run"]].concat());
        found["removed"].as_array().unwrap().contains(&name.clone().into())
    });
    assert_eq!(database.schemas(), [name.as_str()], "a dry run changes nothing");
    // And so it is with the session that looked.
    wait_until("the place is removed", || {
        let cleaned = clean(&database, &to);
        cleaned["removed"].as_array().unwrap().contains(&name.clone().into())
    });
    assert_eq!(database.catalog(), before);
    assert!(!broker.has(&topic));
}

#[test]
fn what_a_killed_run_has_left_is_removed_from_kafka() {
    kill_and_clean(&Kafka, &variable("POSTRIDER_TEST_KAFKA"), &["--mode", "cdc"]);
}

#[test]
fn what_a_killed_run_has_left_is_removed_from_nats() {
    kill_and_clean(&Nats, &variable("POSTRIDER_TEST_NATS"), &[]);
}

#[test]
fn what_a_killed_run_has_left_is_removed_from_rabbitmq() {
    kill_and_clean(&RabbitMq, &variable("POSTRIDER_TEST_RABBITMQ"), &[]);
}

#[test]
fn what_a_killed_run_has_left_beside_a_file_is_removed() {
    let fixture = Fixture::migrated();
    let before = files(&fixture);
    let places = ["--from", "sqlite:app.db", "--to", "file:out.jsonl"];
    let args = [&["bench", "--rows", "5000000", "--for", "5m"], &places[..]].concat();
    let mut command = fixture.command(&args);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running::new(child);
    wait_until("the files are there", || {
        let files = files(&fixture);
        ["jsonl", "db-wal"].iter().all(|end| files.iter().any(|file| file.ends_with(end)))
    });
    running.signal("KILL");
    running.wait();
    assert_ne!(files(&fixture), before);
    let args = [&["bench", "--clean"], &places[..]].concat();
    fixture.run(&args).assert_code(0).assert_talk(&["removed postrider_bench_"]);
    assert_eq!(files(&fixture), before);
    fixture.run(&args).assert_code(0).assert_talk(&["nothing is left of any run"]);
}

#[test]
fn a_sink_that_is_away_leaves_nothing_in_the_database() {
    let database = Database::new();
    let before = database.catalog();
    let args = ["bench", "--from", &database.url, "--to", "redis://127.0.0.1:1", "--rows", "100"];
    let ran = database.fixture.run(&args).assert_code(4);
    ran.assert_talk(&["everything that was made is removed", "127.0.0.1:1"]);
    assert_eq!(database.catalog(), before);
}

#[test]
fn what_is_at_the_sink_alone_is_removed_when_it_is_old() {
    let database = Database::new();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let name = |age: u64| format!("postrider-bench-{:08x}{:04x}", now - age, process::id() as u16);
    let (old, young) = (name(3600), name(0));
    for stream in [&old, &young] {
        Nats::make(stream);
        assert!(Nats.has(stream));
    }
    let found = clean(&database, &["--to", &variable("POSTRIDER_TEST_NATS")]);
    let in_use = found["in_use"].as_array().unwrap();
    assert!(in_use.contains(&young.replace('-', "_").into()), "{found}");
    assert!(!Nats.has(&old), "{found}");
    assert!(Nats.has(&young), "somebody may measure another database: {found}");
    Nats::delete(&young);
}

#[test]
fn a_user_that_may_not_append_leaves_nothing() {
    let database = Database::new();
    let before = database.catalog();
    let user = format!("bench_{}", process::id());
    // It may do everything but what is needed.
    Redis::run(&["ACL", "SETUSER", &user, "on", ">canary", "~*", "+@all", "-xadd"]);
    let url = variable("POSTRIDER_TEST_REDIS");
    let server = url.rsplit_once('@').unwrap().1;
    let to = format!("redis://{user}:canary@{server}");
    let args = ["bench", "--from", &database.url, "--to", &to, "--rows", "100"];
    let ran = database.fixture.run(&args).assert_code(3);
    Redis::run(&["ACL", "DELUSER", &user]);
    let ran = ran.assert_talk(&["everything that was made is removed", "XADD", "fix: "]);
    assert!(!ran.stderr.contains("canary"), "{}", ran.stderr);
    assert_eq!(database.catalog(), before);
}
